"""What the work queues of reconcilers tell Prometheus, under client-go's names, by the name of the reconciler.

Queues count for themselves (`work_queue.py`), an addition each; this reads them when /metrics is asked for.
"""

from collections.abc import Iterable, Iterator
from weakref import WeakValueDictionary

from prometheus_client import REGISTRY, Metric

from hekla.kube.measured import Family, histogram, metric
from hekla.kube.work_queue import BUCKETS_S, WorkQueue

_NAME = ("name",)
DEPTH = Family("workqueue_depth", "gauge", "Objects that wait for a worker.", _NAME)
ADDS = Family("workqueue_adds_total", "counter", "Objects that began to wait.", _NAME)
WAITS = Family(
    "workqueue_queue_duration_seconds", "histogram", "How long objects waited for a worker.", _NAME, BUCKETS_S
)
WORKS = Family(
    "workqueue_work_duration_seconds",
    "histogram",
    "How long objects were worked on, until caches showed it.",
    _NAME,
    BUCKETS_S,
)
UNFINISHED = Family(
    "workqueue_unfinished_work_seconds", "gauge", "How long those that are worked on have been, added up.", _NAME
)
LONGEST = Family(
    "workqueue_longest_running_processor_seconds", "gauge", "How long the one has been that was first.", _NAME
)
RETRIES = Family("workqueue_retries_total", "counter", "Objects that were put back after a failure.", _NAME)
FAMILIES = (DEPTH, ADDS, WAITS, WORKS, UNFINISHED, LONGEST, RETRIES)


class QueueMetrics:
    """The queues of this process; a collector for Prometheus' registry."""

    def __init__(self) -> None:
        self._queues: WeakValueDictionary[str, WorkQueue] = WeakValueDictionary()

    def tell_of(self, name: str, queue: WorkQueue) -> None:
        """Tell of a queue while it lives; a later one of the same name takes its place."""
        self._queues[name] = queue

    def describe(self) -> Iterable[Metric]:
        """Nothing: there are no queues when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, as they stand now."""
        queues = {(name,): queue for name, queue in sorted(self._queues.items())}
        unfinished = {labels: queue.unfinished_s() for labels, queue in queues.items()}
        yield metric(DEPTH, {labels: len(queue) for labels, queue in queues.items()})
        yield metric(ADDS, {labels: queue.adds for labels, queue in queues.items()})
        yield histogram(WAITS, {labels: queue.waits for labels, queue in queues.items()})
        yield histogram(WORKS, {labels: queue.works for labels, queue in queues.items()})
        yield metric(UNFINISHED, {labels: sum(times) for labels, times in unfinished.items()})
        yield metric(LONGEST, {labels: max(times, default=0.0) for labels, times in unfinished.items()})
        yield metric(RETRIES, {labels: queue.retries for labels, queue in queues.items()})


QUEUES = QueueMetrics()
REGISTRY.register(QUEUES)
