"""What shows that objects go by themselves."""

import gc

from hekla.testing.garbage import without_collections


class Ring:
    def __init__(self):
        self.me = self


def test_what_only_a_collection_would_take_is_told_and_nothing_else_is():
    before = Ring()
    with without_collections() as still_there:
        assert not gc.isenabled()
        after = Ring()
        assert still_there(Ring) == [after]
        after.me = None
        del after
        assert still_there(Ring) == []
        Ring()
        assert len(still_there(Ring)) == 1
    assert gc.isenabled()
    assert before in [one for one in gc.get_objects() if type(one) is Ring]
