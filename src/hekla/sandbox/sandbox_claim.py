"""Reconciles SandboxClaims: each takes one Sandbox out of its pool, and never lets go of the one it chose.

Who chooses what needs no talk (`pool_members.py`). The choice is written into the claim first and into the Sandbox then, both
guarded by their revisions; a conflict is tried again with the same Sandbox. So no Sandbox serves two claims, whichever caches are stale.
Variables that a claim brings follow it into a Sandbox that runs already (`late_environment.py`).
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from hekla.api.agents import Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, names
from hekla.api.agents.sandbox import ShutdownPolicy
from hekla.api.meta import Document
from hekla.api.nodes import RuntimeClass
from hekla.kube.commands import Command, Create, Delete, Patch, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339
from hekla.sandbox.blueprint import sandbox_document
from hekla.sandbox.claim_request import RefusedError, check_metadata, wanted_blueprint
from hekla.sandbox.late_environment import with_environment
from hekla.sandbox.observing import Observation, as_documents, conditions, find
from hekla.sandbox.owning import controller_of, owner_reference
from hekla.sandbox.pool_members import (
    candidates,
    has_hope,
    is_expired,
    is_for,
    may_take,
    may_wait_in_line,
    rank,
    source_of,
    template_in,
)
from hekla.sandbox.sandbox_status import EXPIRED

CLAIM_EXPIRED = "ClaimExpired"
GRACE_STEP_S = 0.5
"""How often a claim looks whether a Sandbox of its pool has an address by now."""


@dataclass(frozen=True)
class _Told:
    """What is to be said of a claim."""

    sandbox: Sandbox | None = None
    ready: Observation | None = None
    """Instead of what the Sandbox says."""


Decision = Generator[Command, None, _Told]
"""Commands, and in the end what to say."""


def _of_pool(pool: SandboxWarmPool, world: World) -> Iterator[tuple[str, str]]:
    for claim in world.list(SandboxClaim, pool.metadata.namespace):
        if is_for(claim, pool) and not claim.status.sandbox.name:
            yield claim.metadata.namespace, claim.metadata.name


def _of_template(template: SandboxTemplate, world: World) -> Iterator[tuple[str, str]]:
    meta = template.metadata
    for pool in world.list(SandboxWarmPool, meta.namespace):
        if pool.spec.template_ref.name == meta.name:
            yield from _of_pool(pool, world)
    for claim in world.list(SandboxClaim, meta.namespace):
        if template_in(claim.spec.warm_pool_ref.name) == meta.name and not claim.status.sandbox.name:
            yield claim.metadata.namespace, claim.metadata.name


def _of_candidate(sandbox: Sandbox, world: World) -> Iterator[tuple[str, str]]:
    """Claims that wait for the pool of a Sandbox that can be taken from now on."""
    owner = controller_of(sandbox)
    if owner is None or owner.kind != SandboxWarmPool.kind_info.kind or not sandbox.status.pod_ips:
        return
    pool = world.get(SandboxWarmPool, sandbox.metadata.namespace, owner.name)
    if pool is not None:
        yield from _of_pool(pool, world)


@reconciler(
    SandboxClaim,
    owns=(Sandbox,),
    reads=(RuntimeClass,),
    finds={SandboxWarmPool: _of_pool, SandboxTemplate: _of_template, Sandbox: _of_candidate},
)
def reconcile_sandbox_claim(claim: SandboxClaim, world: World, now: datetime) -> Iterator[Command]:
    """Bring one claim a step closer."""
    if claim.metadata.deletion_timestamp is not None:
        return
    ends_at = _ends_at(claim)
    if ends_at is not None and now >= ends_at:
        yield from _end(claim, world, now)
        return
    told = yield from _sandbox_of(claim, world, now)
    yield from _tell(claim, told, now)
    if ends_at is not None:
        yield RequeueAfter((ends_at - now).total_seconds())


def _ends_at(claim: SandboxClaim) -> datetime | None:
    """The earlier of its shutdown time, and its end plus the time it stays after it."""
    lifecycle = claim.spec.lifecycle
    if lifecycle is None:
        return None
    moments = [parse_rfc3339(lifecycle.shutdown_time)]
    finished = find(claim.status.conditions, "Finished")
    if lifecycle.ttl_seconds_after_finished is not None and finished is not None and finished.status == "True":
        over_at = parse_rfc3339(finished.last_transition_time)
        moments.append(over_at + timedelta(seconds=lifecycle.ttl_seconds_after_finished) if over_at else None)
    return min((one for one in moments if one is not None), default=None)


def _end(claim: SandboxClaim, world: World, now: datetime) -> Iterator[Command]:
    """Say it first; then the Sandbox goes, and the claim as its policy says."""
    ready = find(claim.status.conditions, "Ready")
    if ready is None or ready.reason != CLAIM_EXPIRED:
        over = Observation("Ready", False, CLAIM_EXPIRED, "Claim expired. Sandbox cleanup initiated.")
        yield from _write(claim, _kept(claim, over, now), {})
        return
    policy = claim.spec.lifecycle.shutdown_policy if claim.spec.lifecycle is not None else ShutdownPolicy.RETAIN
    if policy == ShutdownPolicy.DELETE_FOREGROUND:
        yield Delete(target_of(claim), reason="its time is over", propagation="Foreground")
    elif policy == ShutdownPolicy.DELETE:
        yield Delete(target_of(claim), reason="its time is over")
    else:
        for sandbox in world.owned(Sandbox, claim.metadata.uid):
            if sandbox.metadata.deletion_timestamp is None:
                yield Delete(target_of(sandbox), reason="its claim's time is over")


def _kept(claim: SandboxClaim, ready: Observation, now: datetime) -> list[Document]:
    kept = [one for one in as_documents(claim.status.conditions) if one["type"] == "Finished"]
    return conditions(claim.status.conditions, [ready], claim.metadata.generation, now) + kept


# ---- which Sandbox


def _sandbox_of(claim: SandboxClaim, world: World, now: datetime) -> Decision:
    """The claim's Sandbox, after the commands that get it one; and what to say of it."""
    meta = claim.metadata
    owned = [one for one in world.owned(Sandbox, meta.uid) if one.metadata.deletion_timestamp is None]
    assigned = meta.annotations.get(names.ASSIGNED_SANDBOX)
    if owned:
        mine = next((one for one in owned if one.metadata.name == assigned), owned[0])
        return _Told(mine)
    if assigned:
        chosen = world.get(Sandbox, meta.namespace, assigned)
        if chosen is not None and may_take(chosen, claim, world):
            yield _adoption(chosen, claim)
            return _Told(ready=_not_yet(f'Sandbox "{assigned}" is being taken'))
        # somebody else's by now, or gone: only then may another one be chosen
        yield Patch(target_of(claim), {"metadata": {"annotations": {names.ASSIGNED_SANDBOX: None}}}, is_guarded=True)
        message = f'Sandbox "{assigned}" is not there for this claim any more; another one is looked for'
        return _Told(ready=Observation("Ready", False, "AdoptionConflict", message))
    try:
        return (yield from _choose(claim, world, now))
    except RefusedError as refused:
        return _Told(ready=Observation("Ready", False, refused.reason, refused.message))


def _choose(claim: SandboxClaim, world: World, now: datetime) -> Decision:
    meta = claim.metadata
    check_metadata(claim)
    source = source_of(claim, world)
    template = world.get(SandboxTemplate, meta.namespace, source.template)
    if template is None:
        raise RefusedError("TemplateNotFound", f'SandboxTemplate "{source.template}" not found')
    blueprint = wanted_blueprint(claim, template)
    has_runtime = world.get(RuntimeClass, "", names.RUNTIME_CLASS) is not None
    if may_wait_in_line(claim, template, has_runtime=has_runtime):
        waiting = candidates(source, world)
        place = rank(claim, source, template, world, has_runtime=has_runtime) if waiting else 0
        if place < len(waiting):
            chosen = waiting[place]
            assignment = {"metadata": {"annotations": {names.ASSIGNED_SANDBOX: chosen.metadata.name}}}
            yield Patch(target_of(claim), assignment, is_guarded=True)
            yield _adoption(chosen, claim)
            return _Told(ready=_not_yet(f'Sandbox "{chosen.metadata.name}" is being taken'))
        if has_hope(claim, source, world, now):
            yield RequeueAfter(GRACE_STEP_S)
            return _Told(ready=_not_yet("A Sandbox of the pool is about to have an address"))
    there = world.get(Sandbox, meta.namespace, meta.name)
    if there is not None:
        message = f'Sandbox "{meta.name}" is somebody else\'s; name the claim otherwise, or delete the Sandbox'
        return _Told(ready=Observation("Ready", False, "AdoptionConflict", message))
    yield Create(Sandbox, _cold(claim, template, blueprint), is_told_of_when_refused=True)
    return _Told(ready=_not_yet("Sandbox does not exist", "SandboxMissing"))


def _not_yet(message: str, reason: str = "SandboxNotReady") -> Observation:
    return Observation("Ready", False, reason, message)


def _adoption(sandbox: Sandbox, claim: SandboxClaim) -> Patch:
    """The Sandbox becomes the claim's; what the claim says of the pod goes into its template."""
    wanted = claim.spec.additional_pod_metadata
    metadata: Document = {
        "labels": {
            names.WARM_POOL: None,
            names.CLAIM_UID: claim.metadata.uid,
            names.LAUNCH_TYPE: "warm",
            names.CREATED_BY: claim.metadata.labels.get(names.CREATED_BY),
        },
        "ownerReferences": [owner_reference(claim)],
    }
    patch: Document = {"metadata": metadata}
    added = {"labels": wanted.labels, "annotations": wanted.annotations}
    template: Document = {}
    if told := {key: value for key, value in added.items() if value}:
        template["metadata"] = told
    if claim.spec.env:
        template["spec"] = {"containers": with_environment(sandbox, claim)}
    if template:
        patch["spec"] = {"podTemplate": template}
    return Patch(target_of(sandbox), patch, is_guarded=True)


def _cold(claim: SandboxClaim, template: SandboxTemplate, blueprint: Document) -> Document:
    meta = claim.metadata
    labels = {names.CLAIM_UID: meta.uid, names.LAUNCH_TYPE: "cold"}
    if made_by := meta.labels.get(names.CREATED_BY):
        labels[names.CREATED_BY] = made_by
    return sandbox_document(template, claim, {"name": meta.name, "labels": labels}, blueprint=blueprint)


# ---- what is said


def _tell(claim: SandboxClaim, told: _Told, now: datetime) -> Iterator[Command]:
    sandbox = told.sandbox
    ready = told.ready or _ready_of(sandbox, claim)
    observed = [ready]
    finished = find(sandbox.status.conditions, "Finished") if sandbox is not None else None
    if finished is not None:
        observed.append(Observation("Finished", finished.status == "True", finished.reason, finished.message))
    if told.ready is not None and told.ready.reason == "SandboxNotReady" and not claim.status.conditions:
        return  # on its way: the first thing said is where it has arrived
    claimed: Document = {"name": sandbox.metadata.name, "podIPs": sandbox.status.pod_ips} if sandbox is not None else {}
    yield from _write(claim, conditions(claim.status.conditions, observed, claim.metadata.generation, now), claimed)


def _ready_of(sandbox: Sandbox | None, claim: SandboxClaim) -> Observation:
    if sandbox is None:
        return Observation("Ready", False, "SandboxMissing", "Sandbox does not exist")
    if is_expired(sandbox):
        message = "Underlying Sandbox resource has expired independently of the Claim."
        return Observation("Ready", False, EXPIRED, message)
    ready = find(sandbox.status.conditions, "Ready")
    if ready is None:
        return Observation("Ready", False, "SandboxNotReady", "Sandbox is not ready")
    if claim.spec.env and (ready.observed_generation or 0) < sandbox.metadata.generation:
        # what it says is of before the claim, whose variables it may not have yet
        return _not_yet("Sandbox is being given the claim's environment")
    return Observation("Ready", ready.status == "True", ready.reason, ready.message)


def _write(claim: SandboxClaim, told: list[Document], claimed: Document) -> Iterator[Command]:
    before = claim.status
    patch: Document = {}
    if as_documents(before.conditions) != told:
        patch["conditions"] = told
    if msgspec.to_builtins(before.sandbox) != {"name": "", "podIPs": [], **claimed}:
        patch["sandbox"] = {"name": claimed.get("name"), "podIPs": claimed.get("podIPs") or None}
    if patch:
        yield SetStatus(target_of(claim), patch)
