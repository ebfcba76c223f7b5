"""Decides again by a snapshot: the same engine, the same translation of objects, no API server and no clock.

    replay = Replay(snapshot)
    replay.cycle()            # the decisions that the live scheduler took

What came in which order, what came and went before, and which machine it is make no difference: whoever wins a tie
wins it by name, age or uid, never by its row or by when it was heard of.
"""

from collections.abc import Iterable

from hekla.api.meta import Resource
from hekla.dialects.feed import ClusterFeed
from hekla.placement.cluster import Cluster
from hekla.placement.model import JobPhase, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.scheduler.configuration import Configuration, parse_configuration
from hekla.scheduler.decisions import Decisions, decisions_of
from hekla.scheduler.engine_state import restore
from hekla.scheduler.snapshot import Snapshot, in_order

PERIOD_S = 1.0
"""How much later each further cycle of a replay is."""


class Replay:
    """A cluster as a snapshot has it, and the cycles that follow from it."""

    def __init__(self, snapshot: Snapshot, configuration: Configuration | None = None) -> None:
        """ConfigurationError or UnknownStateError if the snapshot cannot be decided by."""
        self.configuration = configuration or parse_configuration(snapshot.configuration)
        self.cluster = Cluster(seed=snapshot.seed)
        self.policy = Policy(self.cluster, self.configuration.tiers, self.configuration.arguments)
        self.policy.actions = self.configuration.actions
        self.feed = fed(self.cluster, snapshot, in_order(snapshot.objects))
        self.now, self.wall_s = snapshot.now, snapshot.wall_s

    def cycle(self) -> Decisions:
        """Run one whole cycle; what it decided is assumed, as in the live scheduler."""
        return self.run()[0]

    def run(self) -> tuple[Decisions, Session]:
        """The same, with the session to ask for more."""
        session = Session(self.policy, now=self.now, wall_s=self.wall_s)
        admit_without_enqueue(self.cluster, self.configuration.actions)
        choices = [choice for name in self.configuration.actions for choice in action_named(name)(session)]
        return decisions_of(session, choices), session

    def cycles(self, count: int) -> list[Decisions]:
        """Run up to so many cycles; between two of them what was decided comes true. Ends after one that is quiet."""
        found: list[Decisions] = []
        while len(found) < count and not (found and found[-1].is_quiet):
            found.append(self.cycle())
            self._come_true()
            self.now, self.wall_s = self.now + PERIOD_S, self.wall_s + PERIOD_S
        return found

    def _come_true(self) -> None:
        """Pods run where they were put, and those that were sent away are gone."""
        for task in list(self.cluster.tasks.values()):
            if task.status is TaskStatus.BINDING:
                self.cluster.put_state(task, TaskStatus.RUNNING, self.cluster.nodes.name(task.row))
            elif task.status is TaskStatus.RELEASING:
                self.cluster.remove_task(task.uid)


def fed(cluster: Cluster, snapshot: Snapshot, objects: Iterable[Resource]) -> ClusterFeed:
    """A feed that was told of these objects, in this order, and remembers what the snapshot remembers.

    The policy should be at work on the cluster already: plug-ins have it note what they look at.
    """
    feed = ClusterFeed(
        cluster, scheduler_names=snapshot.scheduler_names, default_queue=snapshot.default_queue,
        waits_for_groups=snapshot.waits_for_groups, sharding=snapshot.sharding,
    )  # fmt: skip
    cluster.nodes.wall_s = snapshot.wall_s
    cluster.ledger.tell_time(snapshot.wall_s)
    handlers = feed.followed
    for obj in objects:
        if type(obj) in handlers:  # some kinds are kept for engines that heed them
            handlers[type(obj)](None, obj)
    restore(feed, snapshot.state)
    cluster.gains += 1
    return feed


def admit_without_enqueue(cluster: Cluster, actions: Iterable[str]) -> None:
    """Where no `enqueue` is configured nobody would let jobs in, so all are."""
    if "enqueue" not in actions:
        for job in list(cluster.lines.by_phase[JobPhase.PENDING].values()):
            job.phase = JobPhase.INQUEUE
