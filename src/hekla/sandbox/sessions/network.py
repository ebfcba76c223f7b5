"""Whom a session's code may reach: what its template allows, narrowed by what its owner asked for; never more.

E2B's clients say `allowOut` and `denyOut` (hosts, addresses, networks) and `allowInternetAccess`; a template says `hekla.dev/egress`.
Pure: the egress broker of the node enforces the list that comes out.
"""

from typing import Any

from hekla.api.agents.egress import trouble_of
from hekla.sandbox.sessions.limits import RefusedError

ANYWHERE = "*"
NOBODY = "nobody.invalid"
"""A destination that no name can have (RFC 6761): who may reach nobody now, and others later, has a way out that leads nowhere yet."""
_EVERYTHING = frozenset({"0.0.0.0/0", "::/0", "*"})


def egress_of(template: str, network: dict[str, Any]) -> str:
    """The list for a sandbox; RefusedError for what no list can say. Empty only where the template's is."""
    found = _narrowed(template, network)
    return found or (NOBODY if template else "")


def _narrowed(template: str, network: dict[str, Any]) -> str:
    allowed, denied = [_destination(one) for one in _listed(network, "allowOut")], _listed(network, "denyOut")
    if network.get("allowInternetAccess") not in (None, True, False):
        raise RefusedError(400, "allowInternetAccess", '"allowInternetAccess" must be true or false')
    if network.get("allowInternetAccess") is False:
        return ""
    denies_all = bool(_EVERYTHING & set(denied))
    if denied and not denies_all:
        raise RefusedError(
            400,
            "denyOut",
            f'"denyOut" names {denied[0]!r} alone; deny everything (0.0.0.0/0) and list in "allowOut" what is allowed',
        )
    if not allowed and not denies_all:
        return template
    wanted = [] if denies_all and not allowed else [one for one in allowed if one not in _EVERYTHING]
    if _EVERYTHING & set(allowed):
        return template
    limits = [one for one in template.split(",") if one]
    if ANYWHERE in limits:
        return ",".join(wanted)
    return ",".join(one for one in wanted if any(_covers(limit, one) for limit in limits))


def _covers(limit: str, wanted: str) -> bool:
    """Whether a template's entry, `host[:port]`, lets through what is asked for."""
    host, _, port = limit.partition(":")
    asked_host, _, asked_port = wanted.partition(":")
    fits = asked_host == host or (host.startswith("*.") and asked_host.endswith(host[1:]))
    return fits and port in ("", asked_port)


def _destination(text: str) -> str:
    """An entry of `allowOut` as the egress broker reads it, which knows addresses and no networks."""
    host = text.lower().removesuffix("/32").removesuffix("/128")
    if host in _EVERYTHING:
        return host
    if trouble := trouble_of(host):
        raise RefusedError(400, "allowOut", f'"allowOut": {trouble}')
    return host


def _listed(network: dict[str, Any], name: str) -> list[str]:
    listed = network.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(one, str) and one and "," not in one for one in listed):
        raise RefusedError(400, name, f'"{name}" must be a list of hosts, addresses or networks')
    return listed
