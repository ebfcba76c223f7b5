"""What becomes of an instance that lost a pod: told from pods alone, so that it survives the controller's death.

    broken     a pod that is not ready since it failed, or restarted; counted after `restartGracePeriodSeconds`, and of one that
               fails as soon as it is made, when it is YOUNGEST_S old. One that was ready again and then was not has recovered:
               what its probe says of a busy engine is no end of a container
    leaving    a pod that somebody deleted
    lost       a pod that is gone without a trace, while its siblings carry the mark of a whole that they were part of

Under RoleRecreate the instance is made anew, under ServingGroupRecreate the group, under None the pod.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hekla.api.core import Pod
from hekla.api.kthena import labels
from hekla.api.kthena.serving import RecoveryPolicy
from hekla.api.pods import ContainerStatus
from hekla.kube.commands import Patch, target_of
from hekla.kube.timestamps import parse_rfc3339
from hekla.lib.digits import whole_number
from hekla.serving.serving_names import WHOLE
from hekla.serving.serving_revision import Roles
from hekla.serving.serving_view import Group, Instance, ServingView, is_leaving, is_ready

YOUNGEST_S: Final = 10.0
"""How old a pod must be before it is made anew because it broke: an engine that fails at once was made anew four times a second,
without end. Until then its node starts it again in place, and its log can be read.
"""


LATE_S: Final = 2.0
"""How much later than a container's new start a node may say that its pod was not ready meanwhile; timestamps are whole seconds."""


@dataclass(frozen=True)
class Health:
    """What is wrong with an instance."""

    broken: tuple[Pod, ...] = ()
    """Pods whose patience is over."""
    is_lost: bool = False
    """Whether a pod is gone without a trace."""
    has_leaving: bool = False
    wait_s: float | None = None
    """When to look again at a pod that may recover; None: there is none."""

    @property
    def is_failing(self) -> bool:
        """Whether the instance cannot go on as it is."""
        return bool(self.broken) or self.is_lost or self.has_leaving

    @property
    def why(self) -> str:
        """In a word or two."""
        if self.broken:
            return f"pod {self.broken[0].metadata.name} failed"
        return "a pod was lost" if self.is_lost else "a pod was deleted"


def health(one: Instance, size: int, view: ServingView) -> Health:
    """Look at an instance."""
    grace_s = float(view.serving.spec.template.restart_grace_period_seconds or 0)
    waits = {pod.metadata.name: _patience_s(pod, grace_s, view.now) for pod in one.pods if is_broken(pod)}
    left = [wait_s for wait_s in waits.values() if wait_s > 0]
    return Health(
        broken=tuple(pod for pod in one.pods if waits.get(pod.metadata.name, 1.0) <= 0),
        is_lost=view.recovery is not RecoveryPolicy.NONE and not one.has_leaving and _has_lost(one, size),
        has_leaving=one.has_leaving,
        wait_s=min(left, default=None),
    )


def is_broken(pod: Pod) -> bool:
    """Whether a pod does not serve because a container of it ended; one that is ready again has recovered."""
    if is_ready(pod) or is_leaving(pod):
        return False
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    restarted = [one for one in statuses if one.restart_count > 0]
    has_restarted = pod.status.phase in ("Running", "Pending") and bool(restarted)
    return pod.status.phase == "Failed" or (has_restarted and not _was_ready_since(pod, restarted))


def _was_ready_since(pod: Pod, restarted: Sequence[ContainerStatus]) -> bool:
    """Whether a pod stopped being ready only after all its containers that ended had been started again."""
    unready = parse_rfc3339(
        next((one.last_transition_time for one in pod.status.conditions if one.type == "Ready"), None)
    )
    up = [parse_rfc3339(_up_since(one)) for one in restarted]
    if unready is None or not all(up):
        return False
    return all(since is not None and (unready - since).total_seconds() > LATE_S for since in up)


def _up_since(status: ContainerStatus) -> str | None:
    """When a container was started for the last time, or, one that is done, ended well; None: it is down."""
    state = status.state
    if state is not None and state.running is not None:
        return state.running.started_at
    done = state.terminated if state is not None else None
    return done.finished_at if done is not None and done.exit_code == 0 else None


def group_has_lost(group: Group, roles: Roles) -> bool:
    """Whether the group was whole with more than it has now, of what it should have."""
    marks = [found for pod in group.pods if (found := pod.metadata.annotations.get(WHOLE))]
    whole = dict(part.split("=", 1) for mark in marks[:1] for part in mark.split(",") if "=" in part)
    for role in roles:
        expected = min(role.replicas, whole_number(whole.get(role.name, "0")) or 0)
        if sum(1 for one in group.instances.get(role.name, ()) if len(one.pods) >= role.size) < expected:
            return True
    return False


def marks(group: Group, roles: Roles, view: ServingView) -> Iterator[Patch]:
    """Write on pods that nothing is missing, where the loss of one must be noticed."""
    if view.recovery is RecoveryPolicy.NONE or group.has_leaving:
        return
    by_group = view.recovery is RecoveryPolicy.GROUP
    counts = {role.name: len(group.instances.get(role.name, ())) for role in roles}
    is_whole = all(counts[role.name] >= role.replicas for role in roles)
    for role in roles:
        for one in group.instances.get(role.name, ()):
            if len(one.pods) != role.size or (by_group and not is_whole) or not (by_group or role.size > 1):
                continue
            mark = ",".join(f"{name}={count}" for name, count in counts.items()) if by_group else str(role.size)
            yield from _mark(one, mark)


def _mark(one: Instance, mark: str) -> Iterator[Patch]:
    entry = next((pod for pod in one.pods if labels.ENTRY in pod.metadata.labels), None)
    if entry is not None and entry.metadata.annotations.get(WHOLE) != mark:
        yield Patch(target_of(entry), {"metadata": {"annotations": {WHOLE: mark}}})


def _has_lost(one: Instance, size: int) -> bool:
    entry = next((pod for pod in one.pods if labels.ENTRY in pod.metadata.labels), None)
    if entry is None:
        return bool(one.pods)  # the entry is made first, so workers without one have lost it
    return len(one.pods) < size and WHOLE in entry.metadata.annotations


def _patience_s(pod: Pod, grace_s: float, now: datetime) -> float:
    """How long a broken pod may still recover; 0 or less: no longer."""
    since, made = _broken_since(pod), parse_rfc3339(pod.metadata.creation_timestamp)
    grown_up_s = YOUNGEST_S - (now - made).total_seconds() if made is not None else 0.0
    return max(grown_up_s, grace_s - (now - since).total_seconds() if since is not None else 0.0)


def _broken_since(pod: Pod) -> datetime | None:
    """When it first broke: its first container's end; of several ends, only when it stopped being ready is known."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    ends = [found for one in statuses for found in _ends(one)]
    if sum(one.restart_count for one in statuses) > 1:
        unready = [one.last_transition_time for one in pod.status.conditions if one.type == "Ready"]
        ends = [text for text in unready if text] or ends
    return parse_rfc3339(min(ends, default=pod.metadata.creation_timestamp))


def _ends(status: object) -> Iterator[str]:
    for state in (getattr(status, "state", None), getattr(status, "last_state", None)):
        ended = state.terminated if state is not None else None
        if ended is not None and ended.finished_at:
            yield ended.finished_at
