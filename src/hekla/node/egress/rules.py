"""Decides where a sandbox may connect: hosts and ports by its pod's rules, and addresses by what nobody may reach. Pure.

A host is judged by name, then every address that its name resolves to is judged too, and the connection goes to a judged address, never to the
name again: a name that points inward, now or a moment later, leads nowhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from hekla.api.agents.node_contract import SecretHeader

Address = IPv4Address | IPv6Address

HTTPS, HTTP = 443, 80
MOST_RULES = 200
EVERYWHERE = "*"
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16"), IPv6Network("2001::/32"))
"""NAT64, 6to4 and Teredo: an IPv4 address in other clothes."""


class RulesError(ValueError):
    """A rule that makes no sense; the sentence names it."""


@dataclass(frozen=True)
class Rule:
    """One destination."""

    host: str
    """A name, `*.example.com` for what is below it, an address, or `*` for all."""
    ports: frozenset[int]

    def allows(self, host: str, port: int) -> bool:
        """Whether it covers a destination."""
        if port not in self.ports:
            return False
        if self.host == EVERYWHERE:
            return True
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host


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


def rules_of(text: str) -> tuple[Rule, ...]:
    """Read an annotation: `host[:port]` separated by commas; without a port 443 and 80 are meant."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MOST_RULES:
        raise RulesError(f"there are {len(words)} egress rules; {MOST_RULES} are the most")
    return tuple(_rule_of(word) for word in words)


def _rule_of(word: str) -> Rule:
    host, port = word, ""
    if word.startswith("["):
        host, _, rest = word[1:].partition("]")
        port = rest.removeprefix(":")
    elif word.count(":") == 1:
        host, _, port = word.partition(":")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise RulesError(f'egress rule "{word}" has port "{port}"; write 1 to 65535')
    name = (
        EVERYWHERE if host == EVERYWHERE else ("*." + canonical(host[2:]) if host.startswith("*.") else canonical(host))
    )
    if not name or name == "*.":
        raise RulesError(f'egress rule "{word}" names no host; write host[:port], *.example.com or *')
    return Rule(name, frozenset((int(port),)) if port else frozenset((HTTPS, HTTP)))


def canonical(host: str) -> str:
    """A host's one spelling: lower case, no dot at the end, addresses as the standard writes them; empty if it is no host.

    Numbers that only old resolvers take for addresses (`0x7f.1`, `2130706433`, `0177.0.0.1`) are no hosts.
    """
    text = host.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
    try:
        return str(ip_address(text))
    except ValueError:
        pass
    try:
        text = text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return ""
    labels = text.split(".")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return ""
    is_numeric = labels[-1].isdigit() or re.fullmatch(r"0x[0-9a-f]*", labels[-1]) is not None
    return "" if is_numeric else text


def judge(rules: Sequence[Rule], host: str, port: int) -> Verdict:
    """Whether a destination may be asked for at all; `host` as the sandbox said it."""
    name = canonical(host)
    if not name:
        return Verdict("bad-host", f'"{host[:100]}" is no host name and no address')
    if not any(rule.allows(name, port) for rule in rules):
        return Verdict("not-allowed", f"this sandbox may not reach {name}:{port}; its egress rules do not name it")
    return ALLOWED


def judge_address(address: Address) -> Verdict:
    """Whether an address may be connected to, whoever named it."""
    inner = _inner(address)
    if inner is not None:
        return judge_address(inner)
    is_ours = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_multicast or address.is_reserved
        or address.is_unspecified or not address.is_global
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
