"""What replicas of the router tell one another: how much each has sent to which engine, and which prompts and sessions went where.

Loads are told as they are, so that a lost message is made good by the next; prompts are told once, and one that is lost is only a
guess less. Who is not heard of for three seconds counts for nothing. Processes that are one router (`hekla run router --processes`)
also tell what they took from budgets, which are theirs together, and how their lines stand (`queues.py`). Pure: `replicas.py` carries the messages.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.limits import Spent
from hekla.serving.router.policies.session_affinity import Sessions
from hekla.serving.router.prefix.blocks import Blocks
from hekla.serving.router.prefix.index import PromptMemory
from hekla.serving.router.queues import NOWHERE, Deed, Elsewhere

EVERY_S: Final = 0.05
"""How often a router tells what changed: the staleness of what the others know."""
WHOLE_EVERY_S: Final = 1.0
"""How often it tells everything, changed or not: it is alive, and what was lost is made good."""
SILENT_S: Final = 3.0
"""After so long a router's requests no longer count."""
MOST_PEERS: Final = 256
MOST_BYTES: Final = 60_000
"""Of one message, so that it fits a datagram; prompts beyond it are not told."""
MOST_SESSIONS_TOLD: Final = 100
"""In one message; a session beyond them may be sent elsewhere once."""
LONGEST_SESSION: Final = 200
MOST_BLOCKS: Final = 2_048
"""Of one prompt that is told: a megabyte of text."""

Load = tuple[int, int]
"""Requests in flight, tokens of prompts that wait for their first byte."""


class Report(Struct, frozen=True, array_like=True):
    """One message."""

    router: str
    """Of one process: a router that starts anew is another."""
    is_whole: bool
    """Whether endpoints that are left out have no load."""
    loads: dict[str, Load]
    """By endpoint, `namespace/name`."""
    prompts: list[tuple[str, bytes]]
    """Endpoints and the block hashes of prompts sent to them, eight bytes each."""
    sessions: list[tuple[str, str]] = []
    """Sessions that began or moved, and the endpoints that they are with."""
    family: str = ""
    """Whose budgets are spent: processes of one family are one router. Empty: nobody's but the router's own."""
    spent: dict[str, Spent] = {}
    """What was taken from budgets since the last message."""
    lines: dict[str, tuple[int, int]] | None = None
    """Of a family: by model how many that had to wait for their turn are under way, and how many wait. None: as told before."""
    deeds: list[Deed] = []
    """Of a family: what its lines count by user or session, since the last message."""


class Budgets(Protocol):
    """The budgets that a family has in common: `limits.Limits`."""

    def tell(self) -> Mapping[str, Spent]:
        """What was taken here since the last time."""

    def take_told(self, told: Mapping[str, Spent], now: float) -> None:
        """What was taken elsewhere."""


class Turns(Protocol):
    """The lines that a family has in common: `queues.Lines`."""

    def tell(self) -> tuple[dict[str, tuple[int, int]], Sequence[Deed]]:
        """How the lines stand here, and what is counted by user or session."""

    def take_told(self, elsewhere: Mapping[str, Elsewhere], deeds: Iterable[Deed], sharers: int, now: float) -> None:
        """How they stand elsewhere, and what was counted there."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Report)


class KnownBlocks(Blocks):
    """A prompt of which only the hashes are known."""

    __slots__ = ()

    def __init__(self, hashes: list[int]) -> None:
        super().__init__(b"", 0)
        self._hashes = hashes
        self.count = len(hashes)


class Peer:
    """Another router."""

    __slots__ = ("heard_at", "is_family", "lines", "loads")

    def __init__(self) -> None:
        self.heard_at = 0.0
        self.is_family = False
        self.loads: dict[str, Load] = {}
        self.lines: dict[str, tuple[int, int]] = {}


class Ledger:
    """What this router tells and what it was told."""

    def __init__(
        self,
        router: str,
        fleet: Fleet,
        indexes_of: Callable[[Endpoint], Iterable[PromptMemory]],
        *,
        sessions_of: Callable[[Endpoint], Iterable[Sessions]] = lambda _: (),
        family: str = "",
        budgets: Budgets | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`indexes_of` and `sessions_of` find the memories of prompts and sessions that an endpoint is in: one for each of its pools."""
        self.router = router
        self.faults = 0
        """Messages that could not be read."""
        self._fleet = fleet
        self._indexes_of = indexes_of
        self._sessions_of = sessions_of
        self._family = family
        self._budgets = budgets if family else None
        self._turns = turns if family else None
        self._told_lines: dict[str, tuple[int, int]] = {}
        self._sessions: list[tuple[str, str]] = []
        self._peers: dict[str, Peer] = {}
        self._told: dict[str, Load] = {}
        self._whole_at = float("-inf")
        self._prompts: list[tuple[str, bytes]] = []
        self._prompt_bytes = 0

    @property
    def peers(self) -> int:
        """Routers heard of lately."""
        return len(self._peers)

    def sent(self, blocks: Blocks, endpoint: Endpoint) -> None:
        """A prompt was sent to an endpoint; told with the next report, if there is room in it."""
        size = 8 * min(blocks.count, MOST_BLOCKS)
        if size and self._peers and self._prompt_bytes + size <= MOST_BYTES // 2:
            hashes = np.array(blocks.first(MOST_BLOCKS)[:MOST_BLOCKS], dtype=np.uint64)
            self._prompts.append((_key(endpoint), hashes.tobytes()))
            self._prompt_bytes += size

    def settled(self, session: str, endpoint: Endpoint) -> None:
        """A session began or moved; told with the next report, if there is room in it."""
        if self._peers and len(self._sessions) < MOST_SESSIONS_TOLD and len(session) <= LONGEST_SESSION:
            self._sessions.append((session, _key(endpoint)))

    def report(self, now: float) -> bytes | None:
        """What to tell now; None: nothing is new."""
        is_whole = now - self._whole_at >= WHOLE_EVERY_S
        loads = {
            key: load
            for key, one in self._fleet.by_name.items()
            if (load := (one.in_flight, one.prefill_tokens)) != self._told.get(key, (0, 0)) or (is_whole and any(load))
        }
        spent = dict(self._budgets.tell()) if self._budgets is not None and self._peers else {}
        lines, deeds = self._turns.tell() if self._turns is not None and self._peers else ({}, ())
        has_news = bool(loads or self._prompts or self._sessions or spent or deeds or lines != self._told_lines)
        if not is_whole and not has_news:
            return None
        if is_whole:
            self._whole_at = now
            self._told = dict(loads)
        else:
            self._told.update(loads)
        prompts, self._prompts, self._prompt_bytes = self._prompts, [], 0
        sessions, self._sessions = self._sessions, []
        told = lines if is_whole or lines != self._told_lines else None
        self._told_lines = lines
        report = Report(self.router, is_whole, loads, prompts, sessions, self._family, spent, told, list(deeds))
        return _ENCODER.encode(report)

    def take(self, message: bytes, now: float) -> None:
        """Note what another router told; its own words come back to it and are passed over."""
        try:
            report = _DECODER.decode(message)
        except (msgspec.DecodeError, RecursionError):
            self.faults += 1
            return
        if report.router == self.router:
            return
        peer = self._peers.get(report.router)
        if peer is None:
            if len(self._peers) >= MOST_PEERS:
                return
            peer = self._peers[report.router] = Peer()
            self._whole_at = float("-inf")  # who has just come is told everything at once
        peer.heard_at = now
        touched = peer.loads.keys() | report.loads.keys() if report.is_whole else report.loads.keys()
        peer.loads = dict(report.loads) if report.is_whole else {**peer.loads, **report.loads}
        for key in touched:
            self._sum_up(key)
        for key, hashes in report.prompts:
            self._learn(key, hashes, now)
        for session, key in report.sessions:
            if (endpoint := self._fleet.by_name.get(key)) is not None:
                for one in self._sessions_of(endpoint):
                    one.take_told(session, endpoint, now)
        if self._budgets is not None and report.family == self._family and report.spent:
            self._budgets.take_told(report.spent, now)
        if self._turns is not None and report.family == self._family:
            peer.is_family = True
            peer.lines = peer.lines if report.lines is None else report.lines
            self._tell_turns(report.deeds, now)

    def _tell_turns(self, deeds: Iterable[Deed], now: float) -> None:
        """Lines as they stand in all other processes of the family."""
        assert self._turns is not None, "who calls has looked"
        family = [one for one in self._peers.values() if one.is_family]
        elsewhere: dict[str, Elsewhere] = {}
        for peer in family:
            for model, (in_flight, waiting) in peer.lines.items():
                before = elsewhere.get(model, NOWHERE)
                elsewhere[model] = Elsewhere(before.in_flight + max(0, in_flight), before.waiting + (waiting > 0))
        self._turns.take_told(elsewhere, deeds, len(family) + 1, now)

    def expire(self, now: float) -> None:
        """Count for nothing who is silent; and count for everything an endpoint that has just come."""
        for name in [name for name, one in self._peers.items() if now - one.heard_at > SILENT_S]:
            del self._peers[name]
        if self._turns is not None:
            self._tell_turns((), now)
        for key in self._fleet.by_name:
            self._sum_up(key)

    def _sum_up(self, key: str) -> None:
        endpoint = self._fleet.by_name.get(key)
        if endpoint is None:
            return
        loads = [one.loads[key] for one in self._peers.values() if key in one.loads]
        endpoint.elsewhere_in_flight = sum(max(0, load[0]) for load in loads)
        endpoint.elsewhere_prefill_tokens = sum(max(0, load[1]) for load in loads)

    def _learn(self, key: str, hashes: bytes, now: float) -> None:
        endpoint = self._fleet.by_name.get(key)
        if endpoint is None or len(hashes) % 8:
            return
        blocks = KnownBlocks(np.frombuffer(hashes, dtype=np.uint64).tolist())
        for index in self._indexes_of(endpoint):
            index.insert(blocks, endpoint.slot, now)


def _key(endpoint: Endpoint) -> str:
    return f"{endpoint.namespace}/{endpoint.name}"
