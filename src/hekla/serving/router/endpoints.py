"""The engines behind the router, one mutable record each: what we sent them and have not seen the end of, and what they say of themselves.

Load is counted here and now, as a scrape is a second old and a burst takes ten milliseconds. What an engine says of itself
corrects slowly, and is unknown until it does: None, never zero. `pool.py` keeps the records of one model server together.
"""

import ctypes
from dataclasses import dataclass, field

from hekla.serving.router.prefix.precise import PreciseIndex

BENCH_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long an endpoint sits out after its first, second, ... fault in a row; faults of the rows before count, too (`CALM_S`)."""
CALM_S = 10.0
"""After so long of answering, one fault of the rows before is forgotten, and after as long again the next.

As Envoy's outlier detection has it, which sets a host aside for longer each time and takes one time back for each of its intervals (10 s)
in which it was not: https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

MOST_LEFT = 1024
"""Of endpoints that left, so many are remembered: 1 KiB each, and most that come back do so within minutes."""


class Counts(ctypes.Structure):
    """What is counted on an engine, in words of eight bytes that the compiled decision reads where they stand (`kernel/`).

    Read and written like any attribute; 40 ns instead of 10, and a decision in machine code copies nothing.
    """

    __slots__ = ()
    _fields_ = (
        ("in_flight", ctypes.c_int64),
        ("unanswered", ctypes.c_int64),
        ("prefill_tokens", ctypes.c_int64),
        ("context_tokens", ctypes.c_int64),
        ("decode_tokens", ctypes.c_int64),
        ("elsewhere_in_flight", ctypes.c_int64),
        ("elsewhere_prefill_tokens", ctypes.c_int64),
        ("assigned", ctypes.c_double),
        ("prefilled_lately", ctypes.c_double),
        ("busy_s", ctypes.c_double),
        ("busy_since", ctypes.c_double),
        ("heard_at", ctypes.c_double),
    )

    in_flight: int
    """Requests that we sent and that have not ended."""
    unanswered: int
    """Of these, requests that have no first byte yet."""
    prefill_tokens: int
    """Tokens of prompts that it had not cached, sent and not yet answered by a first byte."""
    context_tokens: int
    """Tokens that requests in flight hold in its KV cache, expected answers included."""
    decode_tokens: int
    """Tokens that requests in flight are expected to be answered with, until they end."""
    elsewhere_in_flight: int
    """Requests in flight through other replicas of the router, where they tell one another."""
    elsewhere_prefill_tokens: int
    assigned: float
    """Uncached tokens sent in the last minutes, in `Pool`'s decaying unit: evens out what moments do not."""
    prefilled_lately: float
    """Uncached tokens sent in the last half minute, fading: how busy it is with prompts, whatever waits at this moment."""
    busy_s: float
    """Time of the last minutes in which it had requests of ours, fading as `assigned` does."""
    busy_since: float
    """From when on that is still to be counted, while it has any."""
    heard_at: float
    """When a step of it was last seen to end: an answer began, or one was whole."""

    @classmethod
    def word(cls, name: str) -> int:
        """At which word a count stands."""
        return int(getattr(cls, name).offset) // 8


@dataclass(slots=True, eq=False)
class Endpoint(Counts):
    """One engine: a pod of a model server, or one data-parallel rank of it. Compared by identity, written by the router's loop only."""

    name: str
    """For logs and metrics: the pod's name."""
    host: str
    port: int
    is_tls: bool = False
    verifies: bool = False
    """Whether its certificate is checked: pods are dialled by address, theirs is not."""
    slot: int = 0
    """Its bit in masks; `Fleet` gives it and takes it back."""

    namespace: str = ""
    role: str = ""
    """prefill, decode, or empty for an engine that does both."""
    group: str = ""
    """The value of the pods' group key: prefill and decode are paired within."""
    domain: str = ""
    """The topology domain that it stands in, where one is configured."""
    revision: str = ""
    """Of its serving group's template: pairs stay within one."""
    incarnation: str = ""
    """Changes when the engine began anew, as a pod's uid and its restarts: what it had cached is gone."""
    started_s: float = 0.0
    """When the last of its pod's containers began, in seconds since 1970; 0: unknown."""
    events_port: int = 0
    """Where it publishes what it caches; 0: it does not."""
    replay_port: int = 0
    rank: int | None = None
    """Of its engine's data-parallel ranks the one that this is; None: the whole engine."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """What a request must carry to come to this rank."""

    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1, as scraped."""
    waiting: int | None = None
    running: int | None = None
    ttft_s: float | None = None
    """Mean time to first token since the last scrape."""
    tpot_s: float | None = None
    """Mean time per output token since the last scrape."""
    cache_tokens: int | None = None
    """Size of its KV cache: num_gpu_blocks * block_size of cache_config_info."""
    acceptance: float | None = None
    """Share of speculated tokens that were accepted."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that it lists."""
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    max_adapters: int | None = None
    has_events: bool = False
    """Whether its KV events are followed."""

    faults: int = 0
    """In a row: how often it was set aside since it last answered."""
    illnesses: int = 0
    """Of these, those for which it is to sit out longer the next time, too: not those of an engine that had no room."""
    relapses: int = 0
    """Those of the rows before that were not forgotten by `calm_since`."""
    calm_since: float = 0.0
    """When the last row ended."""
    faulted_at: float = 0.0
    """When it last failed."""
    benched_until: float = 0.0
    """When it may be tried again; it is tried earlier if nobody else is left."""

    __hash__ = object.__hash__  # a structure of ctypes has none

    def begin(self, now: float) -> None:
        """A request is sent to it."""
        if not self.in_flight:
            self.busy_since = now
        self.in_flight += 1

    def end(self, now: float) -> None:
        """A request to it is over."""
        self.in_flight -= 1
        if not self.in_flight:
            self.busy_s += now - self.busy_since

    def fault(self, now: float, *, is_ill: bool = True) -> None:
        """It failed an attempt: others are asked first for a while, the longer the more often that was so lately.

        Many requests that fail at once are one fault. `is_ill`: whether it is to sit out longer the next time, too, once it has answered.
        """
        self.faulted_at = now
        if now < self.benched_until:
            return
        lately = self._relapses(now) if is_ill else 0
        self.benched_until = now + BENCH_S[min(self.faults + lately, len(BENCH_S) - 1)]
        self.faults += 1
        self.illnesses += is_ill

    def answered_at(self, when: float) -> None:
        """It answered then, of which is told late: what went wrong since is not forgiven."""
        if self.faults and when > self.faulted_at:
            self.answered(when)

    def answered(self, now: float) -> None:
        """It answered, and is asked as all others are; how often it has failed is remembered for a while, if it sat out to the end.

        Where it answers before that, others' requests went well all the time: nothing was wrong but that one.
        """
        if now >= self.benched_until:
            self.relapses = min(self.illnesses + self._relapses(now), len(BENCH_S))
            self.calm_since = now
        self.faults = self.illnesses = 0
        self.benched_until = 0.0

    @property
    def pod_uid(self) -> str:
        """Whose engine it is: a container of that pod may have begun anew."""
        return self.incarnation.partition("/")[0]

    def remember(self, left: "Endpoint") -> None:
        """It is the engine of a pod that was not ready for a while: it sits out, and is forgiven, as if it had stayed."""
        self.faults, self.illnesses, self.relapses = left.faults, left.illnesses, left.relapses
        self.calm_since, self.faulted_at, self.benched_until = left.calm_since, left.faulted_at, left.benched_until

    def _relapses(self, now: float) -> int:
        """Faults of the rows before that are not forgotten by now."""
        return max(0, self.relapses - int((now - self.calm_since) / CALM_S)) if self.relapses else 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one scrape of an engine says; None where it says nothing."""

    kv_usage: float | None = None
    waiting: int | None = None
    running: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    cache_tokens: int | None = None
    acceptance: float | None = None
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    max_adapters: int | None = None


@dataclass(slots=True)
class Fleet:
    """All endpoints of one router process; gives each a slot, the lowest that is free."""

    by_name: dict[str, Endpoint] = field(default_factory=dict)
    """By `namespace/name`."""
    precise: PreciseIndex = field(default_factory=PreciseIndex)
    """What engines tell of their caches."""
    changes: int = 0
    """Counts whatever changes who may be chosen, and how: what is derived from it is derived anew."""
    _used: int = 0
    _left: dict[str, Endpoint] = field(default_factory=dict)
    """Those that left last, by the same names: their pods may be ready again."""

    def add(self, endpoint: Endpoint) -> Endpoint:
        """The record of this pod: the one we have, brought up to date with its counts kept, or this one."""
        known = self.by_name.get(key := f"{endpoint.namespace}/{endpoint.name}")
        if known is not None:
            for name in (
                "host",
                "port",
                "is_tls",
                "role",
                "group",
                "domain",
                "revision",
                "incarnation",
                "started_s",
                "events_port",
                "replay_port",
                "rank",
                "headers",
            ):
                setattr(known, name, getattr(endpoint, name))
            return known
        if (left := self._left.pop(key, None)) is not None and left.pod_uid == endpoint.pod_uid:
            endpoint.remember(left)
        endpoint.slot = (~self._used & (self._used + 1)).bit_length() - 1
        self._used |= 1 << endpoint.slot
        self.by_name[key] = endpoint
        return endpoint

    def remove(self, endpoint: Endpoint) -> None:
        """Its slot is free again; requests in flight go on counting on the record, of which only its faults are looked at once more."""
        key = f"{endpoint.namespace}/{endpoint.name}"
        if self.by_name.pop(key, None) is endpoint:
            self._used &= ~(1 << endpoint.slot)
            self.precise.forget(endpoint.slot)
            self._left[key] = endpoint
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]  # who left first


def take_in(endpoint: Endpoint, sample: Sample) -> None:
    """Note what an engine said; what it left out stays as it was, save latencies, which are of the last second or unknown."""
    for name in ("kv_usage", "waiting", "running", "cache_tokens", "acceptance", "max_adapters"):
        if (value := getattr(sample, name)) is not None:
            setattr(endpoint, name, value)
    endpoint.ttft_s = sample.ttft_s if sample.ttft_s is not None else endpoint.ttft_s
    endpoint.tpot_s = sample.tpot_s if sample.tpot_s is not None else endpoint.tpot_s
    endpoint.running_adapters = sample.running_adapters
    endpoint.waiting_adapters = sample.waiting_adapters
