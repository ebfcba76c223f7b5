"""What /metrics tells of warm pools: how many sandboxes each should have, and how many can be claimed. Pure."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from hekla.api.agents import SandboxWarmPool
from hekla.kube.measured import Family, metric

_OF_POOL = ("namespace", "pool")

WANTED = Family(
    "hekla_agents_pool_wanted", "gauge", "Sandboxes that a warm pool should have: its spec.replicas.", _OF_POOL
)
READY = Family("hekla_agents_pool_ready", "gauge", "Sandboxes of a warm pool that can be claimed at once.", _OF_POOL)
FAMILIES = (WANTED, READY)


def gauges_of(pools: Iterable[SandboxWarmPool]) -> Iterator[Metric]:
    """Both families, as the pools stand now."""
    known = [(pool, (pool.metadata.namespace, pool.metadata.name)) for pool in pools]
    yield metric(WANTED, {key: 1 if pool.spec.replicas is None else pool.spec.replicas for pool, key in known})
    yield metric(READY, {key: pool.status.ready_replicas for pool, key in known})
