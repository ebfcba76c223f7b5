"""What is reckoned to happen at some time is told once, not before, and within a hundredth of a second after."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.reckoning import TICKS_PER_S, Wheel

TIMES = st.floats(0.0, 50.0)


@given(st.lists(st.tuples(TIMES, st.lists(st.floats(0.0, 30.0), max_size=3)), max_size=30))
def test_a_wheel_tells_everything_once_in_its_time(story):
    wheel, waiting = Wheel(), {}
    for now, delays in sorted(story, key=lambda one: one[0]):
        told = wheel.over(now) if now >= wheel.next_s else []
        assert all(waiting.pop(one) <= now for one in told)
        assert all(due > now - 1 / TICKS_PER_S - 1e-9 for due in waiting.values())
        for delay in delays:
            name = len(waiting), now, delay
            waiting[name] = now + delay
            wheel.add(name, now + delay)
    assert sorted(wheel.over(1e6)) == sorted(waiting)


def test_a_wheel_that_nobody_asked_for_days_tells_at_once():
    wheel = Wheel()
    wheel.add("a", 5.0)
    wheel.add("b", 2.0)
    assert wheel.over(1e9) == ["b", "a"]
    assert not wheel.over(1e9 + 1)


def test_what_was_due_already_is_told_with_the_next():
    wheel = Wheel()
    assert not wheel.over(10.0)
    wheel.add("late", 3.0)
    assert wheel.over(wheel.next_s) == ["late"]
