"""Decides where a sandbox may connect: hosts and ports by its pod's rules, and addresses by what nobody may reach. Pure.

A host is judged by name, then every address that its name resolves to is judged too, and the connection goes to a judged address, never to the
name again: a name that points inward, now or a moment later, leads nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

from hekla.api.agents.egress import Rule, canonical
from hekla.api.agents.names import EGRESS
from hekla.api.agents.node_contract import SecretHeader

Address = IPv4Address | IPv6Address

LONGEST_HOST = 256
"""Characters: a name may end in any number of dots, an address in any zone, and the log repeats them."""
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16"), IPv6Network("2001::/32"))
"""NAT64, 6to4 and Teredo: an IPv4 address in other clothes."""
_NOBODYS = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "fec0::/10", "3fff::/20")))
"""What Python takes for a part of the Internet, and is none: Azure's WireServer, which tells a machine of its own; addresses of protocols, with
Oracle's old metadata; relays of 6to4; sites as they were before fc00::/7; examples."""


@dataclass(frozen=True)
class Verdict:
    """Whether, and why not: `code` is stable, for the audit log and counters."""

    code: str = ""
    message: str = ""

    @property
    def is_allowed(self) -> bool:
        """Nothing speaks against it."""
        return not self.code


ALLOWED = Verdict()


def judge(rules: Sequence[Rule], host: str, port: int) -> Verdict:
    """Whether a destination may be asked for at all; `host` as the sandbox said it."""
    name = canonical(host)
    if not name or len(host) > LONGEST_HOST:
        return Verdict("bad-host", f'"{host[:100]}" is no host name and no address')
    if not any(rule.allows(name, port) for rule in rules):
        return Verdict(
            "not-allowed",
            f"this sandbox may not reach {name}:{port}; its egress rules do not name it (annotation {EGRESS} of its template)",
        )
    return ALLOWED


def judge_address(address: Address) -> Verdict:
    """Whether an address may be connected to, whoever named it."""
    inner = _inner(address)
    if inner is not None:
        return judge_address(inner)
    is_ours = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_multicast or address.is_reserved
        or address.is_unspecified or not address.is_global or any(address in network for network in _NOBODYS)
    )  # fmt: skip
    if is_ours:
        return Verdict(
            "private-address",
            f"{address} is not on the Internet: private, local and metadata addresses are out of reach",
        )
    return ALLOWED


def _inner(address: Address) -> Address | None:
    """The IPv4 address within an IPv6 one."""
    if not isinstance(address, IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _TRANSLATED[0]:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    return None


def header_for(secrets: Sequence[SecretHeader], host: str) -> tuple[SecretHeader, ...]:
    """The headers that the broker adds for a host."""
    name = canonical(host)
    return tuple(one for one in secrets if canonical(one.host) == name)
