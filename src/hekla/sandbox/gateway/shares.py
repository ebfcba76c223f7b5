"""Who may come in: so many connections together, and of one address at most three times as many as are still free.

By that rule switches share a buffer among their ports (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
switches", 1998). One address alone gets three quarters of the door, so a reverse proxy or a load test is not held back; of `n` greedy
ones each gets `3 / (1 + 3n)`, and a third of that stays free for whoever comes next. Nobody who is in is put out. Postfix, too, lets one
client have half of its processes; nginx and HAProxy can bound connections by address and leave the number to the operator.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from hekla.wire.limits import is_flood

_TIMES_WHAT_IS_FREE = 3
_NETWORK_BITS = 64
"""Of IPv6: a host is given a network of so many, and may use every address in it."""

_TRANSLATED = IPv6Network("64:ff9b::/96")
"""Behind it are the addresses of who comes by IPv4 to a network that has none (RFC 6052, 7755): all of IPv4 is no one host."""


class Answer(StrEnum):
    """What a connection meets at the door; the words are those of the metric."""

    COME_IN = "come_in"
    FULL = "full"
    """All places are taken."""
    SHARE = "share"
    """Its address has its share."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How one connection stands at the door until it leaves."""

    origin: str
    answer: Answer
    is_told: bool = True
    """Whether a refusal is told; of a flood the connections are cut."""


@dataclass(slots=True)
class Shares:
    """Places at the door, and who has them."""

    most: int
    """Places; as many as an eighth of them and 16 may be told at a time that there is none for them."""
    taken: int = 0
    told: int = 0
    """Connections that are being told."""
    _of: Counter[str] = field(default_factory=Counter)
    """Places by origin."""

    def enter(self, origin: str) -> Entry:
        """Take a place, or learn that there is none; `leave` gives it back."""
        free = self.most - self.taken
        if self._of[origin] < _TIMES_WHAT_IS_FREE * free:
            self._of[origin] += 1
            self.taken += 1
            return Entry(origin, Answer.COME_IN)
        self._forget(origin)
        self.told += 1
        is_told = not is_flood(self.most + self.told, self.most)
        return Entry(origin, Answer.SHARE if free else Answer.FULL, is_told)

    def leave(self, entry: Entry) -> None:
        """The connection is over."""
        if entry.answer is Answer.COME_IN:
            self.taken -= 1
            self._of[entry.origin] -= 1
            self._forget(entry.origin)
        else:
            self.told -= 1
        assert self.taken >= 0, "whoever leaves has come in"
        assert self.told >= 0, "whoever was told has come"

    def of(self, origin: str) -> int:
        """How many places an origin has."""
        return self._of.get(origin, 0)

    def _forget(self, origin: str) -> None:
        if not self._of[origin]:
            del self._of[origin]


def origin_of(address: str) -> str:
    """Whose an address is: an IPv4 address stands for itself; one of IPv6 for its network of 64 bits, all of which one host has."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed in _TRANSLATED:
        return str(IPv4Address(int(parsed) & 0xFFFF_FFFF))
    return f"{IPv6Address(int(parsed) >> _NETWORK_BITS << _NETWORK_BITS)}/{_NETWORK_BITS}"
