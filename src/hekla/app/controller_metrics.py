"""Has /metrics tell what the controllers of workloads count (`hekla.workloads.metrics`), for as long as they run."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY, Metric

from hekla.api.core import Pod
from hekla.api.volcano import Job, JobFlow, PodGroup
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.informer import Informers
from hekla.workloads.metrics import ControllerTally, gangs_by_queue


class ControllerMetrics:
    """The controllers' numbers; a collector for Prometheus' registry."""

    def __init__(self, informers: Informers, clock: Clock, *, with_queues: bool) -> None:
        """`with_queues` where no scheduler in this process tells of the queues' gangs."""
        self._jobs, self._groups = informers.of(Job).cache, informers.of(PodGroup).cache
        self._with_queues = with_queues
        self.tally = ControllerTally(self._jobs.get, since=clock.now())

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not guard the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, as they stand now."""
        yield from self.tally.collect(self._jobs)
        if self._with_queues:
            yield from gangs_by_queue(self._groups)


@asynccontextmanager
async def counted(
    informers: Informers, *, with_queues: bool, clock: Clock | None = None
) -> AsyncIterator[ControllerMetrics]:
    """Count for the length of a block what happens in it; what was there before is known and not counted."""
    metrics = ControllerMetrics(informers, clock or SystemClock(), with_queues=with_queues)
    tally = metrics.tally
    jobs, flows, pods = informers.of(Job), informers.of(JobFlow), informers.of(Pod)
    jobs.add_handler(tally.on_job)
    flows.add_handler(tally.on_flow)
    pods.add_handler(tally.on_pod)
    REGISTRY.register(metrics)
    try:
        yield metrics
    finally:
        REGISTRY.unregister(metrics)
        jobs.remove_handler(tally.on_job)
        flows.remove_handler(tally.on_flow)
        pods.remove_handler(tally.on_pod)
