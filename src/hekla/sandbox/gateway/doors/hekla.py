"""Hekla's own API of sessions, for `hekla agent` and the SDK: every kind of session whatever door it came by, and all that can be done with one.

GET,POST     /hekla/v1/sessions                      list; create {kind, namespace, name, timeout, metadata, env, ...}
GET,DELETE   /hekla/v1/sessions/{id}
POST         /hekla/v1/sessions/{id}/{pause|resume|freeze|timeout|fork|snapshots}
POST         /hekla/v1/sessions/{id}/budget          {budget}: raised, a session that stood still for want of it goes on
GET          /hekla/v1/sessions/{id}/usage          with ?usage=true in a list, too
GET,DELETE   /hekla/v1/snapshots[/{id}]
GET          /hekla/v1/templates
any          /hekla/v1/sessions/{id}/daemon/{path}   the daemon inside, in any of its dialects
any          /hekla/v1/sessions/{id}/ports/{port}/{path}
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from hekla.api.agents.node_contract import Usage
from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.asking import listening
from hekla.sandbox.gateway.documents import LARGEST, NO_DOCUMENT, Asked, Reply, whole_number
from hekla.sandbox.gateway.errands import to_daemon, to_server
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.gateway.pages import page_of
from hekla.sandbox.gateway.relay import Errand
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.budgets import BudgetError, read_budget, write_budget
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import OnTimeout, Session, SessionKind, Snapshot, is_seen, snapshot_called
from hekla.sandbox.sessions.stock import Blueprint
from hekla.sandbox.sessions.wishes import Wish

ROOT: Final = "/hekla/v1/"
_INSIDE = re.compile(r"/hekla/v1/sessions/([^/]{1,128})/(?:daemon|ports/([1-9][0-9]{0,4}))(/.*)?")
_PAGE: Final = 100
KINDS: Final = (SessionKind.INTERPRETER, SessionKind.TEMPLATE, SessionKind.RUNTIME)
"""In the order in which a name is looked for."""
NETWORK: Final = frozenset({"allowOut", "denyOut", "allowInternetAccess"})
"""What narrows the network of a session."""
AT_ONCE: Final = 64
"""Sessions of a list whose nodes are asked at one time what they used; the others wait for their turn."""
PATIENCE_S: Final = 5.0
"""How long each is waited for: a node that is silent leaves its sessions of a list without an account."""


class NewSession(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A session that is asked for."""

    name: str = "base"
    """Of the object that it is made from."""
    kind: str = ""
    """`code-interpreters`, `agent-runtimes` or `sandbox-templates`; empty: whichever has that name."""
    namespace: str = "default"
    snapshot: str = ""
    """Begin with this snapshot instead, by id or name."""
    timeout: float = 0.0
    """Seconds until its time is over; 0: as its object says."""
    on_timeout: str = OnTimeout.KILL
    freeze_after: float = 0.0
    """Seconds without a request until it stands still, to wake with the next one; 0: never."""
    metadata: dict[str, str] = {}
    env: dict[str, str] = {}
    network: dict[str, Any] = {}
    """`allowOut`, `denyOut`, `allowInternetAccess`: narrows what its object allows."""
    budget: str = ""
    """What it may use before it stands still, such as `cpu=90s,network=1Gi`; lowers what its object allows."""


_Act = Callable[[House, Principal, Asked, str], Awaitable[Reply]]


class HeklaDoor:
    """Sessions as Hekla tells of them."""

    name = "hekla"

    def takes(self, arrival: Arrival) -> bool:
        """By path."""
        return arrival.path.startswith(ROOT)

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """What is inside, or about sessions."""
        match = _INSIDE.fullmatch(arrival.path)
        if match is not None:
            row, rest = _known(house, arrival, match[1]), match[3] or "/"
            if row is not None:
                return house.passage_now(arrival, self, _errand(house, arrival, row, match[2], rest))
            return house.passage_later(arrival, self, self._found_errand(house, arrival, match[1], match[2], rest))
        return house.document(arrival, self, lambda asked: self._answer(house, asked))

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal."""
        return status, document({"reason": reason, "message": sentence})

    async def _found_errand(self, house: House, arrival: Arrival, session: str, port: str | None, rest: str) -> Errand:
        who = await house.guard.by_headers(arrival.headers)
        return _errand(house, arrival, await house.desk.find(session, who.sees), port, rest)

    async def _answer(self, house: House, asked: Asked) -> Reply:
        who = await house.guard.by_headers(asked.headers)
        asked.owner = who.owner
        parts = asked.parts[2:]
        act, name = self._found(asked.method, parts)
        return await act(house, who, asked, name)

    def _found(self, method: str, parts: list[str]) -> tuple[_Act, str]:
        flat: dict[tuple[str, ...], _Act] = {
            ("GET", "sessions"): self._list, ("POST", "sessions"): self._create, ("GET", "snapshots"): self._snapshots,
            ("GET", "templates"): self._templates,
        }  # fmt: skip
        named: dict[tuple[str, ...], _Act] = {
            ("GET", "sessions"): self._get, ("DELETE", "sessions"): self._delete, ("DELETE", "snapshots"): self._forget,
        }  # fmt: skip
        acts: dict[tuple[str, ...], _Act] = {
            ("POST", "pause"): self._pause, ("POST", "resume"): self._resume, ("POST", "freeze"): self._freeze,
            ("POST", "timeout"): self._timeout, ("POST", "fork"): self._fork, ("POST", "snapshots"): self._snapshot,
            ("POST", "budget"): self._budget, ("GET", "usage"): self._usage,
        }  # fmt: skip
        found: _Act | None = None
        if len(parts) == 1:
            found = flat.get((method, parts[0]))
        elif len(parts) == 2:
            found = named.get((method, parts[0]))
        elif len(parts) == 3 and parts[0] == "sessions":
            found = acts.get((method, parts[2]))
        if found is None:
            raise RefusedError(404, "not_found", f"there is nothing for {method} at {ROOT}{'/'.join(parts)[:200]}")
        return found, parts[1] if len(parts) > 1 else ""

    async def _list(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        rows = await house.desk.listed(who.sees)
        limit = whole_number(asked.query, "limit", _PAGE, least=1, most=1000) or _PAGE
        page, token = page_of(rows, asked.query.get("after", ""), limit, key=lambda row: row.id)
        shown = [_shown(house, row) for row in page]
        if asked.query.get("usage") == "true":
            for one, usage in zip(shown, await _usages_of(house, page), strict=True):
                one["usage"] = usage
        return Reply(200, {"sessions": shown, "after": token})

    async def _create(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        try:
            new = msgspec.json.decode(asked.body or b"{}", type=NewSession)
        except NO_DOCUMENT as error:
            raise RefusedError(400, "body", f"the body makes no sense: {error}") from None
        snapshot = await self._snapshot_of(house, who, new.snapshot) if new.snapshot else None
        if new.kind and new.kind not in KINDS:
            known = ", ".join(KINDS)
            raise RefusedError(400, "kind", f'"kind" is "{new.kind[:32]}"; it must be one of {known}')
        if unknown := new.network.keys() - NETWORK:
            raise RefusedError(
                400, "network", f'"network" has "{min(unknown)[:32]}"; there are {", ".join(sorted(NETWORK))}'
            )
        if new.on_timeout not in (OnTimeout.KILL, OnTimeout.PAUSE):
            raise RefusedError(400, "on_timeout", f'"on_timeout" is "{new.on_timeout[:32]}"; it must be kill or pause')
        try:
            budget = read_budget(new.budget)
        except BudgetError as error:
            raise RefusedError(400, "budget", f"the budget makes no sense: {error}") from None
        kind, namespace, template = (
            (snapshot.kind, snapshot.namespace, snapshot.name) if snapshot else _template(house, who, new)
        )
        made = await house.desk.create(
            Wish(
                kind=kind, namespace=namespace, name=template, owner=who.owner, door="hekla", auto_resume=True,
                timeout_s=new.timeout, uses_idle=not new.timeout, on_timeout=new.on_timeout, freeze_s=new.freeze_after,
                metadata=new.metadata, env=new.env, network=new.network, snapshot=snapshot, budget=budget,
                idempotency_key=asked.headers.get("idempotency-key", "")[:256],
            )
        )  # fmt: skip
        return Reply(201, _shown(house, await listening(house, made)))

    async def _snapshot_of(self, house: House, who: Principal, text: str) -> Snapshot:
        found = snapshot_called(text, await house.desk.snapshots(who.sees), who.owner)
        if found is not None:
            return found
        raise RefusedError(404, "snapshot_not_found", f'snapshot "{text[:64]}" not found')

    async def _get(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        return Reply(200, _shown(house, await house.desk.find(name, who.sees)))

    async def _delete(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        await house.desk.end(name, who.sees)
        return Reply(204)

    async def _pause(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        keeps_memory = asked.json().get("memory", True)
        if not isinstance(keeps_memory, bool):
            raise RefusedError(400, "memory", f'"memory" is {keeps_memory!r}; it must be true or false')
        return Reply(200, _shown(house, await house.desk.pause(name, who.sees, keeps_memory=keeps_memory)))

    async def _resume(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        await house.desk.find(name, who.sees)
        return Reply(200, _shown(house, await house.desk.wake(name)))

    async def _freeze(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        return Reply(200, _shown(house, await house.desk.freeze(name, who.sees)))

    async def _timeout(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        return Reply(200, _shown(house, await house.desk.set_timeout(name, who.sees, _number(asked.json(), "timeout"))))

    async def _fork(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        parent = await house.desk.find(name, who.sees)
        body = asked.json()
        number = _number({"count": 1, **body}, "count")
        if not number.is_integer():
            raise RefusedError(400, "count", f'"count" is {number}; it must be a whole number')
        count = int(number)
        wish = Wish(
            kind=parent.kind, namespace=parent.namespace, name=parent.name, owner=parent.owner, door="hekla", auto_resume=True,
            uses_idle=not parent.expires_s, timeout_s=max(0.0, parent.expires_s - house.desk.now_s) if parent.expires_s else 0.0,
            on_timeout=parent.on_timeout, freeze_s=parent.freeze_s, metadata=parent.metadata, env=parent.env, network=parent.network,
            budget=parent.budget,
        )  # fmt: skip
        made = await house.desk.fork(name, who.sees, count, wish)
        told = [
            {"error": {"reason": one.reason, "message": one.sentence}}
            if isinstance(one, RefusedError)
            else _shown(house, one)
            for one in made
        ]
        return Reply(201, {"sessions": told})

    async def _snapshot(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        label = asked.json().get("name", "")
        if not isinstance(label, str):
            raise RefusedError(400, "name", f'"name" is {label!r}; it must be text'[:200])
        made = await house.desk.snapshot(name, who.sees, label)
        return Reply(201, _told_snapshot(made))

    async def _snapshots(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        return Reply(200, {"snapshots": [_told_snapshot(one) for one in await house.desk.snapshots(who.sees)]})

    async def _forget(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        await house.desk.delete_snapshot(await self._snapshot_of(house, who, name))
        return Reply(204)

    async def _budget(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        text = asked.json().get("budget")
        if not isinstance(text, str):
            raise RefusedError(400, "budget", '"budget" must be text, such as "cpu=90s,network=1Gi"; "" is none')
        return Reply(200, _shown(house, await house.desk.set_budget(name, who.sees, text)))

    async def _usage(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        return Reply(200, await house.desk.usage(name, who.sees))

    async def _templates(self, house: House, who: Principal, asked: Asked, name: str) -> Reply:
        found = [one for one in house.desk.stock.blueprints() if who.may_use(one.namespace)]
        return Reply(200, {"templates": [_told_blueprint(one) for one in found]})


def _known(house: House, arrival: Arrival, session: str) -> Session | None:
    """A session of whoever asks, where neither an issuer nor the store has to be asked; None: that may be so, or it is not there."""
    who, row = house.guard.known(arrival.headers), house.desk.known(session)
    return row if who is not None and row is not None and is_seen(row.owner, row.namespace, who.sees) else None


def _errand(house: House, arrival: Arrival, row: Session, port: str | None, rest: str) -> Errand:
    query = arrival.head.target.partition(b"?")[2]
    target = rest.encode("latin-1") + (b"?" + query if query else b"")
    if port is not None:
        head = to_server(arrival, row, int(port), target=target, keeps_authorization=False)
        return Errand(row, int(port), head, keeps_connection=False, upgrade=arrival.upgrade)
    # the owner's key was checked; what the daemon asks for is ours to say
    if rest.startswith("/api/"):
        return Errand(row, DAEMON, to_daemon(arrival, target=target, authorization=house.mint.line(row, house.wall())))
    token = b"x-access-token: %b\r\n" % row.access_token.encode()
    return Errand(row, DAEMON, to_daemon(arrival, target=target, authorization=token))


def _template(house: House, who: Principal, new: NewSession) -> tuple[str, str, str]:
    kinds = (new.kind,) if new.kind else KINDS
    for kind in kinds:
        if who.may_use(new.namespace) and house.desk.stock.blueprint(kind, new.namespace, new.name) is not None:
            return kind, new.namespace, new.name
    raise RefusedError(404, "template_not_found", f'template "{new.namespace}/{new.name}" not found'[:200])


def _number(body: dict[str, Any], name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise RefusedError(400, name, f'"{name}" is {f"{value!r}"[:64]}; it must be a number')
    return float(value)


def _shown(house: House, row: Session) -> dict[str, Any]:
    """A session, without its secrets."""
    return {
        "id": row.id, "state": str(row.state), "kind": row.kind, "namespace": row.namespace, "name": row.name, "owner": row.owner,
        "door": row.door, "sandbox": row.sandbox, "created": row.created_s, "expires": row.expires_s, "ends": row.ends_s,
        "idle": row.idle_s, "used": max(row.touched_s, house.desk.used_s(row.id)), "parent": row.parent, "metadata": row.metadata,
        "budget": write_budget(house.desk.budget(row)), "why": row.spent,
        "has_sandbox": bool(row.sandbox) and row.state is not State.EXPIRING,
    }  # fmt: skip


async def _usages_of(house: House, rows: list[Session]) -> list[Usage | None]:
    """What each has used; None: its node does not say so now."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def of(row: Session) -> Usage | None:
        try:
            async with turns, asyncio.timeout(PATIENCE_S):
                return await house.desk.usage(row.id, None)
        except (RefusedError, TimeoutError):
            return None

    return await asyncio.gather(*(of(row) for row in rows))


def _told_snapshot(one: Snapshot) -> dict[str, Any]:
    return {"id": one.id, "names": list(one.names), "session": one.session, "name": one.name, "created": one.created_s}


def _told_blueprint(one: Blueprint) -> dict[str, Any]:
    return {"kind": one.kind, "namespace": one.namespace, "name": one.name, "idle": one.idle_s, "life": one.life_s}
