"""Ties: the same seed gives the same decisions whatever the order of what comes, and another seed other ones."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.testing.cluster import World

QUEUES = ("qa", "qb", "qc")


def decisions(seed: int, nodes: Sequence[int], jobs: Sequence[tuple[int, str, int]]) -> dict[str, str]:
    """What a cycle decides where nodes and queues come in this order; jobs are of one age, so that all of them tie."""
    world = World(seed=seed)
    for number in nodes:
        world.node(f"n{number}", cpu=2)
    for name in sorted(QUEUES, key=lambda name: -len(nodes) if name == QUEUES[nodes[0] % 3] else 0):
        world.queue(name)
    for number, queue, tasks in jobs:
        world.job(f"j{number}", tasks=tasks, more={"queue": queue, "created": 1.0}, cpu=1)
    return world.schedule()


seeds = st.integers(0, 1 << 40)
job_lists = st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, 3)), min_size=1, max_size=6)


@given(seeds, st.integers(1, 6), job_lists, st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_in_which_things_come_is_irrelevant(seed: int, size: int, jobs, dice) -> None:
    numbered = [(number, *job) for number, job in enumerate(jobs)]
    nodes, shuffled = list(range(size)), list(numbered)
    first = decisions(seed, nodes, numbered)
    dice.shuffle(nodes)
    dice.shuffle(shuffled)
    assert decisions(seed, nodes, shuffled) == first


def test_seeds_differ_in_how_they_break_ties() -> None:
    jobs = [(number, "qa", 1) for number in range(4)]
    told = {tuple(sorted(decisions(seed, range(8), jobs).items())) for seed in range(20)}
    assert len(told) > 10


def test_of_jobs_of_one_age_each_is_first_by_some_seed() -> None:
    jobs = [(number, "qa", 2) for number in range(3)]
    first = {next(iter(decisions(seed, [0], jobs))) for seed in range(1, 40)}
    assert first == {"j0-0", "j1-0", "j2-0"}
