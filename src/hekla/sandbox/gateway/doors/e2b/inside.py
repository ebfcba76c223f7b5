"""E2B's way inside: requests that name their sandbox in headers, or by the host `<port>-<sandbox>.<domain>`.

Ports 49983 (envd) and 49999 (code interpreter) are the daemon; all others belong to whoever listens there. What envd serves to
the host alone (`/init`, `/freeze`, …) is not there for anybody outside.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

from hekla.sandbox.gateway.doors.e2b.control import asks_control
from hekla.sandbox.gateway.doors.e2b.words import traffic_token, worded_inside
from hekla.sandbox.gateway.errands import to_daemon, to_server
from hekla.sandbox.gateway.front import Arrival, House, Proof
from hekla.sandbox.gateway.relay import Errand
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session

ENVD, INTERPRETER = 49983, 49999
_DAEMONS = frozenset({ENVD, INTERPRETER})
_DAEMON_PORTS = frozenset(str(one) for one in _DAEMONS)
_PRIVATE = frozenset({"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"})
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST = re.compile(r"([1-9][0-9]{0,4})-([a-z2-7]{26})(?:-[a-z0-9]{1,32})?\.(.+)")
"""`e2b` before 1.6 puts the client's id behind the sandbox's, as in paths of the control plane."""
_MOST_SIGNERS: Final = 1000
"""Sessions that are tried for a signature: a millisecond."""
_SIGNED = re.compile(rb"[?&]signature=")


def host_of(text: str, domain: str) -> tuple[int, str] | None:
    """Port and session of a preview host; None: it is none of ours."""
    match = _HOST.fullmatch(text.partition(":")[0].lower())
    if match is None or (domain and match[3] != domain.partition(":")[0]):
        return None
    return (int(match[1]), match[2]) if int(match[1]) < 65_536 else None


class InsideDoor:
    """Requests to one port of one sandbox."""

    name = "e2b-inside"

    def __init__(self, domain: str) -> None:
        self._domain = domain

    def takes(self, arrival: Arrival) -> bool:
        """Named by header, or by host; or by a signature, in URLs of clients that have one address for all sandboxes."""
        return (
            ("e2b-sandbox-id" in arrival.headers and not _is_for_control(arrival))
            or host_of(arrival.headers.get("host", ""), self._domain) is not None
            or (arrival.path == "/files" and _SIGNED.search(arrival.head.target) is not None)
        )

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Find the sandbox, and who answers there."""
        headers = arrival.headers
        if "e2b-sandbox-id" in headers:
            session, text = headers["e2b-sandbox-id"].partition("-")[0], headers.get("e2b-sandbox-port", f"{ENVD}")
            if not _PORT.fullmatch(text) or int(text) > 65_535:
                raise RefusedError(400, "port", "E2b-Sandbox-Port is no port")
            port = int(text)
        else:
            port, session = host_of(headers.get("host", ""), self._domain) or (ENVD, _signer(house, arrival))
        return house.passage(arrival, self, session, lambda one: _errand(arrival, one, port), _proof)

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal."""
        return worded_inside(status, reason, sentence)


def _is_for_control(arrival: Arrival) -> bool:
    """`e2b` 2.9 to 2.15 names sandbox and port of envd, too, when it asks the control plane to connect; no daemon has such paths."""
    return asks_control(arrival.path) and arrival.headers.get("e2b-sandbox-port", "") in _DAEMON_PORTS


def _signer(house: House, arrival: Arrival) -> str:
    """The session whose token signed a URL; looked for among those used last, since nothing else in it tells."""
    is_signed_by = _signature(arrival)
    for row in house.desk.latest(_MOST_SIGNERS):
        if is_signed_by(row):
            return row.id
    raise RefusedError(401, "unauthenticated", "invalid signature")


def _signature(arrival: Arrival) -> Callable[[Session], bool]:
    """Whether a URL was signed with a session's token."""
    query = dict(parse_qsl(arrival.head.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True))
    operation = "write" if arrival.head.method == b"POST" else "read"
    expires = query.get("signature_expiration", "")
    given = query.get("signature", "").encode()

    def is_signed_by(row: Session) -> bool:
        terms = [
            query.get("path", ""),
            operation,
            query.get("username", ""),
            row.access_token,
            *([expires] if expires else []),
        ]
        digest = base64.b64encode(hashlib.sha256(":".join(terms).encode()).digest()).decode().rstrip("=")
        return bool(row.access_token) and hmac.compare_digest(given, f"v1_{digest}".encode())

    return is_signed_by


def _proof(arrival: Arrival) -> Proof | None:
    """Whether a request shows a session's own token, or a signature made with one; None: it shows neither."""
    access, traffic = (arrival.headers.get(name, "") for name in ("x-access-token", "e2b-traffic-access-token"))
    is_signed = arrival.path == "/files" and _SIGNED.search(arrival.head.target) is not None
    if not access and not traffic and not is_signed:
        return None

    def shows(session: Session) -> bool:
        return (
            _is_same(access, session.access_token)
            or _is_same(traffic, traffic_token(session))
            or (is_signed and _signature(arrival)(session))
        )

    return shows


def _is_same(given: str, secret: str) -> bool:
    """Never true of a secret that there is not."""
    return bool(secret) and hmac.compare_digest(given.encode(), secret.encode())


def _errand(arrival: Arrival, session: Session, port: int) -> Errand:
    if port not in _DAEMONS:
        return _to_port(arrival, session, port)
    if arrival.path in _PRIVATE:
        raise RefusedError(404, "not_served", f"there is nothing at {arrival.path}")
    if not (_may_pass(arrival, session) or (port == INTERPRETER and _may_tend_contexts(arrival, session))):
        raise RefusedError(401, "unauthenticated", "the access token is missing or wrong")
    return Errand(session, DAEMON, to_daemon(arrival))


def _may_pass(arrival: Arrival, session: Session) -> bool:
    """Whether the daemon's door opens: envd says its health to everybody, and checks signed file URLs itself."""
    if not session.access_token or (arrival.path == "/health" and arrival.head.method == b"GET"):
        return True
    if arrival.path == "/files" and _SIGNED.search(arrival.head.target):
        return True
    return hmac.compare_digest(arrival.headers.get("x-access-token", "").encode(), session.access_token.encode())


def _may_tend_contexts(arrival: Arrival, session: Session) -> bool:
    """Whether somebody without the access token may make, list, restart and remove interpreters, and run nothing in them.

    `e2b-code-interpreter` shows that token with cells alone; for contexts it shows the traffic token, if it was given one. Who knows
    the session's id alone, from a preview's host name, may not.
    """
    if arrival.path != "/contexts" and not arrival.path.startswith("/contexts/"):
        return False
    return _is_same(arrival.headers.get("e2b-traffic-access-token", ""), traffic_token(session))


def _to_port(arrival: Arrival, session: Session, port: int) -> Errand:
    if session.traffic_token:
        given = arrival.headers.get("e2b-traffic-access-token", "")
        if not hmac.compare_digest(given.encode(), session.traffic_token.encode()):
            raise RefusedError(403, "traffic_token", "this sandbox's ports need the header e2b-traffic-access-token")
    head = to_server(arrival, session, port, keeps_authorization=True)
    return Errand(session, port, head, keeps_connection=False, upgrade=arrival.upgrade)
