"""What a resource claim's status says once its pod has a node: the devices, their configuration, where and by whom it is used.

The scheduler writes it before it binds the pod (`scheduler/device_claims.py`); the node's drivers prepare devices by it.
"""

from collections.abc import Iterable, Sequence
from itertools import product

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceClaimConsumerReference
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.dialects.surroundings import Surroundings
from hekla.placement.constraint import NodeTerm, Requirement
from hekla.placement.devices.claims import Grant

MOST_CONSUMERS = 256
"""Pods that may use one claim, as Kubernetes has it."""

FINALIZER = "resource.kubernetes.io/delete-protection"


def reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim says already that a pod uses it."""
    return any(one.uid == pod.metadata.uid for one in claim.status.reserved_for)


def agrees(claim: ResourceClaim, grants: Sequence[Grant]) -> bool:
    """Whether a claim has these devices by its status, or none yet."""
    allocation = claim.status.allocation
    if allocation is None:
        return True
    told = {(one.driver, one.pool, one.device) for one in allocation.devices.results}
    return told == {tuple(grant.device) for grant in grants}


def finalizer_patch(claim: ResourceClaim) -> Document | None:
    """A merge patch that keeps the claim while it has devices; None if it is kept already."""
    meta = claim.metadata
    if FINALIZER in meta.finalizers:
        return None
    return {"metadata": {"resourceVersion": meta.resource_version, "finalizers": [*meta.finalizers, FINALIZER]}}


def status_patch(
    claim: ResourceClaim, pod: Pod, grants: Sequence[Grant], reach: Iterable[tuple[NodeTerm, ...]], around: Surroundings
) -> Document:
    """A merge patch of the status, void if the claim has changed since: what it has, if it had nothing, and one more user.

    `reach` is, for each device that not all nodes reach, the terms of the nodes that do.
    """
    users, meta = [_user(one) for one in claim.status.reserved_for], pod.metadata
    status: Document = {"reservedFor": [*users, {"resource": "pods", "name": meta.name, "uid": meta.uid}]}
    if claim.status.allocation is None:
        status["allocation"] = _allocation(claim, grants, reach, around)
    return {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}


def unreserved_patch(claim: ResourceClaim, pod: Pod) -> Document:
    """A merge patch of the status, void if the claim has changed since: one user less, and no devices after the last."""
    users = [_user(one) for one in claim.status.reserved_for if one.uid != pod.metadata.uid]
    status: Document = {"reservedFor": users} if users else {"reservedFor": None, "allocation": None}
    return {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}


def unguarded_patch(claim: ResourceClaim) -> Document | None:
    """A merge patch that lets a claim without devices go; None if nothing of ours keeps it."""
    meta = claim.metadata
    if claim.status.allocation is not None or FINALIZER not in meta.finalizers:
        return None
    others = [one for one in meta.finalizers if one != FINALIZER]
    return {"metadata": {"resourceVersion": meta.resource_version, "finalizers": others}}


def _user(one: ResourceClaimConsumerReference) -> Document:
    user = {"resource": one.resource, "name": one.name, "uid": one.uid}
    return {"apiGroup": one.api_group, **user} if one.api_group else user


def _allocation(
    claim: ResourceClaim, grants: Sequence[Grant], reach: Iterable[tuple[NodeTerm, ...]], around: Surroundings
) -> Document:
    devices: Document = {"results": [_result(grant) for grant in grants]}
    if config := list(_config(claim, grants, around)):
        devices["config"] = config
    allocation: Document = {"devices": devices}
    if terms := _together(reach):
        allocation["nodeSelector"] = {"nodeSelectorTerms": [_term(term) for term in terms]}
    return allocation


def _result(grant: Grant) -> Document:
    one = grant.device
    result = {"request": grant.label, "driver": one.driver, "pool": one.pool, "device": one.name}
    return {**result, "adminAccess": True} if grant.is_admin else result


def _config(claim: ResourceClaim, grants: Sequence[Grant], around: Surroundings) -> Iterable[Document]:
    """How devices are to be set up: what their classes say, then what the claim says."""
    labels = list(dict.fromkeys(grant.label for grant in grants))
    for label in labels:
        known = _class_of(claim, label, around)
        for config in known.spec.config if known is not None else ():
            yield {"source": "FromClass", "requests": [label], **config}
    for config in claim.spec.devices.config:
        wanted = config.get("requests") or []
        if not wanted or any(label in wanted or label.partition("/")[0] in wanted for label in labels):
            yield {"source": "FromClaim", **config}


def _class_of(claim: ResourceClaim, label: str, around: Surroundings) -> DeviceClass | None:
    name, _, choice = label.partition("/")
    for request in claim.spec.devices.requests:
        if request.name == name:
            asked = request.exactly or next((one for one in request.first_available if one.name == choice), None)
            return around.device_class(asked.device_class_name) if asked is not None else None
    return None


def _together(reach: Iterable[tuple[NodeTerm, ...]]) -> list[NodeTerm]:
    """Terms of which one holds on the nodes that reach all devices; none if all nodes do."""
    several = list(dict.fromkeys(reach))
    if not several:
        return []
    return [
        NodeTerm(
            labels=tuple(dict.fromkeys(one for term in terms for one in term.labels)),
            names=tuple(dict.fromkeys(one for term in terms for one in term.names)),
        )
        for terms in product(*several)
    ]


def _term(term: NodeTerm) -> Document:
    told = {"matchExpressions": _requirements(term.labels), "matchFields": _requirements(term.names)}
    return {key: value for key, value in told.items() if value}


def _requirements(requirements: Iterable[Requirement]) -> list[Document]:
    return [
        {"key": one.key, "operator": str(one.operator), **({"values": list(one.values)} if one.values else {})}
        for one in requirements
    ]
