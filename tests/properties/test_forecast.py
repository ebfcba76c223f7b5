"""When equal pods will fit is counted from amounts; trying it on a copy of the cluster, end by end, tells the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.reservations.forecast import tried_on_a_copy
from hekla.placement.reservations.forecast_equal_pods import one_of_equals, soonest
from hekla.placement.reservations.place_beside import book_of
from hekla.placement.session import Session
from hekla.testing.cluster import World, amounts, check

PLUGINS = (("gang", ("reservation", {"depth": 1})), ("proportion", "predicates", "binpack"))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30), st.integers(1, 3)), max_size=10),
    st.integers(1, 6),
    st.integers(1, 4),
    st.none() | st.integers(2, 12),
)
@settings(max_examples=60, deadline=None)
def test_counting_and_trying_tell_the_same_start(
    nodes: list[int], running: list[tuple[int, int, int]], tasks: int, cpu: int, most: int | None
) -> None:
    world = World(plugins=PLUGINS)
    world.queue("default", capability=amounts(cpu=most) if most else {})
    for number, size in enumerate(nodes):
        world.node(f"n{number}", cpu=size)
    for number, (asked, runs, width) in enumerate(running):
        world.job(f"r{number}", tasks=width, cpu=asked, more={"estimate_s": float(runs)})
    world.schedule()
    job = world.job("big", tasks=tasks, cpu=cpu)
    session = Session(world.policy, now=world.session.now, wall_s=world.session.wall_s)
    book, task = book_of(session), one_of_equals(session, job)
    assert book is not None
    assert task is not None
    if not (ends := book.ends.in_order):
        return
    counted, tried = soonest(session, job, task, ends, ()), tried_on_a_copy(session, job, ends, ())
    assert (counted and counted.start_s) == (tried and tried.start_s)
    check(world.cluster)


def test_who_was_taken_back_from_its_node_gives_no_room_on_another() -> None:
    world = World(plugins=PLUGINS)
    for number in range(64):  # as many as the columns have rows, so that the last row is a node
        world.node(f"n{number}", cpu=2)
    world.job("endless", tasks=64, cpu=2)
    world.schedule()
    [taken_back], big = world.job("taken-back", cpu=2).tasks.values(), world.job("big", cpu=2)
    session = Session(world.policy, now=world.session.now, wall_s=world.session.wall_s)
    assert tried_on_a_copy(session, big, [(10.0, taken_back)], ()) is None
