"""Reconciles Sandboxes: one pod with its volume claims and Service, until it is suspended or its time is over.

A pod is a Sandbox's by its owner reference and by nothing else. More than one: none is chosen, and nothing is deleted. One of
the same name that is somebody else's: neither taken nor deleted. `sandbox_pod.py` has the documents, `sandbox_status.py` what is said.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from hekla.api.agents import Sandbox, SandboxWarmPool, names
from hekla.api.agents.sandbox import OperatingMode, ShutdownPolicy
from hekla.api.core import Service
from hekla.api.meta import Document, Resource
from hekla.api.nodes import RuntimeClass
from hekla.api.pods import Pod
from hekla.api.scheduling import PriorityClass
from hekla.api.storage import PersistentVolumeClaim
from hekla.kube.commands import Command, Create, Delete, Event, Patch, RequeueAfter, SetStatus, Target, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339
from hekla.sandbox.late_environment import cannot_have_it
from hekla.sandbox.observing import find, is_true
from hekla.sandbox.owning import controller_of, is_controlled_by, name_hash, owner_reference
from hekla.sandbox.sandbox_pod import claim_name, is_protected, metadata_patch, pod_document, pod_name
from hekla.sandbox.sandbox_service import service_document, service_patch
from hekla.sandbox.sandbox_status import (
    MULTIPLE_PODS,
    Found,
    expired_status,
    is_ready,
    is_told_expired,
    refused_status,
    sandbox_status,
    way_it_made,
)

EVICTED = "Evicted"
"""The reason of the event about a pod that made way for other work."""
SETTLING_S = 1.0
"""A Sandbox younger than this tells only where it has arrived, not each step on the way: four writes become one."""
SESSION_STATUS_S = 0.5
"""How long the status of a session's Sandbox may wait: its session goes by its node, and a hundred of them at once are in each other's way."""

GIVES_WAY_S, UNPROTECTED_S = 1.0, 0.5
"""How long a session's Sandbox waits to be looked at while sessions of this process are being made: to decide about a hundred cold ones
again and again was an eighth of the event loop's time. One that was just taken from a pool waits less: until its pod has been told so, an
idle pod is what it is to the scheduler, which may preempt it. To tell each at once was a third of what a claim of three hundred took."""


def _gives_way_s(sandbox: Sandbox, world: World) -> float:
    """A session goes by its pod: while that lives, what its Sandbox still has to say keeps nobody waiting."""
    if names.SESSION_ID not in sandbox.metadata.labels or sandbox.spec.shutdown_time:
        return 0.0
    if sandbox.spec.operating_mode != OperatingMode.RUNNING:
        return 0.0
    for pod in world.owned(Pod, sandbox.metadata.uid):
        if pod.status.phase in ("", "Pending", "Running") and pod.metadata.deletion_timestamp is None:
            return GIVES_WAY_S if is_protected(sandbox, pod) else UNPROTECTED_S
    return 0.0


@dataclass
class _Look:
    """What was found, and what stands in the way."""

    found: Found = field(default_factory=Found)
    commands: list[Command] = field(default_factory=list)


def tell_refusal(sandbox: Sandbox, refused: Command, why: str, world: World, now: datetime) -> Iterator[Command]:
    """Say why it is not ready. Of a full quota once: its numbers change with each that comes and goes."""
    if any(is_ready(pod) for pod in world.owned(Pod, sandbox.metadata.uid)):
        return  # it has what it needs, whatever else was refused
    if status := refused_status(sandbox, why, now):
        yield SetStatus(target_of(sandbox), status)


@reconciler(
    Sandbox, owns=(Pod, Service, PersistentVolumeClaim), reads=(RuntimeClass, PriorityClass),
    gives_way_s=_gives_way_s, when_refused=tell_refusal,
)  # fmt: skip
def reconcile_sandbox(sandbox: Sandbox, world: World, now: datetime) -> Iterator[Command]:
    """Bring one Sandbox a step closer."""
    if sandbox.metadata.deletion_timestamp is not None:
        return
    ends_at = parse_rfc3339(sandbox.spec.shutdown_time)
    if ends_at is not None and now >= ends_at:
        yield from _end(sandbox, world, now)
        return
    look = _Look()
    _look_at_claims(sandbox, world, look)
    _look_at_pod(sandbox, world, look)
    if not look.found.is_ambiguous:
        _look_at_service(sandbox, world, look)
    yield from look.commands
    yield from _tell(sandbox, look.found, now)
    if ends_at is not None:
        yield RequeueAfter((ends_at - now).total_seconds())


def _tell(sandbox: Sandbox, found: Found, now: datetime) -> Iterator[Command]:
    status = sandbox_status(sandbox, found, now)
    if not status:
        return
    made_at = parse_rfc3339(sandbox.metadata.creation_timestamp)
    age_s = (now - made_at).total_seconds() if made_at is not None else SETTLING_S
    is_on_its_way = found.is_on_its_way and not sandbox.status.conditions
    if is_on_its_way and 0 <= age_s < SETTLING_S:
        yield RequeueAfter(SETTLING_S)
        return
    if found.is_ambiguous and _reason(sandbox) != MULTIPLE_PODS:
        yield Event(target_of(sandbox), MULTIPLE_PODS, found.trouble, type="Warning")
    if found.owns_pod and (why := way_it_made(found.pod)) and is_true(sandbox.status.conditions, "Ready"):
        yield from _tell_eviction(sandbox, why)
    is_of_session = names.SESSION_ID in sandbox.metadata.labels
    yield SetStatus(target_of(sandbox), status, can_wait_s=SESSION_STATUS_S if is_of_session else 0.0)


def _tell_eviction(sandbox: Sandbox, why: str) -> Iterator[Command]:
    """Once, as its status says it is not ready from then on: on the Sandbox, and on the pool that it waits in."""
    meta, owner = sandbox.metadata, controller_of(sandbox)
    yield Event(
        target_of(sandbox), EVICTED, f"its pod is sent away ({why}); another is made and waits for room", type="Warning"
    )
    if owner is not None and owner.kind == SandboxWarmPool.kind_info.kind:
        message = f"Sandbox {meta.name} waits for room again, its pod was sent away: {why}"
        pool = Target(kind=SandboxWarmPool, name=owner.name, namespace=meta.namespace, uid=owner.uid)
        yield Event(pool, EVICTED, message, type="Warning")


def _reason(sandbox: Sandbox) -> str:
    ready = find(sandbox.status.conditions, "Ready")
    return "" if ready is None else ready.reason


def _end(sandbox: Sandbox, world: World, now: datetime) -> Iterator[Command]:
    """Say it first, then take away what it owns: whoever watches sees why the pod went."""
    if not is_told_expired(sandbox):
        yield SetStatus(target_of(sandbox), expired_status(sandbox, now))
        return
    for pod in world.owned(Pod, sandbox.metadata.uid):
        if pod.metadata.deletion_timestamp is None:
            yield Delete(target_of(pod), reason="its Sandbox's time is over")
    for service in world.owned(Service, sandbox.metadata.uid):
        yield Delete(target_of(service), reason="its Sandbox's time is over")
    if sandbox.spec.shutdown_policy == ShutdownPolicy.DELETE:
        yield Delete(target_of(sandbox), reason="its time is over, and shutdownPolicy is Delete")


def _look_at_claims(sandbox: Sandbox, world: World, look: _Look) -> None:
    meta = sandbox.metadata
    for template in sandbox.spec.volume_claim_templates:
        name = claim_name(template.metadata.name, sandbox)
        there = world.get(PersistentVolumeClaim, meta.namespace, name)
        if there is not None:
            _take(there, sandbox, look)
            continue
        metadata = {
            "name": name,
            "namespace": meta.namespace,
            "labels": {**template.metadata.labels, names.SANDBOX_NAME_HASH: name_hash(meta.name)},
            "annotations": dict(template.metadata.annotations),
            "ownerReferences": [owner_reference(sandbox)],
        }
        document = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template.spec}
        look.commands.append(Create(PersistentVolumeClaim, document, is_told_of_when_refused=True))


def _look_at_pod(sandbox: Sandbox, world: World, look: _Look) -> None:
    meta = sandbox.metadata
    owned = world.owned(Pod, meta.uid)
    if len(owned) > 1:
        look.found.is_ambiguous = True
        look.found.trouble = (
            f"{len(owned)} pods are controlled by this Sandbox, and one is not chosen over another: "
            + (f"delete all but one of {', '.join(pod.metadata.name for pod in owned)}")
        )
        return
    pod = owned[0] if owned else world.get(Pod, meta.namespace, pod_name(sandbox))
    tracked = meta.annotations.get(names.POD_NAME)
    is_suspended = sandbox.spec.operating_mode == OperatingMode.SUSPENDED
    if tracked and (pod is None or pod.metadata.name != tracked or is_suspended):
        look.commands.append(Patch(target_of(sandbox), {"metadata": {"annotations": {names.POD_NAME: None}}}))
    look.found.pod = pod
    if is_suspended:
        _suspend(pod, sandbox, look)
    elif pod is None:
        has_runtime = world.get(RuntimeClass, "", names.RUNTIME_CLASS) is not None
        has_idle_class = world.get(PriorityClass, "", names.IDLE_PRIORITY_CLASS) is not None
        document = pod_document(sandbox, has_runtime=has_runtime, has_idle_class=has_idle_class)
        look.commands.append(Create(Pod, document, is_told_of_when_refused=True))
    elif pod.metadata.deletion_timestamp is None and _take(pod, sandbox, look):
        if cannot_have_it(sandbox, pod):
            reason = "it runs a command that began without its claim's environment; it is made anew with it"
            look.commands.append(Delete(target_of(pod), reason=reason))
        elif patch := metadata_patch(pod, sandbox):
            look.commands.append(Patch(target_of(pod), {"metadata": patch}))
    look.found.owns_pod = pod is not None and is_controlled_by(pod, sandbox)


def _suspend(pod: Pod | None, sandbox: Sandbox, look: _Look) -> None:
    if pod is not None and is_controlled_by(pod, sandbox) and pod.metadata.deletion_timestamp is None:
        look.commands.append(Delete(target_of(pod), reason="its Sandbox is suspended"))


def _take(there: Resource, sandbox: Sandbox, look: _Look) -> bool:
    """Whether an object is the Sandbox's or may become it; a stranger's is trouble."""
    if is_controlled_by(there, sandbox):
        return True
    kind, name = there.kind_info.kind, there.metadata.name
    if (owner := controller_of(there)) is not None:
        look.found.trouble = (
            f'{kind} "{name}" is owned by {owner.kind}/{owner.name} (UID: {owner.uid}), '
            f'not by sandbox "{sandbox.metadata.name}"; rename the Sandbox, or delete the {kind}'
        )
        return False
    labels = there.metadata.labels
    if labels.get(names.ADOPTABLE) != "true" and labels.get(names.SANDBOX_NAME_HASH) != name_hash(
        sandbox.metadata.name
    ):
        look.found.trouble = (
            f'cannot adopt unowned {kind} "{name}": label it {names.ADOPTABLE}=true to allow that, or delete it'
        )
        return False
    adoption: Document = {"metadata": {"ownerReferences": [owner_reference(sandbox)]}}
    look.commands.append(Patch(target_of(there), adoption, is_guarded=True))
    return True


def _look_at_service(sandbox: Sandbox, world: World, look: _Look) -> None:
    there = world.get(Service, sandbox.metadata.namespace, sandbox.metadata.name)
    wanted = sandbox.spec.service
    if there is None:
        if wanted:
            look.commands.append(Create(Service, service_document(sandbox), is_told_of_when_refused=True))
            look.found.has_service = True
        return
    is_ours = is_controlled_by(there, sandbox)
    if wanted is False:
        if is_ours:
            look.commands.append(Delete(target_of(there), reason="spec.service is false"))
        return
    if controller_of(there) is None and wanted is None:
        return
    if not _take(there, sandbox, look):
        return
    look.found.has_service = True
    if patch := service_patch(there, sandbox):
        look.commands.append(Patch(target_of(there), patch))
