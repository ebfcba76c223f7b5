"""What objects say about being evicted: who may be, for whose sake, when at the earliest, and what it would cost.

Volcano's annotations stand on the pod or, where it has none, on its labels of the same name. As there, a duration that
nobody can read counts as none, and a truth value that nobody can read is no.
"""

from collections.abc import Mapping
from typing import Any

from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.api.selectors import LabelSelector
from hekla.dialects.node_terms import label_requirements
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.timestamps import seconds
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.placement.budgets import DisruptionBudget
from hekla.placement.constraint import PodSelector

PREEMPTABLE_KEY = "volcano.sh/preemptable"
COOLDOWN_KEY = "volcano.sh/cooldown-time"
MINIMUM_RUN_KEY = "hekla.dev/minimum-run-time"
"""For so long after it started a pod is not evicted: a duration like `30m`."""

CHECKPOINT_KEY = "hekla.dev/checkpointed-at"
"""When a pod last saved its work, written by the pod's own program: a time like `2026-11-21T20:00:00Z`."""

YES = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""What Go's ParseBool takes."""

_NOWHERE: dict[str, Any] = {"nominated": "", "scheduled_at": None, "started": None}


def course(pod: Pod) -> dict[str, Any]:
    """What a pod's status says of its way so far, as the fields of a task."""
    status = pod.status
    if not pod.spec.node_name:
        return {**_NOWHERE, "nominated": status.nominated_node_name} if status.nominated_node_name else _NOWHERE
    at: str | None = ""
    for condition in status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            at = condition.last_transition_time
    return {
        "nominated": status.nominated_node_name,
        "scheduled_at": seconds(at) if at else None,
        "started": seconds(status.start_time) if status.start_time else None,
    }


def terms(pod: Pod, around: Surroundings) -> dict[str, Any]:
    """What a pod says about evictions, as the fields of a task: what is as usual is left out, for most say nothing."""
    found: dict[str, Any] = {}
    spec, annotations, labels = pod.spec, pod.metadata.annotations, pod.metadata.labels
    if never_preempts(pod, around):
        found["preemption_never"] = True
    if spec.termination_grace_period_seconds is not None:
        found["grace_s"] = float(spec.termination_grace_period_seconds)
    if (said := annotations.get(PREEMPTABLE_KEY) or labels.get(PREEMPTABLE_KEY)) and said not in YES:
        found["is_preemptable"] = False
    if said := annotations.get(COOLDOWN_KEY) or labels.get(COOLDOWN_KEY):
        found["cooldown_s"] = _duration_s(said)
    if said := annotations.get(MINIMUM_RUN_KEY):
        found["min_run_s"] = _duration_s(said) or 0.0
    if said := annotations.get(CHECKPOINT_KEY):
        found["checkpointed"] = seconds(said) or None
    return found


def never_preempts(pod: Pod, around: Surroundings) -> bool:
    """Whether nobody is evicted for its sake, by its own word, else by that of its priority class."""
    # Admission copies the word of the class, where there is admission.
    return (pod.spec.preemption_policy or around.preemption_policy(pod.spec.priority_class_name)) == "Never"


def group_is_preemptable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool | None:
    """What a PodGroup says of its pods; None if nothing."""
    said = annotations.get(PREEMPTABLE_KEY) or labels.get(PREEMPTABLE_KEY)
    return said in YES if said else None


def budget_of(budget: PodDisruptionBudget) -> DisruptionBudget:
    """A PodDisruptionBudget. One whose selector cannot be understood selects nobody, as the eviction call has it."""
    meta = budget.metadata
    # Without its controller's word on this version of it nobody may go.
    is_told = budget.status.observed_generation >= (meta.generation or 0)
    return DisruptionBudget(
        name=meta.name, namespace=meta.namespace, selector=_selector(budget.spec.selector, meta.namespace),
        allowed=max(budget.status.disruptions_allowed, 0) if is_told else 0, revision=meta.resource_version,
    )  # fmt: skip


def _duration_s(text: str) -> float | None:
    try:
        return max(parse_duration(text).total_seconds(), 0.0)
    except (DurationError, OverflowError):
        return None


def _selector(selector: LabelSelector | None, namespace: str) -> PodSelector:
    try:
        if selector is not None:
            return PodSelector(label_requirements(selector), frozenset((namespace,)))
    except ValueError:
        pass
    return PodSelector(matches_nothing=True)
