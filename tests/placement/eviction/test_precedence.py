"""Who made way for whom is kept until it has cooled off and the world has changed, and holds by way of others, too."""

from hekla.placement.eviction.precedence import COOL_OFF_S, Precedence


def test_who_goes_before_those_who_go_before_goes_before() -> None:
    known = Precedence()
    known.note("a", "b", 0.0)
    known.note("b", "c", 1.0)
    assert known.before("c") == {"a", "b"}


def test_a_pair_is_forgotten_once_it_is_old_and_the_world_has_changed() -> None:
    known = Precedence()
    known.note("a", "b", 0.0)
    known.forget_old(COOL_OFF_S + 1)
    assert known.before("b") == {"a"}  # nothing has changed
    known.world_changed()
    known.forget_old(COOL_OFF_S - 1)
    assert known.before("b") == {"a"}  # too young
    known.forget_old(COOL_OFF_S + 1)
    assert not known.before("b")
    assert not known.knows("a")
