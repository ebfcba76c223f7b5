"""How E2B's clients read refusals, and sessions as they read sandboxes."""

import hmac
from datetime import UTC, datetime
from typing import Any, Final

from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.logs import LogLine
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.records import Session, Snapshot
from hekla.sandbox.sessions.stock import Blueprint

ENVD_VERSION: Final = "0.6.4"
"""Of envd, as far as clients ask what it can do: all that they know."""
CLIENT_ID: Final = "hekla"
NOT_RUNNING: Final = "The sandbox was not found"
PORT_CLOSED: Final = "The sandbox is running but port is not open"


def worded(status: int, reason: str, sentence: str) -> tuple[int, bytes]:
    """A refusal of the control plane."""
    return status, document({"code": status, "message": sentence})


def worded_inside(status: int, reason: str, sentence: str) -> tuple[int, bytes]:
    """A refusal on the way inside: 502 says that nothing answers, and its text which of two things that means."""
    if reason == "port_closed":
        return 502, document({"code": 502, "message": PORT_CLOSED, "detail": sentence})
    if reason == "not_served":
        return 404, document({"code": 404, "message": sentence})
    if status == 404 or reason in ("session_ended", "broken_off", "unreachable", "sandbox_gone", "paused"):
        return 502, document({"code": 502, "message": NOT_RUNNING, "detail": sentence})
    return status, document({"code": status, "message": sentence})


def traffic_token(session: Session) -> str:
    """What E2B's clients show as the traffic token; empty where whoever knows a session's id may do all.

    Ports want it only without public traffic. `e2b-code-interpreter` shows it, and not the access token, when it tends contexts:
    so where traffic is public there is one for these alone. It follows from the access token, which cannot be had from it.
    """
    if session.traffic_token or not session.access_token:
        return session.traffic_token
    return hmac.digest(session.access_token.encode(), b"contexts", "sha256").hex()


def created(session: Session, domain: str) -> dict[str, Any]:
    """The answer to create, connect and resume."""
    return {
        "templateID": session.snapshot or session.name,
        "sandboxID": session.id,
        "clientID": CLIENT_ID,
        "alias": session.name,
        "envdVersion": ENVD_VERSION,
        **({"envdAccessToken": session.access_token} if session.access_token else {}),
        **({"trafficAccessToken": token} if (token := traffic_token(session)) else {}),
        **({"domain": domain} if domain else {}),
    }


def listed(session: Session, blueprint: Blueprint | None) -> dict[str, Any]:
    """One line of a list."""
    return {
        "templateID": session.snapshot or session.name,
        "alias": session.name,
        "sandboxID": session.id,
        "clientID": CLIENT_ID,
        "startedAt": time_of(session.created_s),
        "endAt": time_of(session.expires_s or session.ends_s or session.created_s),
        "cpuCount": max(1, blueprint.cpu_milli // 1000) if blueprint else 1,
        "memoryMB": blueprint.memory_bytes >> 20 if blueprint else 0,
        "diskSizeMB": blueprint.disk_bytes >> 20 if blueprint else 0,
        "metadata": session.metadata,
        "state": "paused" if session.state is State.PAUSED else "running",
        "envdVersion": ENVD_VERSION,
    }


def detail(session: Session, blueprint: Blueprint | None, domain: str) -> dict[str, Any]:
    """All of one."""
    action = "pause" if session.on_timeout == "pause" else "kill"
    access = session.network.get("allowInternetAccess")
    return {
        **listed(session, blueprint),
        **({"envdAccessToken": session.access_token} if session.access_token else {}),
        **({"domain": domain} if domain else {}),
        "lifecycle": {"onTimeout": action, "autoResume": session.auto_resume},
        **({"allowInternetAccess": access} if access is not None else {}),
        **({"network": shown} if (shown := network(session)) else {}),
    }


def network(session: Session) -> dict[str, Any]:
    """The network as it was asked for."""
    return {name: value for name, value in session.network.items() if name != "allowInternetAccess"}


def snapshot(one: Snapshot) -> dict[str, Any]:
    """One snapshot."""
    return {"snapshotID": one.id, "names": list(one.names)}


def log_entry(one: LogLine) -> dict[str, Any]:
    """One line of a log, with what is known of it."""
    return {
        "timestamp": time_of(one.at_ms / 1000), "message": one.message, "level": one.level, "fields": one.fields,
    }  # fmt: skip


def log_line(one: LogLine) -> dict[str, Any]:
    """The same as older clients read it."""
    return {"timestamp": time_of(one.at_ms / 1000), "line": one.message}


def time_of(seconds: float) -> str:
    """A time as they write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
