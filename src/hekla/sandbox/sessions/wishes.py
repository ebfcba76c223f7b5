"""What is asked of the desk, and the values that follow from it: the first row, the order for a sandbox, its claim. Pure."""

from dataclasses import dataclass, field
from typing import Any

from hekla.api.agents.node_contract import Claim
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits
from hekla.sandbox.sessions.network import ANYWHERE, egress_of
from hekla.sandbox.sessions.records import OnTimeout, Session, Snapshot, new_id, new_token
from hekla.sandbox.sessions.stock import Blueprint, Held, Order


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A session that is asked for."""

    kind: str
    namespace: str
    name: str
    owner: str
    door: str
    timeout_s: float = 0.0
    """How long, unless asked again; 0: as long as its blueprint lets it."""
    uses_idle: bool = True
    """Whether its blueprint's idle time holds."""
    freeze_s: float = 0.0
    on_timeout: str = OnTimeout.KILL
    keeps_memory: bool = True
    auto_resume: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    mask_host: str = ""
    budget: dict[str, float] = field(default_factory=dict)
    is_secured: bool = True
    """Whether the daemon's own doors ask for an access token."""
    is_public: bool = True
    """Whether its ports ask for none."""
    snapshot: Snapshot | None = None
    idempotency_key: str = ""


def check_size(wish: Wish, limits: SessionLimits) -> None:
    """Refuse a wish for too long a time, with too much to write down, or with a network or variables that cannot be."""
    if wish.timeout_s > limits.longest_timeout_s:
        raise RefusedError(
            400, "timeout", f"the timeout is {wish.timeout_s:g} s; at most {limits.longest_timeout_s:g} s can be asked"
        )
    for what, seconds in (("timeout", wish.timeout_s), ("freeze_after", wish.freeze_s)):
        if seconds < 0:
            raise RefusedError(400, what, f'"{what}" is {seconds:g}; it must be a number of seconds from 0 on')
    egress_of(ANYWHERE, wish.network)
    for name, value in wish.env.items():
        if not name or "=" in name or "\0" in name:
            raise RefusedError(
                400,
                "environment",
                f"a variable is named {name[:64]!r}; a name has a letter, and neither = nor NUL in it",
            )
        if "\0" in value:
            raise RefusedError(400, "environment", f"the variable {name[:64]!r} has NUL in its value; leave it out")
    for what, values in (("metadata", wish.metadata), ("environment", wish.env)):
        if sum(len(name) + len(value) for name, value in values.items()) > limits.metadata_bytes:
            raise RefusedError(400, what, f"the {what} is larger than {limits.metadata_bytes} bytes")


def new_row(wish: Wish, blueprint: Blueprint, now: float) -> Session:
    """The first row of a session that is made."""
    return Session(
        id=new_id(), kind=wish.kind, namespace=wish.namespace, name=wish.name, owner=wish.owner, door=wish.door,
        created_s=now, touched_s=now, expires_s=now + wish.timeout_s if wish.timeout_s else 0.0, timeout_s=wish.timeout_s,
        ends_s=now + blueprint.life_s if wish.uses_idle and blueprint.life_s else 0.0,
        idle_s=blueprint.idle_s if wish.uses_idle else 0.0, freeze_s=wish.freeze_s,
        on_timeout=wish.on_timeout, keeps_memory=wish.keeps_memory, auto_resume=wish.auto_resume,
        entry_points=blueprint.entry_points, is_checked=blueprint.is_checked,
        access_token=new_token() if wish.is_secured else "", traffic_token="" if wish.is_public else new_token(),
        snapshot=wish.snapshot.id if wish.snapshot else "", metadata=wish.metadata, env=wish.env,
        network=wish.network, mask_host=wish.mask_host, idempotency_key=wish.idempotency_key, budget=wish.budget,
    )  # fmt: skip


def order_of(
    row: Session, blueprint: Blueprint, *, restore_from: str = "", restore_at: str = "", fork_of: str = ""
) -> Order:
    """The sandbox that a session needs; one that is forked from a pod says of whom it descends."""
    return Order(
        session=row.id, blueprint=blueprint, owner=row.owner, env=row.env, ends_s=row.ends_s,
        restore_from=restore_from, restore_at=restore_at, fork_of=fork_of, lineage=row.lineage if fork_of else (), network=row.network,
    )  # fmt: skip


def claim_of(row: Session, held: Held, public_key: str, token_key: str = "") -> Claim:
    """What makes a sandbox the session's own."""
    return Claim(
        session=row.id, owner=row.owner, env=row.env, access_token=row.access_token, traffic_token=row.traffic_token,
        public_key=public_key if row.is_checked else "", audience=held.uid, token_key=token_key,
    )  # fmt: skip


def held_of(row: Session) -> Held:
    """The sandbox that a row names."""
    return Held(namespace=row.namespace, name=row.sandbox, uid=row.sandbox_uid, pod=row.pod, session=row.id)
