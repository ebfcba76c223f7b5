"""What waiting pods and gangs are told: Kubernetes' and Volcano's own sentences, which people and tools grep for.

PodGroups, and pods of a scheduler like `volcano`, are told in Volcano's words; pods of `default-scheduler` in kube-scheduler's.
"""

import re
from collections import Counter
from collections.abc import Callable

from hekla.placement.explain import TOO_MANY_PODS, Explanation
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.named_jobs import NamedJob
from hekla.placement.session import Failure
from hekla.placement.statement import Evict
from hekla.placement.topology.refusals import CloseExplanation

_IN_QUOTES = re.compile(r'(?:hypernode|and of|member) "([^"]+)"')
GANG_READY = "tasks in gang are ready to be scheduled"

_VOLCANOS = {TOO_MANY_PODS.sentence: "node(s) pod number exceeded"}
"""Where Volcano has another word for a refusal than kube-scheduler."""

_NAMES = {
    TaskStatus.PENDING: "Pending", TaskStatus.PIPELINED: "Pipelined", TaskStatus.ALLOCATED: "Allocated",
    TaskStatus.BINDING: "Binding", TaskStatus.BOUND: "Bound", TaskStatus.RUNNING: "Running",
    TaskStatus.RELEASING: "Releasing", TaskStatus.SUCCEEDED: "Succeeded", TaskStatus.FAILED: "Failed",
    TaskStatus.UNKNOWN: "Unknown",
}  # fmt: skip


def fit_error(job: Job, failure: Failure | None) -> str:
    """`pod group is not ready, 3 Pending, 3 minAvailable; Pending: 1 Schedulable, 2 Unschedulable. Origin reason is ...`."""
    counts = [f"{count} {_NAMES[status]}" for status in TaskStatus if (count := job.statuses[status])]
    told = ", ".join(sorted([*counts, f"{job.spec.min_available} minAvailable"]))
    sentence = f"pod group is not ready, {told}"
    pending = job.statuses[TaskStatus.PENDING]
    if not pending:
        return sentence
    placed = min(failure.placed if failure else 0, pending)
    split = Counter({"Schedulable": placed, "Unschedulable": pending - placed})
    sentence += "; Pending: " + ", ".join(sorted(f"{count} {name}" for name, count in split.items() if count))
    if failure is not None:
        sentence += f". Origin reason is {failure.task.spec.name}: {no_node(failure.explanation)}"
    return sentence


def no_node(explanation: Explanation) -> str:
    """Volcano's: `0/5 nodes are unavailable: 2 Insufficient cpu.`, in front of it the HyperNode where there was most room."""
    if not explanation.nodes and not isinstance(explanation, CloseExplanation):
        return "all nodes are unavailable"
    reasons = [(_VOLCANOS.get(refusal.sentence, refusal.sentence), count) for refusal, count in explanation.reasons]
    counted = ", ".join(sorted(f"{count} {said}" for said, count in reasons))
    if explanation.blocked is not None:
        counted = explanation.blocked.sentence  # told without a count
    told = f"{explanation.feasible}/{explanation.nodes} nodes are unavailable" + (f": {counted}." if counted else ".")
    if not isinstance(explanation, CloseExplanation):
        return told
    if not explanation.room or not explanation.reasons:
        return explanation.domains_sentence()
    return f"In hyperNode {explanation.room[0][0]}: {told} {explanation.domains_sentence()}"


def gang_unschedulable(job: Job, failure: Failure | None) -> str:
    """Volcano's message on a PodGroup: `3/4 tasks in gang unschedulable: pod group is not ready, ...`."""
    placed = failure.placed if failure else 0
    missing = max(job.spec.min_available - job.ready_count - job.statuses[TaskStatus.PIPELINED] - placed, 0)
    return f"{missing}/{len(job.tasks)} tasks in gang unschedulable: {fit_error(job, failure)}"


def fits_but_waits(task: Task, node: str) -> str:
    """Volcano's message on a pod that found a node while its gang did not find enough."""
    return f"Pod {task.key} can possibly be assigned to {node}, once minAvailable is satisfied"


def waits_for_room(task: Task, node: str) -> str:
    """Volcano's message on a pod that was promised room which others are leaving."""
    return f"Pod {task.key} can possibly be assigned to {node}, once resource is released and minAvailable is satisfied"


def job_told(job: Job) -> str:
    """A job as its user knows it: `ns/train`, though its gang is called after a Volcano Job's name and uid."""
    return job.told


def job_told_to(job: Job, may_see: Callable[[str], bool]) -> str:
    """The same, for somebody who may not know the jobs of all namespaces."""
    return NamedJob(job_told(job)).told_to(may_see)


def queue_missing(queue: str) -> str:
    """On a gang whose queue is not there."""
    return f'queue "{queue}" does not exist; create it, or name another in spec.queue'


def queue_invalid(queue: str, fault: str) -> str:
    """On a gang whose queue cannot be used."""
    return f'queue "{queue}" cannot be used: {fault}'


def queue_closed(queue: str, state: str) -> str:
    """On a gang whose queue takes no work."""
    return f'queue "{queue}" is {state} and takes no new work; open it, or name another in spec.queue'


def hypernodes_in(fault: str) -> list[str]:
    """The HyperNodes that a sentence about the tree names."""
    return _IN_QUOTES.findall(fault)


def evict_event(action: str) -> str:
    """Volcano's event on a pod that is evicted."""
    return f"Pod is evicted, because of {action}"


def evicted(evict: Evict) -> str:
    """The condition and the event of a pod that is evicted: by which action, from where, and for whom."""
    whom = (
        f" for {evict.preemptor.key}" if evict.preemptor is not None and evict.preemptor.key not in evict.reason else ""
    )
    return f"evicted from {evict.node} by {evict.action or 'the scheduler'}{whom}: {evict.reason}"


def not_evicted(evict: Evict, error: Exception) -> str:
    """On a pod that was to be evicted and stays."""
    whom = evict.preemptor.key if evict.preemptor is not None else "others"
    return f"was to make room on {evict.node} for {whom}, but cannot be deleted: {error}"


def nominated(node: str) -> str:
    """On a pod for which room is being made."""
    return f"waits for room on {node}, where pods are being evicted for it"
