"""What the PodGroup of a plain workload looks like: the minimum, the queue, the room it needs, how close its pods must be.

`plain_groups.py` decides whether there is to be one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from hekla.api.core import Namespace
from hekla.api.meta import Document, Resource
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Command, Create, Event, Patch, target_of
from hekla.kube.reconcile import World
from hekla.lib import quantity
from hekla.lib.digits import whole_number
from hekla.lib.quantity import Quantity, QuantityError
from hekla.workloads import keys
from hekla.workloads.job_status import merge_patch
from hekla.workloads.plain_gang import inherited
from hekla.workloads.template_request import request_of

_FROM_PODS = (
    keys.PREEMPTABLE, keys.COOLDOWN_TIME, keys.REVOCABLE_ZONE, keys.JDB_MIN_AVAILABLE, keys.JDB_MAX_UNAVAILABLE,
    keys.RUNNING_ESTIMATE,
)  # fmt: skip
_FOLLOWED = ("minMember", "minResources", "priorityClassName", "queue", "networkTopology")


@dataclass(frozen=True, kw_only=True)
class GroupWish:
    """What a workload asks of its group."""

    min_member: int
    min_resources: Mapping[str, str]
    queue: str
    """Empty for the namespace's."""

    priority_class: str
    topology: Document | None
    annotations: Mapping[str, str]
    faults: tuple[str, ...] = ()
    """What in it could not be read, or cannot be, in sentences."""

    def alone(self, why: str) -> "GroupWish":
        """The same with pods that start one by one, in a queue that has room for all."""
        return replace(self, min_member=1, faults=(*self.faults, *([why] if why else [])))


def wish_of(notes: Mapping[str, str], template: Document, most: int | None) -> GroupWish:
    """What annotations of an owner, and a pod's template, ask for; `most` is how many pods there are to be.

    The minimum follows the workload down: a gang of more pods than will ever be made could not start.
    """
    spec, metadata = template.get("spec", {}), template.get("metadata") or {}
    of_pod: Mapping[str, str] = metadata.get("annotations") or {}
    both = {**of_pod, **{key: notes[key] for key in (keys.GROUP_MIN_MEMBER, keys.GROUP_MIN_RESOURCES) if key in notes}}
    faults: list[str] = []
    minimum = _minimum(both, faults)
    if most is not None:
        minimum = max(1, min(minimum, most))
    labels = metadata.get("labels") or {}
    taken = {key: said for key in _FROM_PODS if (said := of_pod.get(key) or labels.get(key))}
    return GroupWish(
        min_member=minimum, min_resources=_room(both, faults) or _times(request_of(spec), minimum),
        queue=of_pod.get(keys.QUEUE_OF_POD, ""), priority_class=spec.get("priorityClassName") or "",
        topology=_topology(of_pod, faults), annotations={**taken, **inherited(notes)}, faults=tuple(faults),
    )  # fmt: skip


def ensure_group(
    world: World, group: PodGroup | None, name: str, owner: Document, namespace: str, wish: GroupWish, *, told: Resource,
    default_queue: str,
) -> Iterator[Command]:  # fmt: skip
    """Create the group, or bring it up to date; say what of the wish cannot be."""
    spec = _spec(world, namespace, wish, default_queue)
    faults = [Event(target_of(told), "PodGroupAnnotation", fault, "Warning") for fault in wish.faults]
    if group is None:
        yield from faults
        yield Create(PodGroup, _document(name, owner, namespace, wish, spec), is_announced=True)
        return
    change: Document = {}
    if patch := merge_patch(_followed(msgspec.to_builtins(group.spec)), _followed(spec)):
        change["spec"] = patch
    there = group.metadata.annotations
    if notes := {key: value for key, value in wish.annotations.items() if there.get(key) != value}:
        change["metadata"] = {"annotations": notes}
    if change:
        yield from faults
        yield Patch(target_of(group), change)


def is_owned_by(group: PodGroup, uid: str) -> bool:
    """Whether the group was made for this object."""
    return any(owner.controller and owner.uid == uid for owner in group.metadata.owner_references)


def owner_reference(owner: Resource) -> Document:
    """How a group names what it was made for."""
    info, meta = owner.kind_info, owner.metadata
    return {
        "apiVersion": info.api_version, "kind": info.kind, "name": meta.name, "uid": meta.uid, "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip


def _document(name: str, owner: Document, namespace: str, wish: GroupWish, spec: Document) -> Document:
    return {
        "apiVersion": PodGroup.kind_info.api_version,
        "kind": PodGroup.kind_info.kind,
        "metadata": {
            "name": name, "namespace": namespace, "annotations": dict(wish.annotations), "ownerReferences": [owner],
        },
        "spec": spec,
    }  # fmt: skip


def _spec(world: World, namespace: str, wish: GroupWish, default_queue: str) -> Document:
    spec: Document = {
        "minMember": wish.min_member,
        "queue": wish.queue or _queue_of(world.get(Namespace, "", namespace)) or default_queue,
        "minResources": dict(wish.min_resources),
    }
    if wish.priority_class:
        spec["priorityClassName"] = wish.priority_class
    if wish.topology is not None:
        spec["networkTopology"] = wish.topology
    return spec


def _queue_of(namespace: Namespace | None) -> str:
    return namespace.metadata.annotations.get(keys.QUEUE_OF_POD, "") if namespace is not None else ""


def _minimum(notes: Mapping[str, str], faults: list[str]) -> int:
    text = notes.get(keys.GROUP_MIN_MEMBER, "1")
    number = whole_number(text)
    if number is not None and 0 < number < 2**31:
        return number
    faults.append(
        f"annotation {keys.GROUP_MIN_MEMBER} is {text!r}, which is no whole number above 0; the gang's minimum is 1"
    )
    return 1


def _room(notes: Mapping[str, str], faults: list[str]) -> dict[str, str]:
    """The room that the group's queue must have, as JSON: `{"cpu": "8"}`; empty if nobody says."""
    text = notes.get(keys.GROUP_MIN_RESOURCES)
    if not text:
        return {}
    try:
        room = msgspec.json.decode(text, type=dict[str, str | int])
        return {name: str(quantity.parse(room[name])) for name in sorted(room)}
    except (msgspec.DecodeError, QuantityError):
        faults.append(
            f"annotation {keys.GROUP_MIN_RESOURCES} is {text!r}; write quantities by resource as JSON, like "
            '{"cpu": "8", "memory": "32Gi"}; what the pods ask for counts instead'
        )
        return {}


def _times(request: Mapping[str, Quantity], count: int) -> dict[str, str]:
    return {name: str(Quantity(Fraction(request[name].value * count), request[name].form)) for name in sorted(request)}


def _topology(notes: Mapping[str, str], faults: list[str]) -> Document | None:
    """How close the pods must be; a mode that nobody knows is hard, as in Volcano."""
    mode, tier = notes.get(keys.TOPOLOGY_MODE), notes.get(keys.TOPOLOGY_TIER)
    if mode is None and tier is None:
        return None
    wanted: Document = {"mode": mode if mode in ("hard", "soft") else "hard"}
    number = whole_number(tier or "")
    if number is not None:
        wanted["highestTierAllowed"] = number
    elif tier is not None:
        faults.append(f"annotation {keys.TOPOLOGY_TIER} is {tier!r}, which is no tier; tiers are numbers from 0 on")
    return wanted


def _followed(spec: Document) -> Document:
    """The part of the spec that follows the workload."""
    kept = {name: spec[name] for name in _FOLLOWED if spec.get(name) not in (None, "", {})}
    if topology := kept.get("networkTopology"):
        kept["networkTopology"] = {name: value for name, value in topology.items() if value not in (None, "")}
    return kept
