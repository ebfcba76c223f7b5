"""E2B's control plane: sandboxes as its SDKs create, list, keep and end them, in versions 1 and 2 of each path.

A template is a CodeInterpreter or a SandboxTemplate: `name` in the key's namespace (or "default"), or `namespace/name`; or the id or
name of a snapshot. Templates are made with kubectl, not here: the calls of E2B's template builder are refused with a sentence.
"""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from hekla.sandbox.gateway.documents import LARGEST, Asked, Reply, one_of, whole_number
from hekla.sandbox.gateway.doors.e2b import words
from hekla.sandbox.gateway.doors.e2b.networks import FIXED, asked_network, flag
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.gateway.logs import logs_of
from hekla.sandbox.gateway.pages import page_of
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import OnTimeout, Session, SessionKind, Snapshot, snapshot_called
from hekla.sandbox.sessions.wishes import Wish

_ROOTS: Final = frozenset({"sandboxes", "snapshots", "templates", "volumes", "secrets", "teams", "nodes", "api-keys"})
_VERSIONS: Final = frozenset({"v2", "v3"})
_DEFAULT_TIMEOUT_S: Final = {1: 15.0, 2: 300.0}
_PAGE: Final = 100
_MOST_LOGS: Final = 1000
_LATEST_MS: Final = 253_402_300_799_999
_STATES: Final = frozenset({"running", "paused"})
_LEVELS: Final = ("debug", "info", "warn", "error")
_SAMPLE_S: Final = 5.0
NAMESPACE: Final = "default"

_Act = Callable[["_Call"], Awaitable[Reply]]


class _Call:
    """One call: who, what, and in which version of the API."""

    def __init__(self, asked: Asked, who: Principal, version: int, parts: list[str]) -> None:
        self.asked, self.who, self.version, self.parts = asked, who, version, parts
        self.body = asked.json() if asked.method in ("POST", "PUT", "PATCH") else {}

    @property
    def sandbox(self) -> str:
        """The id in the path; clients of version 1 add their own id behind a dash."""
        return self.parts[1].partition("-")[0]


def asks_control(path: str) -> bool:
    """Whether a path is one of the control plane's."""
    parts = path.split("/", 3)
    return len(parts) > 1 and (parts[1] in _ROOTS or (parts[1] in _VERSIONS and len(parts) > 2 and parts[2] in _ROOTS))


class ControlDoor:
    """The control plane."""

    name = "e2b"

    def takes(self, arrival: Arrival) -> bool:
        """By the first segments of the path."""
        return asks_control(arrival.path)

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Find the call."""
        calls = _Calls(house)
        return house.document(arrival, self, calls.answer)

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal."""
        return words.worded(status, reason, sentence)


class _Calls:
    def __init__(self, house: House) -> None:
        self._house, self._desk = house, house.desk

    async def answer(self, asked: Asked) -> Reply:
        """Answer one call."""
        who = await self._house.guard.by_headers(asked.headers)
        asked.owner = who.owner
        parts, version = asked.parts, 1
        if parts[0] in _VERSIONS:
            version, parts = int(parts[0][1:]), parts[1:]
        call = _Call(asked, who, version, parts)
        return await self._found(asked.method, parts)(call)

    def _found(self, method: str, parts: list[str]) -> _Act:
        found: dict[tuple[Any, ...], _Act] = {
            ("POST", "sandboxes"): self._create, ("GET", "sandboxes"): self._list,
            ("GET", "snapshots"): self._snapshots, ("GET", "templates"): self._templates,
        }  # fmt: skip
        if len(parts) == 1 and (act := found.get((method, parts[0]))) is not None:
            return act
        if parts[0] == "sandboxes" and len(parts) == 2:
            if (method, parts[1]) == ("GET", "metrics"):
                return self._metrics_of_many
            one: dict[str, _Act] = {"GET": self._get, "DELETE": self._delete}
            if method in one:
                return one[method]
        if parts[0] == "sandboxes" and len(parts) == 3:
            deep: dict[tuple[str, str], _Act] = {
                ("POST", "timeout"): self._timeout, ("POST", "refreshes"): self._refresh, ("POST", "pause"): self._pause,
                ("POST", "connect"): self._connect, ("POST", "resume"): self._resume, ("POST", "fork"): self._fork,
                ("POST", "snapshots"): self._snapshot, ("PUT", "network"): self._network, ("GET", "metrics"): self._metrics,
                ("GET", "logs"): self._logs,
            }  # fmt: skip
            if (method, parts[2]) in deep:
                return deep[method, parts[2]]
        if parts[0] == "templates" and len(parts) == 2 and method == "DELETE":
            return self._delete_snapshot
        if parts[0] == "templates" and len(parts) == 3 and parts[1] == "aliases" and method == "GET":
            return self._alias
        raise RefusedError(
            404, "not_found", f"{method} /{'/'.join(parts)[:128]} is not served here; templates, volumes, secrets and keys are kept with kubectl and files"
        )  # fmt: skip

    # Creating and ending

    async def _create(self, call: _Call) -> Reply:
        wish = await self._wish(call)
        session = await self._desk.create(wish)
        return Reply(201, words.created(session, self._house.domain))

    async def _wish(self, call: _Call) -> Wish:
        body, who = call.body, call.who
        kind, namespace, name, snapshot = await self._template(_text(body, "templateID"), who)
        network = asked_network(_object(body, "network"), body)
        for what, instead in (("volumeMounts", "mount volumes"), ("iam", "give its pod a service account")):
            if body.get(what):
                raise RefusedError(400, what, f'"{what}" is not served here; {instead} in the template')
        return Wish(
            kind=kind, namespace=namespace, name=name, owner=who.owner, door="e2b", uses_idle=False,
            timeout_s=_seconds(body, "timeout", _DEFAULT_TIMEOUT_S.get(call.version, 300.0)),
            on_timeout=OnTimeout.PAUSE if flag(body, "autoPause", False) else OnTimeout.KILL,
            keeps_memory=flag(body, "autoPauseMemory", True),
            auto_resume=flag(_object(body, "autoResume"), "enabled", False),
            metadata=_texts(body, "metadata"), env=_texts(body, "envVars"), network=network,
            mask_host=str(network.get("maskRequestHost") or ""),
            is_secured=flag(body, "secure", False) or call.version > 1,
            is_public=network.get("allowPublicTraffic", True),
            snapshot=snapshot, idempotency_key=call.asked.headers.get("idempotency-key", "")[:256],
        )  # fmt: skip

    async def _template(self, text: str, who: Principal) -> tuple[str, str, str, Snapshot | None]:
        """What a templateID names: a snapshot, or an object."""
        text = text.partition(":")[0]
        one = snapshot_called(text, await self._desk.snapshots(who.sees), who.owner)
        if one is not None:
            return one.kind, one.namespace, one.name, one
        namespace, slash, name = text.rpartition("/")
        namespace = namespace if slash else who.namespace or NAMESPACE
        if not who.may_use(namespace):
            raise RefusedError(404, "template_not_found", f'template "{text[:128]}" not found')
        for kind in (SessionKind.INTERPRETER, SessionKind.TEMPLATE, SessionKind.RUNTIME):
            if self._desk.stock.blueprint(kind, namespace, name) is not None:
                return kind, namespace, name, None
        raise RefusedError(404, "template_not_found", f'template "{text[:128]}" not found')

    async def _get(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        return Reply(200, words.detail(session, self._blueprint(session), self._house.domain))

    def _blueprint(self, session: Session) -> Any:
        return self._desk.stock.blueprint(session.kind, session.namespace, session.name)

    async def _delete(self, call: _Call) -> Reply:
        await self._desk.end(call.sandbox, call.who.sees)
        return Reply(204)

    async def _list(self, call: _Call) -> Reply:
        query = call.asked.query
        wanted = _filter(query.get("metadata", ""))
        states = {one for name, text in call.asked.queries if name == "state" for one in text.split(",") if one}
        if unknown := states - _STATES:
            raise RefusedError(400, "state", f'"state" is "{min(unknown)[:32]}"; it must be running or paused')
        if call.version < 2:
            states = {"running"}
        sessions = [
            one
            for one in await self._desk.listed(call.who.sees)
            if one.state not in (State.CREATING, State.CLAIMED)
            and all(one.metadata.get(name) == value for name, value in wanted.items())
            and (not states or ("paused" if one.state is State.PAUSED else "running") in states)
            and query.get("template", one.name) in (one.name, one.snapshot)
        ]
        if (after_s := _time(query, "startedAfter")) is not None:
            sessions = [one for one in sessions if one.created_s >= after_s]
        if one_of(query, "order", "asc", "desc") == "asc":
            sessions.reverse()
        rows, token = page_of(sessions, query.get("nextToken", ""), _limit(query), key=lambda one: one.id)
        headers = [("x-next-token", token)] if token else []
        return Reply(200, [words.listed(one, self._blueprint(one)) for one in rows], headers)

    # Time and sleep

    async def _timeout(self, call: _Call) -> Reply:
        await self._running(call)  # by its refusal `connect` of e2b 2.0 to 2.5 knows that it has to resume it
        await self._desk.set_timeout(call.sandbox, call.who.sees, _seconds(call.body, "timeout", None))
        return Reply(204)

    async def _refresh(self, call: _Call) -> Reply:
        duration_s = _seconds(call.body, "duration", _DEFAULT_TIMEOUT_S[1])
        await self._running(call)
        await self._desk.set_timeout(call.sandbox, call.who.sees, duration_s, shortens=False)
        return Reply(204)

    async def _running(self, call: _Call) -> None:
        session = await self._desk.find(call.sandbox, call.who.sees)
        if session.state is State.PAUSED:
            raise RefusedError(
                404, "paused", f'sandbox "{session.id}" is not running: it is paused; connect to it first'
            )

    async def _pause(self, call: _Call) -> Reply:
        keeps_memory = flag(call.body, "memory", True)
        await self._desk.pause(call.sandbox, call.who.sees, keeps_memory=keeps_memory)
        return Reply(204)

    async def _connect(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        was_paused = session.state is State.PAUSED
        timeout_s = _seconds(call.body, "timeout", _DEFAULT_TIMEOUT_S[2])
        if was_paused:
            await self._desk.wake(session.id)
        session = await self._desk.set_timeout(session.id, call.who.sees, timeout_s, shortens=was_paused)
        return Reply(201 if was_paused else 200, words.created(session, self._house.domain))

    async def _resume(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        if session.state is not State.PAUSED:
            raise RefusedError(409, "running", f'sandbox "{session.id}" is running already')
        return await self._connect(call)

    # Copies

    async def _fork(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        count = call.body.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int):
            raise RefusedError(400, "count", f'"count" is {count!r}; it must be a whole number')
        wish = Wish(
            kind=session.kind, namespace=session.namespace, name=session.name, owner=session.owner, door="e2b",
            uses_idle=False, timeout_s=_seconds(call.body, "timeout", _DEFAULT_TIMEOUT_S[2]),
            on_timeout=session.on_timeout, keeps_memory=session.keeps_memory, auto_resume=session.auto_resume,
            metadata=session.metadata, env=session.env, network=session.network, mask_host=session.mask_host,
            is_secured=bool(session.access_token), is_public=not session.traffic_token, budget=session.budget,
        )  # fmt: skip
        made = await self._desk.fork(session.id, call.who.sees, count, wish)
        told = [
            {"error": {"code": one.status, "message": one.sentence}}
            if isinstance(one, RefusedError)
            else {"sandbox": words.created(one, self._house.domain)}
            for one in made
        ]
        return Reply(201, told)

    async def _snapshot(self, call: _Call) -> Reply:
        name = _text(call.body, "name") if call.body.get("name") else ""
        made = await self._desk.snapshot(call.sandbox, call.who.sees, name)
        return Reply(201, words.snapshot(made))

    async def _snapshots(self, call: _Call) -> Reply:
        query = call.asked.query
        found = [
            one
            for one in await self._desk.snapshots(call.who.sees)
            if query.get("sandboxID", one.session) == one.session
            and (not query.get("name") or query["name"] in one.names)
        ]
        rows, token = page_of(found, query.get("nextToken", ""), _limit(query), key=lambda one: one.id)
        return Reply(200, [words.snapshot(one) for one in rows], [("x-next-token", token)] if token else [])

    async def _delete_snapshot(self, call: _Call) -> Reply:
        name = call.parts[1].partition(":")[0]
        found = snapshot_called(name, await self._desk.snapshots(call.who.sees), call.who.owner)
        if found is None:
            raise RefusedError(
                404, "not_found", f'there is no snapshot "{call.parts[1][:128]}"; templates are deleted with kubectl'
            )
        await self._desk.delete_snapshot(found)
        return Reply(204)

    # Templates, as far as objects are templates

    async def _templates(self, call: _Call) -> Reply:
        now = words.time_of(self._desk.now_s)
        shown = [
            {
                "templateID": one.name, "buildID": one.name, "aliases": [one.name], "names": [f"{one.namespace}/{one.name}"],
                "public": False, "cpuCount": max(1, one.cpu_milli // 1000), "memoryMB": one.memory_bytes >> 20,
                "diskSizeMB": one.disk_bytes >> 20, "envdVersion": words.ENVD_VERSION, "createdAt": now, "updatedAt": now,
                "lastSpawnedAt": None, "spawnCount": 0, "buildCount": 1, "createdBy": None, "buildStatus": "ready",
            }
            for one in self._desk.stock.blueprints()
            if call.who.may_use(one.namespace)
        ]  # fmt: skip
        return Reply(200, shown)

    async def _alias(self, call: _Call) -> Reply:
        _, _, name, _ = await self._template(call.parts[2], call.who)
        return Reply(200, {"templateID": name, "public": False})

    # Seeing and restricting

    async def _network(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        kept: dict[str, Any] = {name: session.network[name] for name in FIXED if name in session.network}
        wanted = asked_network(call.body, call.body)
        await self._desk.restrict(session.id, call.who.sees, {**wanted, **kept})
        return Reply(204)

    async def _metrics(self, call: _Call) -> Reply:
        session = await self._desk.find(call.sandbox, call.who.sees)
        now = self._desk.now_s
        try:
            started = float(call.asked.query.get("start", 0))
            ended = float(call.asked.query.get("end", now + 1))
        except ValueError:
            raise RefusedError(400, "start", '"start" and "end" are seconds since 1970') from None
        # their clients ask in whole seconds, and expect samples of every five
        sample = now // _SAMPLE_S * _SAMPLE_S
        if not (started - _SAMPLE_S <= sample <= ended and session.created_s <= ended + _SAMPLE_S):
            return Reply(200, [])
        return Reply(200, [await self._measured(session)])

    async def _metrics_of_many(self, call: _Call) -> Reply:
        asked = call.asked.query.get("sandbox_ids", "")
        found = {}
        for one in [one.partition("-")[0] for one in asked.split(",") if one][:100]:
            with contextlib.suppress(RefusedError):  # what is gone, or does not answer, has none
                found[one] = await self._measured(await self._desk.find(one, call.who.sees))
        return Reply(200, {"sandboxes": found})

    async def _measured(self, session: Session) -> dict[str, Any]:
        now = self._desk.now_s
        blueprint = self._blueprint(session)
        usage = await self._desk.usage(session.id, None)
        lived_s = max(usage.wall_s - usage.frozen_s, 0.001)
        total = blueprint.memory_bytes if blueprint else 0
        return {
            "timestamp": words.time_of(now), "timestampUnix": int(now),
            "cpuCount": max(1, blueprint.cpu_milli // 1000) if blueprint else 1,
            "cpuUsedPct": round(usage.cpu_us / 10_000 / lived_s, 2), "memUsed": usage.memory_bytes, "memTotal": max(total, usage.memory_bytes),
            "memCache": 0, "diskUsed": usage.storage_bytes, "diskTotal": max(blueprint.disk_bytes if blueprint else 0, usage.storage_bytes),
        }  # fmt: skip

    async def _logs(self, call: _Call) -> Reply:
        """What its container wrote, and what its commands said and became."""
        session = await self._desk.find(call.sandbox, call.who.sees)
        query = call.asked.query
        is_backward = one_of(query, "direction", "forward", "backward") == "backward"
        since = whole_number(query, "cursor" if call.version > 1 else "start", None, least=0, most=_LATEST_MS)
        least = _LEVELS.index(one_of(query, "level", *_LEVELS) or _LEVELS[0])
        limit = _limit(query, _MOST_LOGS)
        found = [
            one
            for one in await logs_of(self._house, session)
            if (since is None or (one.at_ms <= since if is_backward else one.at_ms >= since))
            and (one.level not in _LEVELS or _LEVELS.index(one.level) >= least)
            and query.get("search", "") in one.message
        ]
        kept = found[max(0, len(found) - limit) :]
        chosen = kept[::-1] if is_backward else kept if since is None else found[:limit]
        told = [words.log_entry(one) for one in chosen]
        if call.version > 1:
            return Reply(200, {"logs": told})
        return Reply(200, {"logs": [words.log_line(one) for one in chosen], "logEntries": told})


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RefusedError(400, name, f'"{name}" must be text')
    return value


def _texts(body: dict[str, Any], name: str) -> dict[str, str]:
    value = {} if body.get(name) is None else body[name]
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise RefusedError(400, name, f'"{name}" must be an object of texts')
    return value


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = {} if body.get(name) is None else body[name]
    if not isinstance(value, dict):
        raise RefusedError(400, name, f'"{name}" must be an object')
    return dict(value)


def _seconds(body: dict[str, Any], name: str, default: float | None) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise RefusedError(400, name, f'"{name}" is {f"{value!r}"[:64]}; it must be a number of seconds')
    return float(value)


def _filter(text: str) -> dict[str, str]:
    """What metadata must say. E2B's clients quote names and values by themselves, and then all of it as a query again."""
    pairs = (one.partition("=") for one in text.split("&") if one)
    return {unquote(unquote_plus(name)): unquote(unquote_plus(value)) for name, _, value in pairs}


def _limit(query: dict[str, str], otherwise: int = _PAGE) -> int:
    found = whole_number(query, "limit", otherwise, least=1, most=_MOST_LOGS)
    assert found is not None
    return found


def _time(query: dict[str, str], name: str) -> float | None:
    """Seconds since 1970; None: the query names no time."""
    text = query.get(name, "")
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        raise RefusedError(
            400, name, f'"{name}" is "{text[:32]}"; it must be a time such as 2026-11-29T02:00:00Z'
        ) from None
