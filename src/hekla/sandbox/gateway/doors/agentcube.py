"""AgentCube: its router (invocations by path, sessions by header) and its workload manager (create, delete), at one address.

Statuses, messages and headers are AgentCube's to the letter. Better than there: an id opens one session of one object of one
namespace; all methods and upgrades pass; the longest path prefix wins, by whole segments; encoded slashes stay as they came; the
token for the daemon names its sandbox and goes to daemons alone, so an agent's container sees no key that opens anything.
"""

import re
from typing import Any, Final

from hekla.sandbox.gateway.answers import document, header_line
from hekla.sandbox.gateway.asking import listening
from hekla.sandbox.gateway.documents import Asked, Reply
from hekla.sandbox.gateway.errands import to_daemon, to_server
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.gateway.relay import Errand
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import EntryPoint, Session, SessionKind, is_seen
from hekla.sandbox.sessions.wishes import Wish

SESSION: Final = "x-agentcube-session-id"
_INVOKE = re.compile(
    r"/v1/namespaces/([a-z0-9.-]{1,253})/(agent-runtimes|code-interpreters)/([a-z0-9.-]{1,253})/invocations(/.*)?"
)
_MANAGE = re.compile(r"/v1/(agent-runtime|code-interpreter)(?:/sessions/([^/]{1,128}))?")
_KINDS: Final = {
    "agent-runtimes": SessionKind.RUNTIME, "code-interpreters": SessionKind.INTERPRETER, "agent-runtime": SessionKind.RUNTIME,
    "code-interpreter": SessionKind.INTERPRETER,
}  # fmt: skip
_WORDS: Final = {SessionKind.RUNTIME: "agent runtime", SessionKind.INTERPRETER: "code interpreter"}
_DAEMON_PORT: Final = 8080
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UNSAFE = re.compile(r"(?i)(?:^|/|%2f|\\|%5c)(?:\.|%2e|%252e){2}(?:/|%2f|\\|%5c|;|$)")


class RouterDoor:
    """Invocations."""

    name = "agentcube-router"

    def takes(self, arrival: Arrival) -> bool:
        """By path."""
        return arrival.path.startswith("/v1/namespaces/")

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Find the session, or make one."""
        match = _INVOKE.fullmatch(arrival.path)
        if match is None:
            raise RefusedError(404, "not_found", f"there is nothing at {arrival.path[:256]}")
        namespace, kind, name, rest = match[1], _KINDS[match[2]], match[3], match[4] or "/"
        if _UNSAFE.search(rest):
            raise RefusedError(400, "path", "the path leads out of itself; send it without ..")
        given = arrival.headers.get(SESSION, "")
        if not given:
            return _Beginning(house, arrival, self, namespace, kind, name, rest).begin()
        may = _Caller(house, arrival)

        def errand(session: Session) -> Errand:
            if (session.namespace, session.kind, session.name) != (namespace, kind, name) or not may.see(session):
                raise unknown(given)
            return invocation(house, arrival, session, rest)

        if may.must_be_asked:
            return may.ask_first(self, given, errand)
        return house.passage(arrival, self, given, errand)

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal of the router."""
        if reason in ("UNAUTHORIZED", "FORBIDDEN", "SERVER_OVERLOADED"):
            return status, document({"error": sentence, "code": reason})
        if reason in ("port_closed", "broken_off", "unreachable", "session_ended", "sandbox_gone", "node"):
            return (
                (504, document({"error": "sandbox timeout"}))
                if status == 504
                else (502, document({"error": "sandbox unreachable"}))
            )
        if reason == "session_not_found" and not sentence.startswith("sessions."):
            # `session "id" not found` of the desk, in the router's words
            return 404, document({"error": f"sessions.agentcube.volcano.sh {sentence.removeprefix('session ')}"})
        return status, document({"error": sentence})


def unknown(session: str) -> RefusedError:
    """There is no such session, for this caller at this address."""
    shown = session[:64].replace('"', "")
    return RefusedError(404, "session_not_found", f'sessions.agentcube.volcano.sh "{shown}" not found')


def invocation(house: House, arrival: Arrival, session: Session, rest: str) -> Errand:
    """The way to the entry point that the path chooses."""
    entry = entry_point(session.entry_points, rest.partition("?")[0])
    if entry is None:
        raise RefusedError(404, "no_entry_point", "no entry point found for sandbox")
    query = arrival.head.target.partition(b"?")[2]
    target = rest.encode("latin-1") + (b"?" + query if query else b"")
    lines = header_line(SESSION.encode(), session.id)
    if session.is_checked and entry.port == _DAEMON_PORT:
        token = house.mint.line(session, house.wall())
        return Errand(session, DAEMON, to_daemon(arrival, target=target, authorization=token), wakes=True, lines=lines)
    # what opened our door stays with us; a header that did not is the agent's own
    ours = house.guard.by_key(arrival.headers.get("authorization", "").partition(" ")[2].strip()) is not None
    keeps = not ours and not house.guard.needs_token
    head = to_server(arrival, session, entry.port, target=target, keeps_authorization=keeps)
    return Errand(session, entry.port, head, wakes=True, lines=lines, keeps_connection=False, upgrade=arrival.upgrade)


def entry_point(points: tuple[EntryPoint, ...], path: str) -> EntryPoint | None:
    """The longest prefix of whole segments; the first one where none fits."""
    fitting = [one for one in points if _is_below(path, one.path)]
    return max(fitting, key=lambda one: len(one.path.rstrip("/")), default=points[0] if points else None)


def _is_below(path: str, prefix: str) -> bool:
    prefix = prefix.rstrip("/")
    return path == prefix or path.startswith(f"{prefix}/")


class _Caller:
    """Whose call it is. Where no issuer is configured the id of a session, 130 random bits that were given to its owner, is enough."""

    def __init__(self, house: House, arrival: Arrival) -> None:
        self._house, self._arrival = house, arrival
        self._who: Principal | None = None
        self._has_credentials = "authorization" in arrival.headers or "x-api-key" in arrival.headers
        if self._has_credentials:
            secret = (
                arrival.headers.get("x-api-key") or arrival.headers.get("authorization", "").partition(" ")[2].strip()
            )
            self._who = house.guard.by_key(secret)

    @property
    def must_be_asked(self) -> bool:
        """Whether a token has yet to be looked into."""
        return self._who is None and self._house.guard.needs_token

    def see(self, session: Session) -> bool:
        """Whether a session is theirs; without credentials of ours, whoever knows its id."""
        return self._who is None or is_seen(session.owner, session.namespace, self._who.sees)

    def ask_first(self, door: RouterDoor, session: str, errand: Any) -> Taker:
        """Look into the token, then go on."""

        async def found() -> Errand:
            self._who = await self._house.guard.by_headers(self._arrival.headers)
            made: Errand = errand(await self._house.desk.find(session, self._who.sees))
            return made

        return self._house.passage_later(self._arrival, door, found())


class _Beginning:
    """An invocation without a session: one is made, and the request waits for it."""

    def __init__(
        self, house: House, arrival: Arrival, door: RouterDoor, namespace: str, kind: str, name: str, rest: str
    ) -> None:
        self._house, self._arrival, self._door = house, arrival, door
        self._namespace, self._kind, self._name, self._rest = namespace, kind, name, rest

    def begin(self) -> Taker:
        """Make the session, then go on."""
        return self._house.passage_later(self._arrival, self._door, self._made())

    async def _made(self) -> Errand:
        who = await self._house.guard.by_headers(self._arrival.headers)
        session = await make_session(self._house, who, self._kind, self._namespace, self._name, {})
        return invocation(self._house, self._arrival, session, self._rest)


async def make_session(
    house: House, who: Principal, kind: str, namespace: str, name: str, body: dict[str, Any]
) -> Session:
    """A session as the workload manager makes it; `ttl` of AgentCube's SDK, which its own server ignores, is kept."""
    if not who.may_use(namespace) or house.desk.stock.blueprint(kind, namespace, name) is None:
        raise RefusedError(404, "template_not_found", f"{_WORDS[kind]} not found")
    ttl, metadata = body.get("ttl"), body.get("metadata")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float) or ttl < 0):
        raise RefusedError(
            400, "ttl", f"ttl is {ttl!r}"[:100] + "; it must be a number of seconds, 0 for none of its own"
        )
    if not isinstance(metadata, dict | None):
        raise RefusedError(400, "metadata", f"metadata is {metadata!r}"[:100] + "; it must be an object")
    timeout_s = float(min(ttl or 0, house.desk.limits.longest_timeout_s))
    kept = {
        key: value if isinstance(value, str) else document(value).decode() for key, value in (metadata or {}).items()
    }
    made = await house.desk.create(
        Wish(
            kind=kind, namespace=namespace, name=name, owner=who.owner, door="agentcube", auto_resume=True,
            timeout_s=timeout_s, metadata=kept, is_public=not house.guard.needs_token,
        )
    )  # fmt: skip
    return await listening(house, made)


class ManagerDoor:
    """The workload manager."""

    name = "agentcube-manager"

    def takes(self, arrival: Arrival) -> bool:
        """By path."""
        return arrival.path.startswith(("/v1/agent-runtime", "/v1/code-interpreter"))

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Create or delete."""

        async def answer(asked: Asked) -> Reply:
            match = _MANAGE.fullmatch(asked.path)
            who = await house.guard.by_headers(asked.headers)
            asked.owner = who.owner
            if match is not None and asked.method == "POST" and match[2] is None:
                return await self._create(house, who, _KINDS[match[1]], asked.json())
            if match is not None and asked.method == "DELETE" and match[2] is not None:
                return await self._delete(house, who, _KINDS[match[1]], match[2])
            raise RefusedError(404, "not_found", f"there is nothing at {asked.method} {asked.path[:256]}")

        return house.document(arrival, self, answer)

    async def _create(self, house: House, who: Principal, kind: str, body: dict[str, Any]) -> Reply:
        name, namespace = body.get("name"), body.get("namespace")
        for what, value in (("namespace", namespace), ("name", name)):
            if value in (None, ""):
                raise RefusedError(400, what, f"{what} is required")
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise RefusedError(
                    400, what, f"{what} is {value!r}"[:100] + "; it must be a name, of a-z, 0-9, dashes and dots"
                )
        session = await make_session(house, who, kind, str(namespace), str(name), body)
        points = [
            {"path": one.path, "protocol": one.protocol, "endpoint": f"{session.pod}:{one.port}"}
            for one in session.entry_points
        ]
        told = {
            "kind": "SandboxClaim" if kind == SessionKind.INTERPRETER else "Sandbox", "sessionId": session.id,
            "sandboxId": session.sandbox_uid, "sandboxName": session.sandbox, "entryPoints": points, "ownerId": session.owner,
        }  # fmt: skip
        return Reply(200, told)

    async def _delete(self, house: House, who: Principal, kind: str, session: str) -> Reply:
        try:
            found = await house.desk.find(session, who.sees)
            if found.kind != kind:
                raise RefusedError(404, "session_not_found", "")
            await house.desk.end(session, who.sees)
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
            shown = session[:64].replace('"', "")
            raise RefusedError(404, "gone", f"Session ID {shown} not found, maybe already deleted") from None
        return Reply(200, {"message": "Sandbox deleted successfully"})

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal of the workload manager."""
        return status, document({"message": sentence})
