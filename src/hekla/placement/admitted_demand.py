"""What jobs that are in, and not running yet, will still ask for: the room that is spoken for.

Who decides whether another may enter counts it as taken. One exception has an account of its own: what `reservation`
keeps room for. Its nodes are kept where it will start, so counting its claim besides would keep out everybody who is gone
before then, and the room would stand idle that backfill is there to fill.
"""

from collections.abc import Iterable, Mapping

from hekla.placement.cluster import Cluster
from hekla.placement.model import HOLDS_NODE, Job, JobPhase, TaskStatus
from hekla.quota.amounts import added

_NOTHING: Mapping[str, int] = {}
_MADE = frozenset({TaskStatus.PENDING, *HOLDS_NODE})


class Entered:
    """The claims of those who are in, as one session sees them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_queue: dict[str, dict[str, int]] = {}
        self._kept_for: dict[str, dict[str, int]] = {}
        self._total: dict[str, int] = {}
        for job in cluster.lines.by_phase[JobPhase.INQUEUE].values():
            self.note(job)

    def note(self, job: Job) -> None:
        """A job is in; what its minimum asks for beyond what its tasks hold already is spoken for."""
        wanted = job.spec.min_resources
        if not wanted:
            return
        held, of_queue, total = job.holding, None, self._total
        # By hand: thousands may be in at every cycle, and counters of the library took four times as long.
        for name, amount in wanted.items():
            rest = amount - held.get(name, 0)
            if rest <= 0:
                continue
            if of_queue is None:
                is_kept = has_room_kept(self._cluster, job)
                of_queue = (self._kept_for if is_kept else self._by_queue).setdefault(job.spec.queue, {})
                total = {} if is_kept else self._total
            of_queue[name] = of_queue.get(name, 0) + rest
            total[name] = total.get(name, 0) + rest

    def of(self, resource: str) -> int:
        """How much of a resource they will ask for."""
        return self._total.get(resource, 0)

    def in_queue(self, queue: str) -> Mapping[str, int]:
        """What those of a queue will ask for."""
        return self._by_queue.get(queue, _NOTHING)

    def kept_in(self, queue: str) -> Mapping[str, int]:
        """What those of a queue will ask for, for whom room is kept: in no other sum."""
        return self._kept_for.get(queue, _NOTHING)

    def queues(self) -> Iterable[str]:
        """Queues of which some are in."""
        return self._by_queue.keys()


class EnteredByNamespace:
    """What those who are in will still ask of the quotas of their namespaces, as one session sees it."""

    def __init__(self, cluster: Cluster) -> None:
        self._bounded = cluster.namespace_quotas
        self._asked: dict[str, dict[str, int]] = {}
        for job in cluster.lines.by_phase[JobPhase.INQUEUE].values():
            self.note(job)

    def note(self, job: Job) -> None:
        """A job is in."""
        if job.spec.namespace not in self._bounded:
            return
        asked = self._asked.setdefault(job.spec.namespace, {})
        for name, amount in still_asked(job).items():
            asked[name] = asked.get(name, 0) + amount

    def of(self, namespace: str) -> Mapping[str, int]:
        """What those of a namespace will ask for, by the names of quotas."""
        return self._asked.get(namespace, _NOTHING)


def still_asked(job: Job) -> dict[str, int]:
    """A job's minimum by the names of quotas, less what its pods that were made use already."""
    if not job.spec.quota_asked:
        return {}
    made = added(task.shape.request for task in job.tasks.values() if task.status in _MADE)
    rest = {name: amount - made.get(_resource(name), 0) for name, amount in job.spec.quota_asked.items()}
    return {name: amount for name, amount in rest.items() if amount > 0}


def _resource(name: str) -> str:
    """The resource that a quota's name is about. Limits are taken as large as requests: the engine knows no limits."""
    return name.removeprefix("requests.").removeprefix("limits.").removeprefix("count/")


def has_room_kept(cluster: Cluster, job: Job) -> bool:
    """Whether a job that is in has its own account: room is kept for it, or it was let in since room was to be kept."""
    return job.uid in cluster.reservations or job.uid in cluster.let_in
