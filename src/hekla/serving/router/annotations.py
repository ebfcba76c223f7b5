"""What ModelServers, and their pods, tell the router in annotations: how each is read, and what is wrong with one that cannot be.

The webhook refuses a ModelServer's that cannot be read (`admission_routing.py`); what came past it, and pods', which no webhook looks at,
are told in the ModelServer's conditions (`route_status.py`). Meanwhile each counts as what is said here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hekla.apiserver.validation.names import qualified_name
from hekla.lib.digits import whole_number

TOPOLOGY_KEY = "router.hekla.dev/topology-key"
"""Annotation on a ModelServer: the pods' label whose value prefill and decode must share, such as topology.kubernetes.io/zone."""
SKIP_PREFILL = "router.hekla.dev/decode-only-below-tokens"
"""Annotation on a ModelServer: prompts with fewer uncached tokens than this go to a decode engine alone."""
MOONCAKE_BOOTSTRAP = "router.hekla.dev/mooncake-bootstrap-port"
"""Annotation on a ModelServer: its engines run vLLM's own Mooncake connector and this is their bootstrap port."""

KV_EVENTS_PORT = "router.hekla.dev/kv-events-port"
"""Annotation on a ModelServer or on a pod, which wins: the port at which the engine publishes what it caches (vLLM: 5557)."""
KV_REPLAY_PORT = "router.hekla.dev/kv-replay-port"
"""Annotation likewise: the port at which missed events are asked for; without it a gap begins anew."""
RANKS = "router.hekla.dev/data-parallel-ranks"
"""Annotation likewise: how many data-parallel ranks answer at the engine's port; each has a cache of its own, and publishes at the next port."""

TOKENIZER = "router.hekla.dev/tokenizer"
"""Annotation on a ModelServer: who turns text into token ids, so that engines' KV events decide for it: `engine`, or a tokenizer.json."""
ENGINE_TOKENIZES = "engine"

OURS = "router.hekla.dev/"
MOST_PORT = 65_535
MOST_RANKS = 256
NUMBERS = {
    SKIP_PREFILL: (1 << 31) - 1,
    MOONCAKE_BOOTSTRAP: MOST_PORT,
    KV_EVENTS_PORT: MOST_PORT,
    KV_REPLAY_PORT: MOST_PORT,
    RANKS: MOST_RANKS,
}
"""Annotations that are numbers, and how large they may be; what is no number, and one beyond, counts as absent."""
OF_A_SERVER = (*NUMBERS, TOPOLOGY_KEY, TOKENIZER)
OF_A_POD = (KV_EVENTS_PORT, KV_REPLAY_PORT, RANKS)
_SHOWN = 60
"""Characters of a value that is wrong which are told."""


@dataclass(frozen=True, slots=True)
class Unread:
    """One annotation that changes nothing."""

    name: str
    value: str
    why: str
    """What is wrong, and what to write."""
    is_known: bool = True
    """Whether there is one of this name."""

    @property
    def sentence(self) -> str:
        """For a condition or a warning."""
        shown = self.value if len(self.value) <= _SHOWN else f"{self.value[:_SHOWN]}..."
        return f'annotation {self.name} says "{shown}" and counts as absent: {self.why}' if self.is_known else self.why


def number_of(told: Mapping[str, str], name: str) -> int:
    """What an annotation says; 0: it is absent, cannot be read, or is more than there may be."""
    number = whole_number(told.get(name, "")) or 0
    return number if number <= NUMBERS[name] else 0


def text_of(told: Mapping[str, str], name: str) -> str:
    """What an annotation says; empty: it is absent, or cannot be read."""
    value = told.get(name, "")
    return "" if _why_not(name, value) else value


def unreadable(told: Mapping[str, str], known: Sequence[str]) -> Iterator[Unread]:
    """Of those that are there for this object, the ones that cannot be read."""
    for name in known:
        if name in told and (why := _why_not(name, told[name])):
            yield Unread(name, told[name], why)


def unknown(told: Mapping[str, str], known: Sequence[str]) -> Iterator[Unread]:
    """Those of our prefix that nobody reads on this object."""
    for name, value in told.items():
        if name.startswith(OURS) and name not in known:
            there = f"there are {', '.join(known)}" if known else f"a ModelServer has {', '.join(OF_A_SERVER)}"
            yield Unread(name, value, f"annotation {name} is read by nobody; {there}", is_known=False)


def has_ours(told: Mapping[str, str]) -> bool:
    """Whether any is meant for the router."""
    return any(name.startswith(OURS) for name in told)


def _why_not(name: str, value: str) -> str:
    """Why a value cannot be read; empty: it can."""
    if name in NUMBERS:
        number, most = whole_number(value), NUMBERS[name]
        return f"write a number from 0 to {most}" if number is None or number > most else ""
    if name == TOPOLOGY_KEY:
        return next((f"it names a label of the pods: {said}" for said in qualified_name(value)), "") if value else ""
    if value and value != ENGINE_TOKENIZES and not value.startswith("/"):
        return f"write {ENGINE_TOKENIZES}, or the path of a tokenizer.json in the router's file system"
    return ""
