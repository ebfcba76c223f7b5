"""What a failed pod means to its Job: counted, ignored, or the end of everything, as podFailurePolicy says.

Also how long to wait before the next try: 10 s after the first failure in a row, doubling up to 10 minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from hekla.api.batch import PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule
from hekla.api.pods import Pod
from hekla.controlplane.pod_state import condition
from hekla.kube.timestamps import parse_rfc3339

FIRST_BACKOFF_S = 10.0
LONGEST_BACKOFF_S = 600.0


class PodFailureVerdict(StrEnum):
    """What to do about a failed pod."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_JOB = "FailJob"
    FAIL_INDEX = "FailIndex"


@dataclass(frozen=True)
class Judged:
    """A verdict and the sentence that explains it."""

    verdict: PodFailureVerdict
    message: str = ""


def judge(pod: Pod, policy: PodFailurePolicy | None) -> Judged:
    """What the policy says about a failed pod: the first rule that matches decides."""
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        why = _matches(pod, rule)
        if why:
            return Judged(PodFailureVerdict(rule.action), f"{why} matching {rule.action} rule at index {number}")
    return Judged(PodFailureVerdict.COUNT)


def _matches(pod: Pod, rule: PodFailurePolicyRule) -> str:
    if rule.on_exit_codes is not None:
        return _exit_code(pod, rule.on_exit_codes)
    for pattern in rule.on_pod_conditions:
        found = condition(pod, pattern.type)
        if found is not None and found.status == (pattern.status or "True"):
            return f"Pod {pod.metadata.namespace}/{pod.metadata.name} has condition {pattern.type}"
    return ""


def _exit_code(pod: Pod, wanted: PodFailurePolicyOnExitCodesRequirement) -> str:
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = status.state.terminated if status.state else None
        if ended is None or ended.exit_code == 0 or (wanted.container_name and status.name != wanted.container_name):
            continue
        if (ended.exit_code in wanted.values) == (wanted.operator == "In"):
            return (
                f"Container {status.name} for pod {pod.metadata.namespace}/{pod.metadata.name} "
                f"failed with exit code {ended.exit_code}"
            )
    return ""


def ended_at(pod: Pod) -> datetime | None:
    """When the last of its containers ended."""
    ends = [
        parse_rfc3339(status.state.terminated.finished_at)
        for status in pod.status.container_statuses
        if status.state and status.state.terminated
    ]
    known = [end for end in ends if end is not None]
    if known:
        return max(known)
    ready = condition(pod, "Ready")
    return parse_rfc3339((ready.last_transition_time if ready else None) or pod.metadata.deletion_timestamp)


def backoff_left_s(pods: Sequence[Pod], now: datetime) -> float:
    """Seconds until the next pod may be made, from the failures since the last success."""
    ends = sorted((end, pod.status.phase == "Failed") for pod in pods if (end := ended_at(pod)) is not None)
    in_a_row, last = 0, None
    for end, has_failed in ends:
        in_a_row = in_a_row + 1 if has_failed else 0
        last = end
    if not in_a_row or last is None:
        return 0.0
    wait_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(in_a_row - 1, 16))
    return max(0.0, (last + timedelta(seconds=wait_s) - now).total_seconds())
