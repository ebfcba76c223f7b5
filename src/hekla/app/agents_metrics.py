"""Has the process' /metrics tell of sandboxes: what its gateway counts, and how its warm pools stand, for as long as they run."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Metric

from hekla.api.agents import SandboxWarmPool
from hekla.kube.informer import Informers
from hekla.kube.measured import Collector
from hekla.sandbox.gateway.running import Gateway
from hekla.sandbox.pools.gauges import gauges_of


@contextmanager
def gateway_told(gateway: Gateway) -> Iterator[None]:
    """For the length of a block, the numbers of this gateway."""
    with _told(gateway.collect):
        yield


@contextmanager
def pools_told(informers: Informers) -> Iterator[None]:
    """For the length of a block, the pools that these informers see."""
    pools = informers.of(SandboxWarmPool).cache
    with _told(lambda: gauges_of(pools)):
        yield


@contextmanager
def _told(collect: Callable[[], Iterable[Metric]]) -> Iterator[None]:
    collector = Collector(collect)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
