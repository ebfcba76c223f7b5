"""The status of a ModelServing: its groups counted, its revisions, its conditions.

Available           every group is ready
Progressing         some group is not
UpdateInProgress    some group is not, and more groups are of an old revision than the partition protects

One of them holds; the others, once they held, say what is the case instead. Kthena's words come first in what holds; why the API
server refuses what is missing follows, or what the scheduler says of a gang that waits, or how a container of it ended, so that
"why is my model not up?" is answered where it is asked.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hekla.api.kthena import labels
from hekla.api.kthena.serving import ModelServingStatus
from hekla.api.meta import Document
from hekla.api.volcano.topology import StrictCondition
from hekla.kube.commands import SetStatus, target_of
from hekla.kube.timestamps import rfc3339
from hekla.serving.serving_names import LEADER_READY, role_id
from hekla.serving.serving_plan import GroupPlan
from hekla.serving.serving_rollout import share
from hekla.serving.serving_troubles import troubles
from hekla.serving.serving_view import Group, ServingView

AVAILABLE, PROGRESSING, UPDATING = "Available", "Progressing", "UpdateInProgress"
REASONS = {AVAILABLE: "AllGroupsReady", PROGRESSING: "GroupProgressing", UPDATING: "GroupsUpdating"}
WAITING, REFUSED = "GroupsWaiting", "GroupsRefused"
"""The reasons in place of the others' where the scheduler has no room for a group, or the API server refuses what one needs."""
_IS_REFUSED = "; the API server refuses what is missing: "
MOST_WORDS = 8_192
"""Characters of a refusal that are told: a condition holds 32,768, and names the groups as well."""
ALL_READY = "All Serving groups are ready"


def set_status(view: ServingView, status: ModelServingStatus) -> Iterator[SetStatus]:
    """The command that writes the status, or none if it is written already."""
    before, after = (_written(one) for one in (view.serving.status, status))
    # the first time all of it, so that a count of 0 is shown as one
    if patch := _difference(before, after) if view.serving.status.observed_generation else after:
        yield SetStatus(target_of(view.serving), patch)


def status_of(view: ServingView, plans: Sequence[GroupPlan], refused: str = "") -> ModelServingStatus:
    """What is true now. `refused` is why the API server refused what is missing, if it did; else what was told of that stays
    until nothing is missing, so that it does not come and go with each try.
    """
    found = [one for one in plans if one.found is not None]
    ready = [at for at, one in enumerate(found) if _is_available(one)]
    staying = [at for at, one in enumerate(found) if not _is_going(one)]
    updated = [at for at in staying if _is_updated(view, found[at])]
    old = [at for at in staying if at not in updated]
    status = ModelServingStatus(
        observed_generation=view.serving.metadata.generation,
        replicas=len(found),
        available_replicas=len(ready),
        updated_replicas=len(updated),
        current_replicas=len(old),
        update_revision=view.revisions.update,
        current_revision=_current_revision(view, found, old, is_settled=_is_settled(view, found)),
        label_selector=label_selector(view),
        conditions=_conditions(
            view,
            [at for at in range(len(found)) if at not in ready],
            updated,
            old,
            len(staying),
            (refused[:MOST_WORDS] or refusal_told(view)) if lacks_pods(plans) else "",
        ),
    )
    is_over = status.updated_replicas == status.available_replicas == status.replicas == view.replicas
    if is_over and _partition(view) == 0:
        status = msgspec.structs.replace(status, current_replicas=status.updated_replicas)
    return status


def _is_settled(view: ServingView, found: Sequence[GroupPlan]) -> bool:
    """Whether all are ready, and the ordinals are those without a surge: as many ready ones with a gap are no end."""
    groups = [one.found for one in found if one.found is not None]
    instances = (
        ({one.ordinal for one in group.instances.get(role.name, ())}, role.replicas)
        for group in groups if view.is_by_role for role in view.roles
    )  # fmt: skip
    counted = [({group.ordinal for group in groups}, view.replicas), *instances]
    return all(map(_is_available, found)) and all(
        len(ordinals) >= count and ordinals.issuperset(range(count)) for ordinals, count in counted
    )


def label_selector(view: ServingView) -> str:
    """One pod of each group, so that whoever counts pods counts groups: the entry of the first role's first instance."""
    wanted = {labels.NAME: view.serving.metadata.name, labels.ENTRY: "true"}
    if view.roles:
        wanted |= {labels.ROLE: view.roles[0].name, labels.ROLE_ID: role_id(view.roles[0].name, 0)}
    return ",".join(f"{key}={wanted[key]}" for key in sorted(wanted))


def _is_going(one: GroupPlan) -> bool:
    return bool(one.removed) or (one.found is not None and one.found.is_leaving)


def _is_available(one: GroupPlan) -> bool:
    return one.found is not None and not _is_going(one) and one.found.is_ready(one.roles)


def _is_updated(view: ServingView, one: GroupPlan) -> bool:
    return one.found is not None and view.is_current(one.found)


def _current_revision(view: ServingView, found: Sequence[GroupPlan], old: Sequence[int], *, is_settled: bool) -> str:
    """The revision that groups are updated from: what the status says while any is of it, else what most are of.

    It moves on when nothing old is left; where a surge is allowed, when the last group is ready as well, because until
    then the groups above `replicas` are needed.
    """
    before, update = view.serving.status.current_revision, view.revisions.update
    if not old:
        may_surge = any(_surges(view))
        return before if before and may_surge and view.is_rolling and not is_settled else update
    names = Counter(_revision(view, one) for at, one in enumerate(found) if at in old)
    return before if names.get(before) else max(names, key=lambda name: (names[name], name))


def _revision(view: ServingView, one: GroupPlan) -> str:
    """The revision of an outdated group: in one that is updated role by role, that of what is still old."""
    assert one.found is not None
    instances = [some for found in one.found.instances.values() for some in found]
    old = [some.revision for some in instances if not view.is_current_instance(some)]
    return max(old, default=one.found.revision) if view.is_by_role else one.found.revision


def _surges(view: ServingView) -> Iterator[int]:
    strategy = view.serving.spec.rollout_strategy
    rolling = strategy.rolling_update_configuration if strategy is not None else None
    if rolling is not None and not view.is_by_role:
        yield share(rolling.max_surge, view.replicas, round_up=True)
    if view.is_by_role:
        yield from (share(role.document.get("maxSurge"), role.replicas, round_up=True) for role in view.roles)


def _partition(view: ServingView) -> int:
    strategy = view.serving.spec.rollout_strategy
    rolling = strategy.rolling_update_configuration if strategy is not None else None
    return share(rolling.partition, view.replicas, round_up=True) if rolling is not None else 0


@dataclass(frozen=True)
class _Held:
    """The condition that holds."""

    type: str
    reason: str
    message: str


def lacks_pods(plans: Sequence[GroupPlan]) -> bool:
    """Whether pods are to be made."""
    return any(plan.missing and not plan.removed for plan in plans)


def refusal_told(view: ServingView) -> str:
    """Why the API server refuses what is missing, as its conditions say; empty if they do not."""
    status = view.serving.status
    held = next((one for one in status.conditions if one.status == "True" and one.reason == REFUSED), None)
    is_of_this_spec = status.observed_generation == view.serving.metadata.generation
    return held.message.partition(_IS_REFUSED)[2] if held is not None and is_of_this_spec else ""


def _conditions(
    view: ServingView,
    progressing: Sequence[int],
    updated: Sequence[int],
    old: Sequence[int],
    staying: int,
    refused: str,
) -> list[StrictCondition]:
    """The condition that holds, and those that held before as false, in the order in which they first held."""
    held = _what_holds(view, progressing, updated, old, refused)
    before = {one.type: one for one in view.serving.status.conditions}
    known = before.get(held.type)
    if known is not None and (known.status, known.reason, known.message) == ("True", held.reason, held.message):
        return view.serving.status.conditions  # nothing is new; of what Kthena wrote beside it, not a word is changed
    # an update may have a group more than there are replicas; one that leaves is none of them
    ready, wanted = len(view.groups) - len(progressing), max(view.replicas, staying)
    counted = f"{ready} of {wanted} serving groups are ready"
    if ready >= wanted:
        counted += f"; {len(view.groups) - staying} more still to leave"
    return [_told(view, before.get(kind), kind, held, counted) for kind in dict.fromkeys([*before, held.type])]


def _what_holds(
    view: ServingView, progressing: Sequence[int], updated: Sequence[int], old: Sequence[int], refused: str
) -> _Held:
    if not progressing and len(view.groups) >= view.replicas:
        kept = f"; the partition keeps {len(old)} of them at an earlier revision: {_go_list(old)}" if old else ""
        is_done = len(old) <= _partition(view)
        return _Held(AVAILABLE, REASONS[AVAILABLE], ALL_READY + (kept if is_done else ""))
    message = f"Some groups is progressing: {_go_list(progressing)}"
    kind = PROGRESSING
    if len(old) > _partition(view):
        kind, message = UPDATING, f"{message}, Updated Groups are: {_go_list(updated)}"
    if refused:
        return _Held(kind, REFUSED, f"{message}{_IS_REFUSED}{refused}")
    waiting = list(_waiting(view.groups))
    troubles = waiting or list(_broken(view.groups)) or list(_leaders_awaited(view))
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return _Held(kind, WAITING if waiting else REASONS[kind], "; ".join([message, *troubles[:1]]) + more)


def _waiting(groups: Sequence[Group]) -> Iterator[str]:
    """What the scheduler says of each gang that it has no room for."""
    for group in groups:
        for one in group.pod_group.status.conditions if group.pod_group is not None else ():
            if (one.type, one.status) == ("Unschedulable", "True"):
                yield f"group {group.name} waits: {one.reason}: {one.message}"


def _broken(groups: Sequence[Group]) -> Iterator[str]:
    """How the containers ended of pods that do not serve for it."""
    for pod in (pod for group in groups for pod in group.pods):
        for one, how in troubles(pod):
            meta = pod.metadata
            command = f"hekla logs --previous -c {one.name} -n {meta.namespace} {meta.name}"
            yield f"pod {meta.name}: container {one.name} {how}: {command}"


def _leaders_awaited(view: ServingView) -> Iterator[str]:
    """Which workers are not made yet because their entry pod is not ready."""
    sizes = {role.name: role.size for role in view.roles if view.is_entry_first and role.size > 1}
    for one in (one for group in view.groups for some in group.instances.values() for one in some):
        if one.role in sizes and one.pods and not one.has_begun:
            yield f"the workers of {one.pods[0].metadata.name} are made when it is ready (startup policy {LEADER_READY})"


def _go_list(numbers: Sequence[int]) -> str:
    return f"[{' '.join(map(str, numbers))}]"


def _told(view: ServingView, before: StrictCondition | None, kind: str, held: _Held, counted: str) -> StrictCondition:
    reason, message = (held.reason, held.message) if kind == held.type else _instead(kind, held, counted)
    status = "True" if kind == held.type else "False"
    since = before.last_transition_time if before is not None and before.status == status else rfc3339(view.now)
    return StrictCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def _instead(kind: str, held: _Held, counted: str) -> tuple[str, str]:
    """Why a condition does not hold (any more)."""
    if kind == AVAILABLE:
        return "GroupsNotReady", counted
    if held.type == AVAILABLE:
        return held.reason, held.message
    if kind == PROGRESSING:
        return held.reason, "an update is in progress"
    return "UpdateOver", "no group is of an older revision than it should be"


def _written(status: ModelServingStatus) -> Document:
    document: Document = msgspec.to_builtins(status)
    document["conditions"] = [
        {key: value for key, value in one.items() if value not in (None, "")} for one in document["conditions"]
    ]
    return document


def _difference(before: Document, after: Document) -> dict[str, Any]:
    return {key: value for key, value in after.items() if value != before.get(key)}
