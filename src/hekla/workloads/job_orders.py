"""What is ordered of a job at this moment: by a Command, by a delayed action that is due, or by a policy.

Commands go first. Of several events the first one whose policy says something decides; others that call for the same kind
of partial restart join it, so that pods that fell together are restarted together and cost one retry.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hekla.api.core import Pod
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.bus import Action
from hekla.api.volcano.bus import Command as Order
from hekla.kube.commands import Command, Delete, Event, RequeueAfter, target_of
from hekla.workloads.job_delays import Notes, delays, remember
from hekla.workloads.job_events import Happening, happenings
from hekla.workloads.job_lifecycle import ALIVE, TRIGGER_OF, Trigger, expects
from hekla.workloads.job_policies import PolicyAnswer, answer_to
from hekla.workloads.job_view import JobView, task_of

PARTIAL = frozenset({Action.RESTART_TASK, Action.RESTART_POD, Action.RESTART_PARTITION})
"""Actions that leave the rest of the job running."""


@dataclass(frozen=True)
class Ordered:
    """The action to take, what it is about, and what to do besides."""

    action: Action = Action.SYNC_JOB
    causes: tuple[Happening, ...] = ()
    chores: tuple[Command, ...] = field(default=())
    """Commands to delete, notes to write."""

    @property
    def trigger(self) -> Trigger | None:
        """What the action means to the job's life; None if it only looks after it."""
        return TRIGGER_OF.get(self.action)

    @property
    def is_partial(self) -> bool:
        """Whether only some pods are meant."""
        return self.action in PARTIAL

    @property
    def why(self) -> str:
        """What called for the action, in a sentence; the first three causes of many."""
        return "; ".join(cause.told for cause in self.causes[:3])

    def targets(self, view: JobView) -> list[Pod]:
        """The pods that a partial restart kills."""
        return [
            pod for pod in view.pods if not view.is_leaving(pod) and any(self._hits(pod, one) for one in self.causes)
        ]

    def fallen(self, view: JobView) -> list[Pod]:
        """Pods that called for a partial restart and are on their way out by somebody else's hand.

        Unless their deaths are told to belong to this restart, they call for another one until their nodes let them go.
        """
        named = {cause.pod for cause in self.causes} if self.is_partial else set()
        return [pod for pod in view.pods if pod.metadata.name in named and view.is_leaving(pod)]

    def _hits(self, pod: Pod, cause: Happening) -> bool:
        if self.action is Action.RESTART_POD:
            return pod.metadata.name == cause.pod
        if self.action is Action.RESTART_TASK:
            return task_of(pod) == cause.task
        return task_of(pod) == cause.task and pod.metadata.labels.get("volcano.sh/partition-id", "") == cause.partition


def ordered(view: JobView) -> Ordered:
    """What is to be done now."""
    if view.orders and view.phase is not Phase.RESTARTING:
        # A restart lasts a moment and takes no orders; the Command waits until it is over.
        return _by_command(view, view.orders[0])
    if view.phase not in ALIVE or view.phase is Phase.RESTARTING:
        return Ordered()
    return _by_policy(view)


def _by_command(view: JobView, order: Order) -> Ordered:
    """Delete the Command before acting, so that it is carried out at most once."""
    told = f"Start to execute command {order.action}, and clean it up to make sure executed not more than once."
    chores = (Delete(target_of(order), reason="taken"), Event(target_of(view.job), "CommandIssued", told))
    known = order.action in set(Action)
    return Ordered(Action(order.action) if known else Action.SYNC_JOB, (), chores)


def _by_policy(view: JobView) -> Ordered:
    now, later = _answers(view)
    waiting = delays(view, later)
    moving = [(cause, answer) for cause, answer in (*waiting.due, *now) if _moves(view, cause, answer.action)]
    chores = tuple(remember(view, waiting.waiting if not moving else _unaffected(waiting.waiting, moving[0][1].action)))
    if not moving:
        look_again = () if waiting.next_in is None else (RequeueAfter(max(0.1, waiting.next_in.total_seconds())),)
        return Ordered(chores=chores + look_again)
    action = moving[0][1].action
    causes = tuple(cause for cause, answer in moving if answer.action is action)
    return Ordered(action, causes, chores)


def _answers(view: JobView) -> tuple[list[tuple[Happening, PolicyAnswer]], list[tuple[Happening, PolicyAnswer]]]:
    """What policies say to what happened: at once, and after a while."""
    now, later = [], []
    for happening in happenings(view):
        answer = answer_to(view.job.spec, happening)
        if answer.delay:
            later.append((happening, answer))
        elif answer.action is not Action.SYNC_JOB:
            now.append((happening, answer))
    return now, later


def _unaffected(waiting: Notes, action: Action) -> Notes:
    """Notes that outlive an action: a restart of the whole job settles all, a partial one those of other kinds."""
    return {key: note for key, note in waiting.items() if action in PARTIAL and note.action is not action}


def _moves(view: JobView, cause: Happening, action: Action) -> bool:
    """Whether an action means anything now. What befell the gang as a whole names no task that could be restarted alone."""
    if action in PARTIAL and not cause.task:
        return False
    trigger = TRIGGER_OF.get(action)
    return trigger is not None and expects(view.phase, trigger)


def announce(view: JobView, order: Ordered) -> Iterator[Command]:
    """Tell that an action is carried out, in Volcano's words."""
    if order.trigger is not None:
        yield Event(target_of(view.job), "ExecuteAction", f"Start to execute action {order.action} ")
