"""How an annotation says where a sandbox may connect (`hekla.dev/egress`): read by who writes it into pods, and by the node that keeps to it. Pure."""

import re
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec

from hekla.api.agents.names import EGRESS
from hekla.api.agents.node_contract import EGRESS_SECRETS, SecretHeader
from hekla.lib.digits import whole_number

HTTPS, HTTP = 443, 80
MOST_RULES = 200
LONGEST_SHOWN = 100
EVERYWHERE = "*"
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)


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


def trouble_of(text: str) -> str:
    """What makes no sense of an annotation; empty: it can be kept to."""
    try:
        rules_of(text)
    except RulesError as problem:
        return str(problem)
    return ""


def rules_of(text: str) -> tuple[Rule, ...]:
    """Read an annotation: `host[:port]` separated by commas; without a port 443 and 80 are meant."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MOST_RULES:
        raise RulesError(f"there are {len(words)} egress rules; {MOST_RULES} are the most")
    return tuple(_rule_of(word) for word in words)


def secrets_of(text: str) -> list[SecretHeader]:
    """Read the annotation of headers that the broker adds: a list in JSON."""
    try:
        return msgspec.json.decode(text or "[]", type=list[SecretHeader])
    except (msgspec.MsgspecError, UnicodeEncodeError) as problem:
        raise RulesError(
            f"annotation {EGRESS_SECRETS} makes no sense ({problem}); write a list such as "
            '[{"host": "api.example.com", "secret": "api", "key": "token", "format": "Bearer {}"}]'
        ) from None


def secrets_trouble(egress: str, text: str) -> str:
    """What makes no sense of it beside the rules of the same object; empty: it can be kept to. RulesError where those make none."""
    try:
        secrets = secrets_of(text)
    except RulesError as problem:
        return str(problem)
    rules = rules_of(egress)
    for one in secrets:
        if not any(rule.allows(canonical(one.host), one.port) for rule in rules):
            return f"{EGRESS_SECRETS} names {one.host[:LONGEST_SHOWN]}:{one.port}, which {EGRESS} does not allow; add it there"
    return ""


def _rule_of(word: str) -> Rule:
    host, port = word, ""
    if word.startswith("["):
        host, _, rest = word[1:].partition("]")
        port = rest.removeprefix(":")
    elif word.count(":") == 1:
        host, _, port = word.partition(":")
    number = whole_number(port) if port else None
    if port and (number is None or not 0 < number < 65536):
        raise RulesError(f'egress rule "{word[:LONGEST_SHOWN]}" has port "{port[:LONGEST_SHOWN]}"; write 1 to 65535')
    name = (
        EVERYWHERE if host == EVERYWHERE else ("*." + canonical(host[2:]) if host.startswith("*.") else canonical(host))
    )
    if not name or name == "*.":
        raise RulesError(f'egress rule "{word[:LONGEST_SHOWN]}" names no host; write host[:port], *.example.com or *')
    return Rule(name, frozenset((number,)) if number else frozenset((HTTPS, HTTP)))


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
