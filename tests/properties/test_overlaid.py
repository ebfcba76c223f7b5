"""A list with some objects replaced is the same whichever way it is made."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.apiserver import object_table
from hekla.apiserver.object_table import overlaid
from hekla.apiserver.store import Key, Stored

keys = st.builds(Key, st.just("pods"), st.sampled_from(["a", "a-b", "b"]), st.text("-.az", min_size=1, max_size=3))


def stored(key, revision):
    return Stored(key, revision, revision, b"{}")


@given(st.sets(keys, max_size=30), st.lists(st.tuples(keys, st.booleans()), max_size=6))
def test_a_few_changes_and_many_changes_to_a_list_are_made_alike(there, changed):
    listed = tuple(stored(key, 1) for key in sorted(there))
    instead = [(key, None if is_gone else stored(key, 2)) for key, is_gone in changed]
    expected = {one.key: one for one in listed} | dict(instead)
    wanted = [one for _, one in sorted(expected.items()) if one is not None]
    assert list(overlaid(listed, instead)) == wanted
    assert list(object_table._patched(list(listed), dict(instead))) == wanted
