from hypothesis import given
from hypothesis import strategies as st

from hekla.api.apps import DeploymentStrategy, RollingUpdateDeployment
from hekla.controlplane.rollout import ReplicaShare, bounds, grown, proportional, shrunk

counts = st.integers(0, 40)
amounts = st.one_of(st.integers(0, 10), st.integers(0, 100).map(lambda percent: f"{percent}%"))


@st.composite
def shares(draw, name):
    replicas = draw(counts)
    return ReplicaShare(name, replicas, draw(st.integers(0, replicas)), draw(st.integers(0, 60)))


@given(amounts, amounts, counts)
def test_a_rollout_can_always_move(surge, unavailable, replicas):
    rolling = RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
    most, least = bounds(DeploymentStrategy(type="RollingUpdate", rolling_update=rolling), replicas)
    assert most >= 0
    assert 0 <= least <= max(replicas, 0)
    assert replicas == 0 or most or least


@given(shares("new"), st.lists(st.integers(0, 5), max_size=3), counts, st.integers(0, 10))
def test_growing_never_exceeds_the_surge(new, old_sizes, replicas, surge):
    old = [ReplicaShare(f"old{n}", size, size) for n, size in enumerate(old_sizes)]
    size = grown(new, old, replicas=replicas, max_surge=surge)
    total_before = new.replicas + sum(one.replicas for one in old)
    assert size <= max(replicas, 0)
    assert size + sum(old_sizes) <= max(replicas + surge, total_before)
    assert new.replicas > replicas or size >= new.replicas


@given(shares("new"), shares("a"), shares("b"), counts, st.integers(0, 10))
def test_shrinking_never_takes_an_available_pod_below_the_bound(new, one, other, replicas, unavailable):
    sizes = shrunk(new, [one, other], replicas=replicas, max_unavailable=unavailable)
    available = new.available
    for share in (one, other):
        left = sizes.get(share.name, share.replicas)
        assert 0 <= left <= share.replicas
        # In the worst case the broken ones are kept and those that go were available.
        available += min(share.available, left)
    before = new.available + one.available + other.available
    assert available >= min(before, replicas - unavailable) or not sizes


@given(st.lists(counts, min_size=1, max_size=4), counts, st.integers(0, 10))
def test_a_resize_is_spread_completely(sizes, replicas, surge):
    found = [ReplicaShare(f"s{n}", size, size, 0) for n, size in enumerate(sizes)]
    spread = proportional(found, replicas=replicas, max_surge=surge)
    assert all(size >= 0 for size in spread.values())
    if replicas and sum(sizes):
        assert sum(spread.values()) == replicas + surge
