"""Claims to devices: made for pods that have a template for one, and given up once the pods that use them have ended.

    spec.resourceClaims[].resourceClaimTemplateName  ->  a ResourceClaim that the pod controls
                                                     ->  its name in the pod's status.resourceClaimStatuses
    a pod that has its node without the scheduler    ->  put into the claim's status.reservedFor, once that has devices
    a pod in status.reservedFor that has ended       ->  taken out; after the last the devices are free again

The scheduler puts all other pods into `reservedFor` and says which devices a claim has. These caches may be later than it:
a pod that they do not show is given up only once the server says that it is gone.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.devices import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from hekla.api.meta import Document
from hekla.api.pod_scheduling import PodResourceClaim
from hekla.api.pods import Pod
from hekla.controlplane.owning import controller_reference
from hekla.controlplane.pod_state import has_ended, is_active, is_leaving
from hekla.dialects.device_allocation import FINALIZER, MOST_CONSUMERS, reserved_for
from hekla.dialects.pod_devices import claim_ids
from hekla.kube.commands import Command, Create, Delete, Event, Patch, RequeueAfter, SetStatus, Target, target_of
from hekla.kube.reconcile import World, reconciler

ENTRY = "resource.kubernetes.io/pod-claim-name"
"""The annotation by which a claim says for which of its pod's entries it was made."""

LONGEST_BASE = 57
"""Of a generated name: a hyphen and five random letters follow, and 63 characters are all."""

LOOK_AGAIN_S = 5.0
"""How often a pod that has its node already looks whether a claim that others share has devices by now."""


def _has_template(pod: Pod, world: World) -> bool:
    return any(entry.resource_claim_template_name for entry in pod.spec.resource_claims)


def _pods_of_template(template: ResourceClaimTemplate, world: World) -> Iterator[tuple[str, str]]:
    meta = template.metadata
    for pod in world.list(Pod, meta.namespace):
        if any(entry.resource_claim_template_name == meta.name for entry in pod.spec.resource_claims):
            yield meta.namespace, pod.metadata.name


@reconciler(
    Pod, owns=(ResourceClaim,), finds={ResourceClaimTemplate: _pods_of_template}, concerns=_has_template,
    name="resource-claim",
)  # fmt: skip
def reconcile_claims_of_pod(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Make the claims that a pod has by template, and write their names into its status."""
    if not is_active(pod):
        return
    namespace = pod.metadata.namespace
    known = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    made = {
        one.metadata.annotations.get(ENTRY, ""): one.metadata.name
        for one in world.owned(ResourceClaim, pod.metadata.uid) if one.metadata.deletion_timestamp is None
    }  # fmt: skip
    found = dict(known)
    for entry in pod.spec.resource_claims:
        name = known.get(entry.name)
        # an empty name: whoever wrote it found that this pod needs none
        if not entry.resource_claim_template_name or name == "":
            continue
        if name is not None and world.get(ResourceClaim, namespace, name) is not None:
            continue
        if entry.name in made:
            found[entry.name] = made[entry.name]
        else:
            yield _claim_for(pod, entry, world)
    if found != known:
        yield SetStatus(target_of(pod), {"resourceClaimStatuses": [_told(*one) for one in found.items()]})


def _told(entry: str, claim: str) -> Document:
    return {"name": entry, "resourceClaimName": claim} if claim else {"name": entry}


def _claim_for(pod: Pod, entry: PodResourceClaim, world: World) -> Command:
    wanted, namespace = entry.resource_claim_template_name, pod.metadata.namespace
    template = world.get(ResourceClaimTemplate, namespace, wanted)
    if template is None:
        missing = f'resource claim template "{wanted}": resourceclaimtemplate.resource.k8s.io "{wanted}" not found'
        return Event(
            target_of(pod), "FailedResourceClaimCreation", f"PodResourceClaim {entry.name}: {missing}", type="Warning"
        )
    given = template.spec.metadata
    metadata: Document = {
        "generateName": base_name(pod.metadata.name, entry.name),
        "namespace": namespace,
        "annotations": {**(given.get("annotations") or {}), ENTRY: entry.name},
        "ownerReferences": [controller_reference(pod)],
    }
    if labels := given.get("labels"):
        metadata["labels"] = labels
    info = ResourceClaim.kind_info
    document = {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": template.spec.spec}
    return Create(ResourceClaim, document)


def base_name(pod: str, entry: str) -> str:
    """What a claim's name begins with, as Kubernetes has it: both names are cut, in proportion, where they are too long."""
    whole = f"{pod}-{entry}-"
    if len(whole) <= LONGEST_BASE:
        return whole
    return f"{pod[: len(pod) * LONGEST_BASE // len(whole)]}-{entry[: len(entry) * LONGEST_BASE // len(whole)]}"


def _may_lack_a_claim(pod: Pod, world: World) -> bool:
    return bool(pod.spec.resource_claims and pod.spec.node_name) and is_active(pod)


@reconciler(Pod, reads=(ResourceClaim,), concerns=_may_lack_a_claim, name="resource-claim-bound-pods")
def reconcile_claims_of_bound_pod(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Put a pod that came with its node into the claims that it uses, or their devices are freed after the last who is there.

    No scheduler sees such a pod. Nobody allocates devices for it either, here as in Kubernetes: which the node has is not said.
    """
    if not _may_lack_a_claim(pod, world):
        return
    is_waiting = False
    for namespace, name in claim_ids(pod):
        claim = world.get(ResourceClaim, namespace, name)
        if claim is None or claim.status.allocation is None:
            is_waiting = True
        elif not reserved_for(claim, pod) and _may_use(pod, claim) and len(claim.status.reserved_for) < MOST_CONSUMERS:
            users = [_reference(one) for one in claim.status.reserved_for]
            own: Document = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
            patch = {"status": {"reservedFor": [*users, own]}}
            yield Patch(target_of(claim), patch, subresource="status", is_guarded=True)
    if is_waiting:
        yield RequeueAfter(LOOK_AGAIN_S)


def _may_use(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether it may use a claim: its own, or one that was made for no pod."""
    owner = next((one for one in claim.metadata.owner_references if one.controller), None)
    return owner is None or owner.kind != "Pod" or owner.uid == pod.metadata.uid


@reconciler(ResourceClaim, reads=(Pod,), wakes={Pod: claim_ids}, name="resource-claim-users")
def reconcile_users_of_claim(claim: ResourceClaim, world: World, now: datetime) -> Iterator[Command]:
    """Take out pods that have ended, free the devices after the last, and let a claim go that is in nobody's use."""
    meta, status = claim.metadata, claim.status
    users = [one for one in status.reserved_for if _is_using(one, meta.namespace, world)]
    is_free = not users and status.allocation is not None
    if is_free or len(users) != len(status.reserved_for):
        told: Document = {"reservedFor": [_reference(one) for one in users] or None}
        patch = {"status": told if users else {**told, "allocation": None}}
        unseen = tuple(_unseen(claim, world))
        yield Patch(target_of(claim), patch, subresource="status", is_guarded=True, provided_gone=unseen)
    elif users:
        return
    elif meta.deletion_timestamp is None:
        if _was_made_for_an_ended_pod(claim, world):
            yield Delete(target_of(claim), reason="the pod that it was made for has ended")
    elif FINALIZER in meta.finalizers:
        others = [one for one in meta.finalizers if one != FINALIZER]
        yield Patch(target_of(claim), {"metadata": {"finalizers": others or None}}, is_guarded=True)


def _unseen(claim: ResourceClaim, world: World) -> Iterator[Target]:
    """The pods that it is reserved for and that the caches do not show: gone, or not yet there."""
    namespace = claim.metadata.namespace
    for user in claim.status.reserved_for:
        if not _is_a_pod(user):
            continue
        pod = world.get(Pod, namespace, user.name)
        if pod is None or pod.metadata.uid != user.uid:
            yield Target(kind=Pod, name=user.name, namespace=namespace, uid=user.uid)


def _is_a_pod(user: ResourceClaimConsumerReference) -> bool:
    return user.resource == "pods" and not user.api_group


def _is_using(user: ResourceClaimConsumerReference, namespace: str, world: World) -> bool:
    if not _is_a_pod(user):
        return True  # somebody else's, who takes it out
    pod = world.get(Pod, namespace, user.name)
    return pod is not None and pod.metadata.uid == user.uid and not _needs_no_device(pod)


def _needs_no_device(pod: Pod) -> bool:
    """Whether it has ended, or will never start."""
    return has_ended(pod) or (is_leaving(pod) and not pod.spec.node_name)


def _was_made_for_an_ended_pod(claim: ResourceClaim, world: World) -> bool:
    """Once the pod is gone, garbage collection sees to it."""
    meta = claim.metadata
    owners = (one for one in meta.owner_references if one.controller and one.kind == "Pod")
    pods = ((one, world.get(Pod, meta.namespace, one.name)) for one in owners)
    return any(pod is not None and pod.metadata.uid == one.uid and _needs_no_device(pod) for one, pod in pods)


def _reference(user: ResourceClaimConsumerReference) -> Document:
    said = {"resource": user.resource, "name": user.name, "uid": user.uid}
    return {"apiGroup": user.api_group, **said} if user.api_group else said
