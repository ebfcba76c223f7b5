"""agent-sandbox's router: requests that name a Sandbox by X-Sandbox-ID and X-Sandbox-Namespace, made with kubectl or its client.

A Sandbox that is nobody's session is its annotation `agentcube.io/owner`'s; one without is whose key names it first, an administrator's too,
who may work there like anybody: an administrator who only looked says whose it is by the annotation.

Only what runs in that very Sandbox can be reached: X-Sandbox-Pod-IP, which upstream dials as given, must be an address of the Sandbox's own
pod or be left out, and is never dialled. Who asks shows a key, for names can be guessed.
"""

import hashlib
import re
from typing import Final, Protocol

from hekla.api.agents.node_contract import Claim
from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.errands import to_legacy_daemon, to_server
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.gateway.relay import Errand
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.link import DAEMON, LinkError, SandboxGoneError, TooLateError
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.stock import Held

DEFAULT_PORT: Final = 8888
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


class NamedSandboxes(Protocol):
    """Sandboxes by their names."""

    def sandbox(self, namespace: str, name: str) -> Held | None:
        """One that is ready, and not one that a pool still keeps for somebody."""

    def owner(self, held: Held) -> str:
        """Whose it was said to be; empty: whose key names it first."""

    def addresses(self, held: Held) -> frozenset[str]:
        """Of its pod."""


class AgentSandboxDoor:
    """Requests to a Sandbox by name."""

    name = "agent-sandbox"

    def __init__(self, sandboxes: NamedSandboxes) -> None:
        self._sandboxes = sandboxes

    def takes(self, arrival: Arrival) -> bool:
        """By header."""
        return "x-sandbox-id" in arrival.headers

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Find the Sandbox."""
        headers = arrival.headers
        name, namespace = headers["x-sandbox-id"], headers.get("x-sandbox-namespace") or "default"
        port = headers.get("x-sandbox-port") or f"{DEFAULT_PORT}"
        for header, value in (("X-Sandbox-ID", name), ("X-Sandbox-Namespace", namespace)):
            if not _LABEL.fullmatch(value):
                raise RefusedError(400, "header", f"{header} must be a DNS label")
        if not _PORT.fullmatch(port) or int(port) > 65_535:
            raise RefusedError(400, "header", "X-Sandbox-Port must be a port")
        return house.passage_later(arrival, self, self._found(house, arrival, namespace, name, int(port)))

    async def _found(self, house: House, arrival: Arrival, namespace: str, name: str, port: int) -> Errand:
        headers = arrival.headers
        who = await house.guard.by_headers(headers)
        held = self._sandboxes.sandbox(namespace, name) if who.may_use(namespace) else None
        if held is None or headers.get("x-sandbox-uid", held.uid) != held.uid:
            raise _absent(namespace, name)
        address = headers.get("x-sandbox-pod-ip", "")
        if address and address not in self._sandboxes.addresses(held):
            raise RefusedError(400, "header", "X-Sandbox-Pod-IP is no address of that sandbox's pod; leave it out")
        if held.session:  # a session's own: its owner's alone, and woken like any other
            session = await house.desk.find(held.session, who.sees)
        else:
            await self._bound(house, held, who)
            session = Session(
                id=f"{namespace}/{name}", kind="", namespace=namespace, name=name, owner=who.owner, state=State.RUNNING,
                sandbox=held.name, sandbox_uid=held.uid, pod=held.pod,
            )  # fmt: skip
        if port == DEFAULT_PORT:
            return Errand(session, DAEMON, to_legacy_daemon(arrival, name))
        head = to_server(arrival, session, port, keeps_authorization=False)
        return Errand(session, port, head, keeps_connection=False, upgrade=arrival.upgrade)

    async def _bound(self, house: House, held: Held, who: Principal) -> None:
        """Its daemon serves nobody until somebody's it is: whose it was said to be, or whose key names it first. An administrator enters any."""
        said = self._sandboxes.owner(held)
        owner = said or who.owner
        if owner != who.owner and not who.is_admin:
            raise _absent(held.namespace, held.name)
        try:
            # who may say whose a Sandbox is may enter its pod by the API server, too: that somebody was there before does not matter
            if await _is_claimed(house, held, f"{held.uid}.{_digits(owner)}", owner) or who.is_admin or said:
                return
            # claimed by a gateway of 2026-11-28 or before, it is whoever's who has a key
            if not await _is_claimed(house, held, held.uid, who.owner):
                raise _absent(held.namespace, held.name)
        except SandboxGoneError:
            raise _absent(held.namespace, held.name) from None
        except LinkError as error:
            raise RefusedError(502, "node", str(error)) from error

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal."""
        return status, document({"detail": sentence})


async def _is_claimed(house: House, held: Held, session: str, owner: str) -> bool:
    """Whether it is that session's, now or since before; False: somebody else's. LinkError."""
    try:
        await house.link.claim(held.namespace, held.pod, Claim(session=session, owner=owner, audience=held.uid))
    except TooLateError:
        return False
    return True


def _digits(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def _absent(namespace: str, name: str) -> RefusedError:
    """The same for one that is somebody else's."""
    return RefusedError(404, "not_found", f'sandbox "{namespace}/{name}" is not there, or not ready')
