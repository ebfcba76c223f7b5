"""Claims to devices: made for pods that have a template for one, and given up once the pods that use them have ended.

    spec.resourceClaims[].resourceClaimTemplateName  ->  a ResourceClaim that the pod controls
                                                     ->  its name in the pod's status.resourceClaimStatuses
    a pod in status.reservedFor that has ended       ->  taken out; after the last the devices are free again

The scheduler puts pods into `reservedFor` and says which devices a claim has. In one process both read the same caches, so
that a pod it has put there is known here; a scheduler elsewhere is a binding and a round trip later than these caches.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.devices import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from hekla.api.meta import Document
from hekla.api.pod_scheduling import PodResourceClaim
from hekla.api.pods import Pod
from hekla.controlplane.owning import controller_reference
from hekla.controlplane.pod_state import has_ended, is_active, is_leaving
from hekla.dialects.device_allocation import FINALIZER
from hekla.kube.commands import Command, Create, Delete, Event, Patch, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler

ENTRY = "resource.kubernetes.io/pod-claim-name"
"""The annotation by which a claim says for which of its pod's entries it was made."""

LONGEST_BASE = 57
"""Of a generated name: a hyphen and five random letters follow, and 63 characters are all."""


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


def _claims_of(pod: Pod) -> Iterator[tuple[str, str]]:
    """The claims that a pod uses, as far as they are known."""
    namespace = pod.metadata.namespace
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name:
            yield namespace, entry.resource_claim_name
    for made in pod.status.resource_claim_statuses:
        if made.resource_claim_name:
            yield namespace, made.resource_claim_name


@reconciler(ResourceClaim, reads=(Pod,), wakes={Pod: _claims_of}, name="resource-claim-users")
def reconcile_users_of_claim(claim: ResourceClaim, world: World, now: datetime) -> Iterator[Command]:
    """Take out pods that have ended, free the devices after the last, and let a claim go that is in nobody's use."""
    meta, status = claim.metadata, claim.status
    users = [one for one in status.reserved_for if _is_using(one, meta.namespace, world)]
    is_free = not users and status.allocation is not None
    if is_free or len(users) != len(status.reserved_for):
        told: Document = {"reservedFor": [_reference(one) for one in users] or None}
        patch = {"status": told if users else {**told, "allocation": None}}
        yield Patch(target_of(claim), patch, subresource="status", is_guarded=True)
    elif users:
        return
    elif meta.deletion_timestamp is None:
        if _was_made_for_an_ended_pod(claim, world):
            yield Delete(target_of(claim), reason="the pod that it was made for has ended")
    elif FINALIZER in meta.finalizers:
        others = [one for one in meta.finalizers if one != FINALIZER]
        yield Patch(target_of(claim), {"metadata": {"finalizers": others or None}}, is_guarded=True)


def _is_using(user: ResourceClaimConsumerReference, namespace: str, world: World) -> bool:
    if user.api_group or user.resource != "pods":
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
