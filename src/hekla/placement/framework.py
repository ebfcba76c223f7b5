"""Extension points: the questions that actions ask, one Protocol with one method each.

A plug-in is a frozen dataclass under `@plugin`; its fields are its arguments. It inherits nothing and implements the
questions it has an opinion on. `registry.py` finds plug-ins and builds them from configuration.

Directions are fixed: scores in 0..1, higher wins; sort keys, smaller first; masks, True means refused where they
stand beside a refusal.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, dataclass_transform, runtime_checkable

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.model import Job, JobSpec, Task, TaskSpec
from hekla.placement.node_selection.score import Score
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.shape import Shape
from hekla.placement.topology.fill import Scores
from hekla.placement.topology.tree import Tree
from hekla.placement.topology.venue import Venue

if TYPE_CHECKING:
    from hekla.placement.session import Session

P = TypeVar("P", bound=type)
S = TypeVar("S", covariant=True)
Key = tuple[Any, ...]
"""A sort key: smaller goes first; ties fall to the next plug-in."""


class Vote(Enum):
    """An answer to a question on which plug-ins vote: one reject decides, else a tier's permit decides."""

    PERMIT = "permit"
    ABSTAIN = "abstain"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that are refused, and why."""

    refusal: Refusal
    rows: BoolArray  # [node], True where refused
    is_told_before_amounts: bool = False
    """Whether a node that also lacks room is counted under this, as kube-scheduler counts it."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A vote with its reason."""

    vote: Vote
    reason: str = ""


@runtime_checkable
class QueueOrder(Protocol):
    """Which queue may place next.

    A plug-in that says `reads_accounts` here, of what queues may take and of who has had its share, looks at nothing but the
    accounts of queues: then turns that several queues take are told before anybody is placed (`queueing/lookahead.py`).
    """

    def queue_key(self, session: "Session", queue: Queue) -> Key:
        """The sort key of a queue."""


@runtime_checkable
class QueueOrderAhead(QueueOrder, Protocol):
    """A queue's order that is told many turns ahead (`queueing/turns_ahead.py`): it follows from the queue's own account alone."""

    def queue_keys(self, session: "Session", queue: Queue, growth: ProjectedUse) -> Sequence[Iterable[Any]] | None:
        """`queue_key` in each of some states to come: a column for each part of the key, [part][state].

        None: not to be told ahead.
        """


@runtime_checkable
class JobOrder(Protocol):
    """Which job of a queue goes next.

    A plug-in may say in `orders_waiting_by` which fields of its spec decide the key of a job of one pod that waits, holds
    nothing and has neither roles' minimums nor sub-gangs. If all say so, such jobs keep their places in line from cycle
    to cycle (`queueing/kept_lines.py`); if one does not, all are sorted in every cycle.
    """

    def job_key(self, session: "Session", job: Job) -> Key:
        """The sort key of a job."""


@runtime_checkable
class TaskOrder(Protocol):
    """Which task of a job goes next.

    A plug-in that says `keeps_task_order` has keys that change with the tasks' specs alone: then the order of many tasks
    is kept while the job grows (`node_selection/filling.py`).
    """

    def task_key(self, session: "Session", task: Task) -> Key:
        """The sort key of a task."""


@runtime_checkable
class Enqueueable(Protocol):
    """May a job enter, so that its pods are made and wait for nodes?"""

    def may_enqueue(self, session: "Session", job: Job) -> Opinion:
        """The plug-in's vote."""


@runtime_checkable
class KeepsRoom(Protocol):
    """Is room kept for jobs that find none, so that they may enter all the same?"""

    def keeps_room(self, session: "Session", job: Job) -> bool:
        """Whether room is kept for a job from now on; asked of one that is kept out for nothing but want of room."""

    def kept_from(self, session: "Session", job: Job) -> Mapping[str, int]:
        """How much of what is idle is kept for others, by resource: taken, as far as this job is concerned."""


@runtime_checkable
class Valid(Protocol):
    """Has a job enough tasks to be worth a try?

    A plug-in that says `starts_whole_jobs` finds a lone pod that waits, without roles' minimums and sub-gangs, worth a
    try at any time, if its job's minimum is at most one (`queueing/kept_lines.py`).
    """

    def why_invalid(self, session: "Session", job: Job) -> Refusal | None:
        """The reason why not; None if it has."""


@runtime_checkable
class Ready(Protocol):
    """May what was placed for a job be bound?

    A plug-in that says `starts_whole_jobs` finds a job ready that may be tried, has no sub-gangs, and has a node for each
    of its tasks: then whose turn it is can be told before anybody is placed (`queueing/lookahead.py`). If one does not say so, jobs
    are placed one at a time.
    """

    def is_ready(self, session: "Session", job: Job) -> bool:
        """Whether it may; all plug-ins must agree."""

    def shortfall(self, session: "Session", job: Job) -> int:
        """At least how many more tasks must be placed before it may; so many can be placed without asking again."""


@runtime_checkable
class GoesOn(Protocol):
    """Is it worth to go on with a job after one of its tasks found no node?"""

    def goes_on(self, session: "Session", job: Job, failed: frozenset[str]) -> bool:
        """Whether the job can still become ready without the roles that failed."""


@runtime_checkable
class Overused(Protocol):
    """Has a queue had its share, so that it places nothing more in this session?

    Monotone, for `queueing/lookahead.py` relies on it: within a session, a queue that has had its share still has when it holds
    more, and one that has not, has not when it holds less.
    """

    def is_overused(self, session: "Session", queue: Queue) -> bool:
        """Whether it has."""


@runtime_checkable
class Allocatable(Protocol):
    """How much may a queue take?

    Monotone, for `queueing/lookahead.py` relies on it: within a session, a queue that holds more may not take more, who may take
    so much may take any part of it, one task at a time or all at once, and how jobs are called makes no difference.
    """

    def allowance(self, session: "Session", queue: Queue, task: Task, wanted: int) -> int:
        """How many of `wanted` tasks like this one the queue may take; at most `wanted`."""

    def why_not_allocatable(self, session: "Session", queue: Queue, task: Task) -> Refusal | None:
        """Why the queue may not take this task; None if it may."""


@runtime_checkable
class Preemptive(Protocol):
    """May a queue have others evicted so that a task fits? Asked by reclaim."""

    def why_not_preemptive(self, session: "Session", queue: Queue, task: Task) -> Refusal | None:
        """Why not; None if it may."""


@runtime_checkable
class Reclaimable(Protocol):
    """Which tasks of other queues may be evicted for a task? Asked by reclaim."""

    def reclaimable(self, session: "Session", task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those of `victims`, which are in the order of eviction, that may go; None to abstain."""


@runtime_checkable
class TellsApart(Protocol):
    """Does a plug-in say of a victim what it does not say of an equal task of the same job?"""

    def apart(self, session: "Session", victim: Task) -> Hashable:
        """What makes the difference: equal tasks with equal answers may go, or may not, alike."""


@runtime_checkable
class Preemptable(Protocol):
    """Which tasks of the same queue may be evicted for a task? Asked by preempt."""

    def preemptable(self, session: "Session", task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those of `victims`, which are in the order of eviction, that may go; None to abstain."""


@runtime_checkable
class UnifiedEvictable(Protocol):
    """Which tasks may be evicted together for a gang? Asked by gangpreempt and gangreclaim, instead of the two above."""

    def evictable_together(
        self, session: "Session", task: Task, victims: Sequence[Task], *, takes_back: bool
    ) -> Sequence[Task] | None:
        """Those of `victims` that may go for a task of the gang; None to abstain. `takes_back` tells who asks."""


@runtime_checkable
class Starving(Protocol):
    """Has a job too little to work, so that others may be evicted for it?"""

    def is_starving(self, session: "Session", job: Job) -> bool:
        """Whether it has; the plug-ins of the first tier that has any must agree."""


@runtime_checkable
class Pipelined(Protocol):
    """Has a job enough once what it was promised is free?"""

    def is_pipelined(self, session: "Session", job: Job) -> Opinion:
        """The plug-in's vote."""


@runtime_checkable
class VictimQueueOrder(Protocol):
    """Which queue loses tasks first, when a job takes room back?"""

    def victim_queue_key(self, session: "Session", queue: Queue, preemptor: Job) -> Key:
        """The sort key of a queue; ties fall to the queue that places last."""


@runtime_checkable
class Entitled(Protocol):
    """May a job's queue take back what the job asks for? Then the job is let in though the cluster is full."""

    def is_entitled(self, session: "Session", job: Job) -> bool:
        """Whether what the job starts with, and all that its queue has promised before, is within what it deserves."""


@runtime_checkable
class Opens(Protocol[S]):
    """Computes something once per session; the plug-in reads it back with `session.opened(self)`."""

    def open(self, session: "Session") -> S:
        """What the plug-in needs for this session; computed when it is first asked for."""


@runtime_checkable
class Filter(Protocol):
    """Which nodes are refused because of what they are: the answer holds until a node's facts change."""

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """Refused nodes with reasons; where several refuse a node, the first is told."""


@runtime_checkable
class LiveFilter(Protocol):
    """Which nodes are refused because of the pods that run there: asked anew for every task."""

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """Refused nodes with reasons."""


@runtime_checkable
class Scorer(Protocol):
    """How much the nodes that may take a pod are liked."""

    weight: float
    """How much this opinion counts beside others."""

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """The score, which may depend on demands and on which resources are asked for, not on how much of them."""


@runtime_checkable
class LiveScorer(Protocol):
    """How much nodes are liked because of the pods that run there: asked anew for every task."""

    def score_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> FloatArray | None:
        """What it adds, times its weight: a plug-in's `weight` bounds what `score` and `score_live` add up to.  # [node]"""


Among = Callable[[], BoolArray]
"""The nodes that a task can go to as things are: all wishes met, and with room.  # [node]"""


@runtime_checkable
class ComparingScorer(Protocol):
    """How much nodes are liked beside the others that a task could go to: one that fills up changes what is said of the rest."""

    def compares(self, nodes: Nodes, shape: Shape) -> bool:
        """Whether it speaks of pods of this shape wherever others run."""

    def goes_by(self, nodes: Nodes, shape: Shape, among: BoolArray) -> tuple[Hashable, int]:
        """(What `score_among` goes by, of a pod that minds no others: where it is equal, so are the scores; on how many of the
        nodes it rests: while one of these can be had, and none is added to them, it stays what it is).
        """

    def score_among(self, nodes: Nodes, tallies: Tallies, task: Task, among: Among) -> FloatArray | None:
        """What it adds to its `score`, times its weight. Of nodes that are not among them any number will do.  # [node]"""


@runtime_checkable
class RowScorer(Protocol):
    """How much nodes are liked for what is left on them, in ways that no `Score` can say."""

    weight: float

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        """The score of these nodes; it holds until an amount in use there, or any node's facts, change.  # [row]"""


@runtime_checkable
class DeviceChoice(Protocol):
    """Which GPU of a node goes to a pod that asks for a part of one?"""

    def choose_device(self, nodes: Nodes, shape: Shape, row: int) -> int:
        """Its number; it has room for the pod."""


@runtime_checkable
class Reader(Protocol):
    """What a plug-in has to know of a pod beyond what the pod says: of its job, or of its queue."""

    def read(self, task: TaskSpec, job: JobSpec, queues: Mapping[str, Queue]) -> "Reading | None":
        """What becomes part of the pod's constraints, so that pods that differ in it are decided apart; None for nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a `Reader` adds to the constraints of a pod."""

    traits: tuple[tuple[str, Hashable], ...] = ()
    is_single: bool = False
    """Whether each such pod is decided by itself: where others are already makes a difference."""

    watched_queue: str = ""
    """A queue of which `Nodes.queue_use` is to count what it holds where."""


@runtime_checkable
class Outlook(Protocol):
    """What answers about nodes depend on besides the facts of nodes: the time, or measurements."""

    def outlook(self, session: "Session") -> Hashable:
        """As long as this stays equal, masks and scores hold. Asked once per session; it may ask to `look_again`."""


@runtime_checkable
class Victims(Protocol):
    """Which running tasks leave their nodes for nobody's sake in particular? Asked by shuffle."""

    def victims(self, session: "Session") -> "Sequence[Departure]":
        """Those of `session.running()` that should go. Plug-ins of a tier add up; the first tier with any decides."""

    def to_leave(self, session: "Session") -> int:
        """A number, from 0 up, that each look after which somebody leaves lowers, and nothing but news raises (`eviction/termination_measure.py`)."""


class Departure(NamedTuple):
    """A task that should leave its node, and why: a sentence for whoever owns it."""

    task: Task
    reason: str


@runtime_checkable
class NearScorer(Protocol):
    """How much nodes are liked for where they are in the network: asked anew for every run of tasks, and told of each of them."""

    weight: float

    def score_near(self, nodes: Nodes, tree: Tree, shape: Shape, venue: Venue | None) -> "Nearness | None":
        """What it adds; without a venue the pod has no wish to be close to others. None if all nodes are liked alike."""


class Nearness(Protocol):
    """How much nodes are liked for where they are, while pods are placed."""

    values: FloatArray
    """What is added, times the plug-in's weight.  # [node]"""

    def follow(self, rows: IdArray) -> IdArray:
        """Take note that amounts changed on these rows, and that the venue has settled them; the rows liked otherwise now."""


@runtime_checkable
class DomainScorer(Protocol):
    """Which of the domains of one tier is taken first."""

    def score_domains(self, nodes: Nodes, tree: Tree, request: Mapping[str, int], venue: Venue | None = None) -> Scores:
        """How much each domain is liked for pods that ask for this together.  # [domain]"""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def plugin(cls: P) -> P:
    """Declare the frozen dataclass below as a plug-in; its module's name, with dashes, is its name in configuration."""
    PLUGINS[cls.__module__.rpartition(".")[2].replace("_", "-")] = cls
    return cls


PLUGINS: dict[str, type] = {}
"""Every plug-in by its name; filled as `registry.py` imports the folder."""
