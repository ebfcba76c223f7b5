"""Reconciles SandboxWarmPools: keeps as many Sandboxes waiting as `spec.replicas` says, and never more in the making.

Those that leave count until they are gone, so that a slow end cannot swell a pool. A member that does not get ready in time is
replaced; one that no node has room for is kept, for another would find no room either. Who decides `spec.replicas` is
`pools/`, an HPA, or a person.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.agents import Sandbox, SandboxTemplate, SandboxWarmPool, names
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Delete, Event, Patch, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339
from hekla.sandbox.blueprint import allows_the_same, blueprint_hash, sandbox_document
from hekla.sandbox.observing import find, is_true
from hekla.sandbox.owning import controller_of, name_hash, owner_reference

READY_WITHIN_S = 300.0
"""A member that is not ready after this long is replaced, unless it waits for room."""

REST_S = 0.3
"""Between two rounds: what three hundred that are taken at once leave to be made is made in few. What makes a new one costs ten times
what hands one out, and took its turn before it."""

GIVES_WAY_S = 1.5
"""How long a pool waits with its next round while sessions of this process are being made: who takes three hundred at once would
otherwise stand behind the first seventy-five that replace them."""

MOSTLY_FULL, QUIET_S = 0.75, 0.25
"""Of a pool so much of which waits, what was taken is replaced when nobody has come for so long: to make one takes both processors for 12 ms,
and whoever is next would have waited for that. One that stood at half in a steady stream had too little for a burst on top of it."""

RECHECK_S = 60.0
FEW_AT_ONCE, MOST_AT_ONCE = 16, 300
"""Sandboxes made or deleted in one go; the next round goes on. Of many that are missing a quarter is made at a time, so that whoever
claims the others meanwhile does not stand behind three hundred that are made."""

STUCK = "WarmPoolNotProgressing"


def _of_template(template: SandboxTemplate, world: World) -> Iterator[tuple[str, str]]:
    for pool in world.list(SandboxWarmPool, template.metadata.namespace):
        if pool.spec.template_ref.name == template.metadata.name:
            yield pool.metadata.namespace, pool.metadata.name


def _quiet_s(pool: SandboxWarmPool, world: World) -> float:
    """A pool that runs out is filled while others come."""
    members = world.owned(Sandbox, pool.metadata.uid)
    waiting = sum(
        one.metadata.deletion_timestamp is None and is_true(one.status.conditions, "Ready") for one in members
    )
    return QUIET_S if waiting >= MOSTLY_FULL * _wanted(pool) else 0.0


@reconciler(
    SandboxWarmPool, owns=(Sandbox,), finds={SandboxTemplate: _of_template},
    rests_s=REST_S, gives_way_s=GIVES_WAY_S, quiet_s=_quiet_s,
)  # fmt: skip
def reconcile_sandbox_warm_pool(pool: SandboxWarmPool, world: World, now: datetime) -> Iterator[Command]:
    """Bring one pool a step closer to its size."""
    meta = pool.metadata
    if meta.deletion_timestamp is not None:
        return
    template = world.get(SandboxTemplate, meta.namespace, pool.spec.template_ref.name)
    members = [*world.owned(Sandbox, meta.uid), *_orphans(pool, world)]
    leaving = [one for one in members if one.metadata.deletion_timestamp is not None]
    active = [one for one in members if one.metadata.deletion_timestamp is None]
    gone: list[Sandbox] = []
    for one in active:
        if template is not None and _is_to_be_replaced(one, pool, template):
            gone.append(one)
            why = f"made from an older state of template {template.metadata.name}"
            yield Delete(target_of(one), reason=why, is_guarded=True)
        elif controller_of(one) is None:
            yield Patch(target_of(one), {"metadata": {"ownerReferences": [owner_reference(pool)]}}, is_guarded=True)
    roomless = 0
    for one in (member for member in active if member not in gone):
        if not _is_late(one, now):
            continue
        if _waits_for_room(one):
            roomless += 1
        else:
            gone.append(one)
            yield Delete(target_of(one), reason=f"not ready after {READY_WITHIN_S:.0f} s", is_guarded=True)
    active = [one for one in active if one not in gone]
    yield from _size(pool, template, active, len(leaving) + len(gone))
    yield from _tell(pool, active, roomless, template)
    yield from _look_again(active, roomless, now)


def _orphans(pool: SandboxWarmPool, world: World) -> list[Sandbox]:
    label = {names.WARM_POOL: name_hash(pool.metadata.name)}
    return [one for one in world.list(Sandbox, pool.metadata.namespace, label) if controller_of(one) is None]


def _is_to_be_replaced(one: Sandbox, pool: SandboxWarmPool, template: SandboxTemplate) -> bool:
    """Whether a member is of an older template and the pool replaces such; an orphan must match in any case.

    Whatever the pool replaces, one that may reach more or less than its template says now is given to nobody.
    """
    if not allows_the_same(one, template):
        return True
    strategy = pool.spec.update_strategy.type if pool.spec.update_strategy is not None else "OnReplenish"
    if strategy != "Recreate" and controller_of(one) is not None:
        return False
    labels = one.metadata.labels
    is_same_template = labels.get(names.TEMPLATE_REF_HASH) == name_hash(template.metadata.name)
    return not is_same_template or labels.get(names.TEMPLATE_HASH) != blueprint_hash(template)


def _is_late(one: Sandbox, now: datetime) -> bool:
    return not is_true(one.status.conditions, "Ready") and _age_s(one, now) > READY_WITHIN_S


def _age_s(one: Sandbox, now: datetime) -> float:
    made_at = parse_rfc3339(one.metadata.creation_timestamp)
    return 0.0 if made_at is None else (now - made_at).total_seconds()


def _waits_for_room(one: Sandbox) -> bool:
    scheduled = find(one.status.conditions, "PodScheduled")
    return scheduled is not None and scheduled.status == "False"


def _size(
    pool: SandboxWarmPool, template: SandboxTemplate | None, active: Sequence[Sandbox], leaving: int
) -> Iterator[Command]:
    wanted = _wanted(pool)
    missing = wanted - len(active) - leaving
    if missing > 0 and template is not None:
        document = _member(pool, template)
        for _ in range(min(missing, max(FEW_AT_ONCE, missing // 4), MOST_AT_ONCE)):
            yield Create(Sandbox, document, is_told_of_when_refused=True)
    surplus = min(len(active) - wanted, MOST_AT_ONCE)
    if surplus > 0:
        newest_first = sorted(active, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))[::-1]
        unready_first = sorted(newest_first, key=lambda one: is_true(one.status.conditions, "Ready"))
        for one in unready_first[:surplus]:
            # guarded, as all of a pool's: a session that took it since it was read would be over
            yield Delete(target_of(one), reason="more than spec.replicas", is_guarded=True)


def _wanted(pool: SandboxWarmPool) -> int:
    return 1 if pool.spec.replicas is None else pool.spec.replicas


def _member(pool: SandboxWarmPool, template: SandboxTemplate) -> Document:
    own = {key: pool.metadata.annotations[key] for key in (names.QUEUE,) if pool.metadata.annotations.get(key)}
    metadata = {
        "generateName": f"{pool.metadata.name}-",
        "labels": {
            names.WARM_POOL: name_hash(pool.metadata.name),
            names.LAUNCH_TYPE: "warm",
            names.CREATED_BY: "controller",
        },
        "annotations": own,
    }
    return sandbox_document(template, pool, metadata)


def _tell(
    pool: SandboxWarmPool, active: Sequence[Sandbox], roomless: int, template: SandboxTemplate | None
) -> Iterator[Command]:
    told: Document = {
        "replicas": len(active),
        "readyReplicas": sum(is_true(one.status.conditions, "Ready") for one in active),
        "selector": f"{names.WARM_POOL}={name_hash(pool.metadata.name)}",
        "observedGeneration": pool.metadata.generation,
    }
    before = pool.status
    there = {
        "replicas": before.replicas,
        "readyReplicas": before.ready_replicas,
        "selector": before.selector,
        "observedGeneration": before.observed_generation,
    }
    if template is None:
        message = f'SandboxTemplate "{pool.spec.template_ref.name}" not found: create it, or name another in spec.sandboxTemplateRef'
        yield Event(target_of(pool), STUCK, message, type="Warning")
    elif roomless:
        message = (
            f"{roomless} of {len(active)} Sandboxes have had no room on any node for more than {READY_WITHIN_S:.0f} s; "
            "they are kept, for others would find none either"
        )
        yield Event(target_of(pool), STUCK, message, type="Warning")
    if there != told:
        yield SetStatus(target_of(pool), told)


def _look_again(active: Sequence[Sandbox], roomless: int, now: datetime) -> Iterator[Command]:
    waits = [
        READY_WITHIN_S + 1 - age_s
        for one in active
        if not is_true(one.status.conditions, "Ready") and (age_s := _age_s(one, now)) <= READY_WITHIN_S
    ]
    if roomless:
        waits.append(RECHECK_S)
    if waits:
        yield RequeueAfter(min(waits))
