"""Which Sandboxes of its pools a claim may take, and which of them is its own to take.

The k-th of the claims that wait takes the k-th of the Sandboxes, so that whoever looks at the same caches makes the same choice.
`sandbox_claim.py` writes it down.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hekla.api.agents import Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, names
from hekla.kube.reconcile import World
from hekla.kube.timestamps import parse_rfc3339
from hekla.sandbox.claim_request import RefusedError, check_env, check_metadata
from hekla.sandbox.late_environment import can_follow
from hekla.sandbox.observing import find, is_true
from hekla.sandbox.owning import controller_of
from hekla.sandbox.sandbox_status import EXPIRED

GRACE_S = 2.0
"""How long a claim waits for a Sandbox of its pool that has no address yet, before one is made for it."""


@dataclass(frozen=True)
class Source:
    """Where a claim's Sandbox comes from."""

    template: str
    """Its SandboxTemplate, by name."""

    pools: Sequence[SandboxWarmPool]


def source_of(claim: SandboxClaim, world: World) -> Source:
    """The pool that a claim names, or all of the template that it names instead; raises `RefusedError`."""
    namespace, name = claim.metadata.namespace, claim.spec.warm_pool_ref.name
    pool = world.get(SandboxWarmPool, namespace, name)
    if pool is not None:
        return Source(pool.spec.template_ref.name, (pool,))
    template = template_in(name)
    if not template:
        raise RefusedError("WarmPoolNotFound", f'SandboxWarmPool "{name}" not found')
    pools = [one for one in world.list(SandboxWarmPool, namespace) if one.spec.template_ref.name == template]
    return Source(template, () if names.POOL_NONE in claim.metadata.annotations else pools)


def template_in(pool: str) -> str:
    """The template that stands in a pool's name, where a claim of v1alpha1 named no pool; empty if none does."""
    return pool.removeprefix(names.SHADOW_POOL) if pool.startswith(names.SHADOW_POOL) else ""


def is_for(claim: SandboxClaim, pool: SandboxWarmPool) -> bool:
    """Whether Sandboxes of a pool are what a claim wants."""
    named = claim.spec.warm_pool_ref.name
    return named == pool.metadata.name or template_in(named) == pool.spec.template_ref.name


def may_wait_in_line(claim: SandboxClaim, template: SandboxTemplate, *, has_runtime: bool) -> bool:
    """Whether a claim can have a Sandbox that was there before it: whoever cannot must not take the place of one who can."""
    if claim.spec.volume_claim_templates or not can_follow(claim, template, has_runtime=has_runtime):
        return False
    try:
        check_metadata(claim)
        check_env(claim, template)
    except RefusedError:
        return False
    return True


def rank(claim: SandboxClaim, source: Source, template: SandboxTemplate, world: World, *, has_runtime: bool) -> int:
    """How many claims on the same pools come before this one and have nothing yet."""
    mine = _place(claim)
    return sum(
        _place(one) < mine
        for one in world.list(SandboxClaim, claim.metadata.namespace)
        if any(is_for(one, pool) for pool in source.pools)
        and names.ASSIGNED_SANDBOX not in one.metadata.annotations
        and not one.status.sandbox.name
        and one.metadata.deletion_timestamp is None
        and may_wait_in_line(one, template, has_runtime=has_runtime)
    )


def candidates(source: Source, world: World) -> list[Sandbox]:
    """Sandboxes that can be taken: ready before others, from the node that has most, the oldest first."""
    waiting = [one for one in _members(source, world) if one.status.pod_ips]
    left = Counter(one.status.node_name for one in waiting)
    waiting.sort(key=_age)
    order = []
    for is_ready in (True, False):
        by_node: dict[str, list[Sandbox]] = {}
        for one in waiting:
            if is_true(one.status.conditions, "Ready") is is_ready:
                by_node.setdefault(one.status.node_name, []).append(one)
        while by_node:
            node = max(by_node, key=lambda name: (left[name], name))
            order.append(by_node[node].pop(0))
            left[node] -= 1
            if not by_node[node]:
                del by_node[node]
    return order


def has_hope(claim: SandboxClaim, source: Source, world: World, now: datetime) -> bool:
    """Whether a Sandbox of its pools is about to have an address, and the claim has time."""
    made_at = parse_rfc3339(claim.metadata.creation_timestamp)
    is_young = made_at is not None and (now - made_at).total_seconds() < GRACE_S
    return is_young and any(not one.status.pod_ips for one in _members(source, world))


def may_take(sandbox: Sandbox, claim: SandboxClaim, world: World) -> bool:
    """Whether a Sandbox that was chosen is still a pool's, and the claim's to take."""
    owner = controller_of(sandbox)
    if (
        sandbox.metadata.deletion_timestamp is not None
        or owner is None
        or owner.kind != SandboxWarmPool.kind_info.kind
        or names.SESSION_ID in sandbox.metadata.labels
    ):
        return False
    if owner.name == claim.spec.warm_pool_ref.name:
        return True
    pool = world.get(SandboxWarmPool, sandbox.metadata.namespace, owner.name)
    return pool is not None and is_for(claim, pool)


def is_expired(sandbox: Sandbox) -> bool:
    """Whether its time is over, and told."""
    ready = find(sandbox.status.conditions, "Ready")
    return ready is not None and ready.reason == EXPIRED


def _members(source: Source, world: World) -> list[Sandbox]:
    if not source.pools:
        return []
    taken = {
        claim.metadata.annotations.get(names.ASSIGNED_SANDBOX)
        for claim in world.list(SandboxClaim, source.pools[0].metadata.namespace)
    }
    return [
        one
        for pool in source.pools
        for one in world.owned(Sandbox, pool.metadata.uid)
        if one.metadata.deletion_timestamp is None
        and one.metadata.name not in taken
        and names.SESSION_ID not in one.metadata.labels
        and not is_true(one.status.conditions, "Finished")
        and not is_expired(one)
    ]


def _age(sandbox: Sandbox) -> tuple[str, str]:
    return sandbox.metadata.creation_timestamp or "", sandbox.metadata.name


def _place(claim: SandboxClaim) -> tuple[str, str]:
    return claim.metadata.creation_timestamp or "", claim.metadata.name
