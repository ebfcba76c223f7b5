"""The PodGroup of a serving group: its gang as the scheduler sees it, kept like the ModelServing while that changes.

minMember        pods of the instances that must start together: minRoleReplicas of each role, all if it says nothing
subGroupPolicy   by role: an instance is placed whole, so many of them at first, as close as rolePolicy wants
"""

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from hekla.api.kthena import ModelServing, labels
from hekla.api.meta import Document
from hekla.api.pods import PodSpec
from hekla.api.volcano import PodGroup
from hekla.api.volcano.batch import NetworkTopology
from hekla.dialects.pod_requests import Amounts, amounts, pod_request
from hekla.kube.commands import Command, Create, Patch, target_of
from hekla.lib import quantity
from hekla.lib.quantity import QuantityError
from hekla.serving.serving_names import SHAPE, owner_reference, starts_leaders_first
from hekla.serving.serving_revision import Roles, RoleTemplate, normal
from hekla.serving.serving_view import Group

DEFAULT_QUEUE = "default"


def ensure_group(serving: ModelServing, name: str, found: Group | None, wanted: Document) -> Iterator[Command]:
    """Create the gang of a group, or bring it up to date."""
    group = found.pod_group if found is not None else None
    if group is None:
        yield Create(PodGroup, _document(serving, name, wanted))
        return
    patch = _difference(group, wanted)
    if patch:
        annotations = {SHAPE: _shape(wanted)}
        yield Patch(target_of(group), {"metadata": {"annotations": annotations}, "spec": patch})


def group_spec(serving: ModelServing, roles: Roles) -> Document:
    """What the gang asks for."""
    template = serving.spec.template
    topology = template.network_topology
    spec: Document = {
        "minMember": sum(_start_size(serving, role) * _least(serving, role) for role in roles),
        "minResources": min_resources(serving, roles),
        "queue": serving.metadata.annotations.get(labels.QUEUE_NAME) or DEFAULT_QUEUE,
        "subGroupPolicy": [_sub_group(serving, role) for role in roles],
    }
    if topology is not None and topology.group_policy is not None:
        spec["networkTopology"] = _topology(topology.group_policy)
    return spec


def min_resources(serving: ModelServing, roles: Roles) -> dict[str, str]:
    """What the instances that must start together ask for: limits without requests and init containers are counted."""
    total: Amounts = {}
    for role in roles:
        count = _least(serving, role)
        for key, times in (("entryTemplate", count), ("workerTemplate", count * role.workers)):
            spec = (role.document.get(key) or {}).get("spec") or {}
            for name, value in _request(spec).items() if times else ():
                total[name] = total.get(name, 0) + value * times
    return {name: _written(name, total[name]) for name in sorted(total)}


def _least(serving: ModelServing, role: RoleTemplate) -> int:
    policy = serving.spec.template.gang_policy
    least = (policy.min_role_replicas or {}).get(role.name) if policy is not None else None
    return role.replicas if least is None else min(least, role.replicas)


def _start_size(serving: ModelServing, role: RoleTemplate) -> int:
    """Pods of an instance that start together. A gang that waited for workers would have no entry pod get ready, and so none;
    room for all of them is asked for all the same (`minResources`).
    """
    return 1 if starts_leaders_first(serving) else role.size


def _sub_group(serving: ModelServing, role: RoleTemplate) -> Document:
    wanted: Document = {
        "name": role.name,
        "labelSelector": {"matchLabels": {labels.NAME: serving.metadata.name, labels.ROLE: role.name}},
        "matchLabelKeys": [labels.ROLE_ID],
        "subGroupSize": _start_size(serving, role),
        "minSubGroups": _least(serving, role),
    }
    topology = serving.spec.template.network_topology
    if topology is not None and topology.role_policy is not None:
        wanted["networkTopology"] = _topology(topology.role_policy)
    return wanted


def _topology(wish: NetworkTopology) -> Document:
    wanted: Document = {"mode": wish.mode}
    if wish.highest_tier_allowed is not None:
        wanted["highestTierAllowed"] = wish.highest_tier_allowed
    if wish.highest_tier_name:
        wanted["highestTierName"] = wish.highest_tier_name
    return wanted


def _document(serving: ModelServing, name: str, spec: Document) -> Document:
    kind = PodGroup.kind_info
    metadata = {
        "name": name,
        "namespace": serving.metadata.namespace,
        "labels": {labels.NAME: serving.metadata.name, labels.GROUP_NAME: name},
        "annotations": {labels.POD_GROUP_NAME: name, SHAPE: _shape(spec)},
        "ownerReferences": [owner_reference(serving)],
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def _difference(group: PodGroup, wanted: Document) -> Document:
    """What of the gang must change. Amounts are compared by what they mean: `2048Mi` is no change of `2Gi`."""
    found: Document = msgspec.to_builtins(group.spec)
    patch: Document = {key: wanted[key] for key in ("minMember", "queue") if found.get(key) != wanted[key]}
    if _meaning(found.get("minResources") or {}) != _meaning(wanted["minResources"]):
        gone = dict.fromkeys((found.get("minResources") or {}).keys() - wanted["minResources"].keys())
        patch["minResources"] = {**gone, **wanted["minResources"]}
    before, topology = group.spec.network_topology, wanted.get("networkTopology")
    if (_topology(before) if before is not None else None) != topology:
        # null first: a merge would leave the tier by number beside the one by name
        patch["networkTopology"] = topology and {"highestTierAllowed": None, "highestTierName": None, **topology}
    keeps_shape = group.metadata.annotations.get(SHAPE) == _shape(wanted)
    if not keeps_shape and _sub_groups(group) != wanted["subGroupPolicy"]:
        patch["subGroupPolicy"] = wanted["subGroupPolicy"]
    return patch


def _sub_groups(group: PodGroup) -> list[Document]:
    return [
        {
            "name": one.name,
            "labelSelector": {"matchLabels": dict(one.label_selector.match_labels) if one.label_selector else {}},
            "matchLabelKeys": list(one.match_label_keys),
            "subGroupSize": one.sub_group_size,
            "minSubGroups": one.min_sub_groups,
            **({"networkTopology": _topology(one.network_topology)} if one.network_topology is not None else {}),
        }
        for one in group.spec.sub_group_policy
    ]


def _shape(spec: Document) -> str:
    return hashlib.sha256(msgspec.json.encode(spec["subGroupPolicy"], order="deterministic")).hexdigest()[:16]


def _request(spec: Document) -> Amounts:
    try:
        return pod_request(msgspec.convert(normal(spec), PodSpec))
    except (msgspec.ValidationError, QuantityError):
        return {}  # no pod can be made of it either, and the API server says why


def _meaning(quantities: Mapping[str, str]) -> Amounts:
    try:
        return {name: value for name, value in amounts(quantities).items() if value}
    except QuantityError:
        return {"": 0}


def _written(name: str, value: int) -> str:
    if name == "cpu":
        return quantity.from_milli(value)
    if name == "memory" or name == "ephemeral-storage" or name.startswith("hugepages-"):
        return quantity.from_bytes(value)
    return str(value)
