"""Heads as they go on inside: what is the gateway's business, or a key to it, stays outside."""

import re

from hekla.sandbox.gateway.front import Arrival
from hekla.sandbox.sessions.records import Session
from hekla.wire.raw_heads import RequestHead, onward_lines

_FOR_NOBODY = (
    rb"x-api-key|e2b-sandbox-id|e2b-sandbox-port|e2b-traffic-access-token|x-agentcube-session-id|x-sandbox-[a-z-]+"
)
_TO_DAEMON = re.compile(rb"(?im)^(?:" + _FOR_NOBODY + rb"):[^\n]*\n")
_TO_DAEMON_AS_US = re.compile(rb"(?im)^(?:authorization|x-access-token|" + _FOR_NOBODY + rb"):[^\n]*\n")
_TO_SERVER = re.compile(rb"(?im)^(?:x-access-token|x-forwarded-[a-z]+|forwarded|" + _FOR_NOBODY + rb"):[^\n]*\n")
_TO_SERVER_AS_NOBODY = re.compile(
    rb"(?im)^(?:authorization|x-access-token|x-forwarded-[a-z]+|forwarded|" + _FOR_NOBODY + rb"):[^\n]*\n"
)
_HOST = re.compile(rb"(?im)^host:[^\n]*\n")


def to_daemon(arrival: Arrival, *, target: bytes = b"", authorization: bytes = b"") -> bytes:
    """For the daemon: the client's own credentials for it go along, ours instead of the client's where there are some."""
    drops = _TO_DAEMON_AS_US if authorization else _TO_DAEMON
    return _head(arrival.head, target, drops.sub(b"", onward_lines(arrival.head)) + authorization)


def to_legacy_daemon(arrival: Arrival, session: str) -> bytes:
    """For the daemon in agent-sandbox's dialect, which it knows by a header."""
    lines = _TO_DAEMON_AS_US.sub(b"", onward_lines(arrival.head)) + b"x-sandbox-id: %b\r\n" % session.encode()
    return _head(arrival.head, b"", lines)


def to_server(
    arrival: Arrival, session: Session, port: int, *, target: bytes = b"", keeps_authorization: bool
) -> bytes:
    """For a server of the user's: no key to the gateway or to the daemon ever gets there."""
    drops = _TO_SERVER if keeps_authorization else _TO_SERVER_AS_NOBODY
    lines = drops.sub(b"", onward_lines(arrival.head))
    if session.mask_host:
        mask = session.mask_host.replace("${PORT}", f"{port}").encode("latin-1", "ignore")
        lines = _HOST.sub(b"", lines) + b"host: %b\r\n" % mask
    proto = b"https" if arrival.visitor.is_tls else b"http"
    host = arrival.headers.get("host", "").encode("latin-1")
    lines += b"x-forwarded-for: %b\r\nx-forwarded-host: %b\r\nx-forwarded-proto: %b\r\n" % (
        arrival.visitor.peer.encode(), host, proto
    )  # fmt: skip
    upgrade = arrival.upgrade
    if upgrade:
        lines += b"connection: Upgrade\r\nupgrade: %b\r\n" % upgrade
    return _head(arrival.head, target, lines)


def _head(head: RequestHead, target: bytes, lines: bytes) -> bytes:
    if head.is_chunked:
        lines += b"transfer-encoding: chunked\r\n"
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (head.method, target or head.target, lines)
