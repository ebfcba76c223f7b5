"""A sandbox's network as E2B's clients ask for it, read strictly: what we would not keep to is refused, never left out in silence.

What an owner asks for here is narrowed by the template's own rules in `sessions/network.py`.
"""

import re
from typing import Any, Final

from hekla.sandbox.sessions.limits import RefusedError

FIXED: Final = ("allowPublicTraffic", "maskRequestHost")
"""What stays when the network of a running sandbox is changed."""
_NOT_SERVED: Final = {
    "rules": "name headers in the template's annotation hekla.dev/egress-secrets",
    "egressProxy": "there is no other way out than the node's broker",
}
_MASK = re.compile(r"[A-Za-z0-9._:\[\]${}-]{1,255}")


def asked_network(network: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a document `network`, with the field beside it that closes the Internet; RefusedError."""
    for name, instead in _NOT_SERVED.items():
        if network.get(name):
            raise RefusedError(400, name, f'"network.{name}" is not served here; {instead}')
    wanted: dict[str, Any] = {name: network[name] for name in ("allowOut", "denyOut") if network.get(name) is not None}
    if network.get("allowPublicTraffic") is not None:
        wanted["allowPublicTraffic"] = flag(network, "allowPublicTraffic", True)
    if network.get("maskRequestHost") is not None:
        wanted["maskRequestHost"] = _mask(network["maskRequestHost"])
    for where, name in ((network, "allowInternetAccess"), (body, "allow_internet_access")):
        if where.get(name) is not None:
            wanted["allowInternetAccess"] = flag(where, name, True)
    return wanted


def flag(body: dict[str, Any], name: str, default: bool) -> bool:
    """True or false; RefusedError."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RefusedError(400, name, f'"{name}" must be true or false')
    return value


def _mask(value: object) -> str:
    """It becomes a line of a head, so it must be a host and nothing more; empty: none."""
    if value != "" and not (isinstance(value, str) and _MASK.fullmatch(value)):
        raise RefusedError(400, "maskRequestHost", '"maskRequestHost" must be a host, with ${PORT} where the port goes')
    return str(value)
