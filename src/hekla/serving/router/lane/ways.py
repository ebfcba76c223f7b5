"""What the fast lane may decide by itself: heads that Python has read, and models that every request for goes one plain way.

A template is a head but for the digits of its length; a way is what a model leads to from a template: one pool, without a rule, a rewrite
or a session. When anything changes of routes, engines, policies, budgets or keys, all ways are looked up anew before the code goes on.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hekla.serving.router.authentication import Authentication
from hekla.serving.router.backends import Traits
from hekla.serving.router.director import Director
from hekla.serving.router.doors import Doors
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.house import House
from hekla.serving.router.lane.layout import ENDPOINTS, TEMPLATES, WAYS, State
from hekla.serving.router.lane.layout import Endpoint as Place
from hekla.serving.router.lane.layout import Template as Head
from hekla.serving.router.lane.layout import Way as Row
from hekla.serving.router.lane.slabs import PATIENCE_S, Slabs
from hekla.serving.router.limits import Budget
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.flat_index import FlatIndex
from hekla.serving.router.proxy.open_connections import OpenConnections
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.serving.router.proxy.usage import tells_usage
from hekla.serving.router.question import Question
from hekla.serving.router.reading import INFERENCE_PATHS
from hekla.serving.router.reception import path_of
from hekla.wire.raw_heads import Memo, RequestHead, request_bytes

IntArray = NDArray[np.int64]

_MANY: Final = 1 << 40
_MOST_FACTS: Final = 4 * WAYS


@dataclass(slots=True)
class Address:
    """Where an engine is, a `Target`: its record moves when its pod is made anew, and connections do not."""

    name: str
    host: str
    port: int
    is_tls: bool
    verifies: bool


@dataclass(slots=True, eq=False)
class Template:
    """A head that clients send again and again."""

    number: int
    head: RequestHead
    path: str
    headers: Mapping[str, str]
    kept: tuple[bytes, bytes, bytes]
    """The bytes that the code compares with and sends."""
    ways: dict[str, "Way"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Way:
    """Where requests for one model go from one template."""

    number: int
    template: Template
    model: str
    name: bytes
    facts: "Facts | None" = None
    """None: Python decides."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What all of them have in common."""

    destination: Destination
    pool: Pool
    index: FlatIndex
    traits: Traits
    budgets: tuple[Budget | None, Budget | None]
    user: str
    number: int

    def is_as(self, other: "Facts | None") -> bool:
        """Whether nothing changed."""
        return (
            other is not None
            and (self.destination, self.pool, self.index) == (other.destination, other.pool, other.index)
            and self.traits is other.traits
            and self.user == other.user
            and all(one is two for one, two in zip(self.budgets, other.budgets, strict=True))
        )


@dataclass(slots=True)
class PlainPool:
    """The ways that lead to one pool."""

    index: FlatIndex
    numbers: set[int] = field(default_factory=set)
    _rows: IntArray | None = None

    @property
    def rows(self) -> IntArray:
        """The same as numpy takes them: kept, for it is asked a hundred times a second."""
        if self._rows is None:
            self._rows = np.array(sorted(self.numbers), np.int64)
        return self._rows

    def add(self, number: int) -> None:
        """One more."""
        self.numbers.add(number)
        self._rows = None

    def discard(self, number: int) -> None:
        """One that is none any more."""
        self.numbers.discard(number)
        self._rows = None


class Ways:
    """Of one lane."""

    def __init__(self, slabs: Slabs, house: House, director: Director, doors: Doors) -> None:
        self._slabs, self._house, self._director, self._doors = slabs, house, director, doors
        self.reckon: Callable[[float], None] = lambda now: None
        self._templates: dict[tuple[bytes, bytes], Template] = {}
        self._numbers = list(range(TEMPLATES - 1, -1, -1))
        """Of templates, those that are free."""
        self.heads: dict[int, Template] = {}
        """Templates by their numbers."""
        self.by_number: list[Way] = []
        self._free: list[int] = []
        self._seen = -1
        self._plain: dict[Pool, PlainPool] = {}
        self.engines: dict[int, Endpoint] = {}
        """By serial: a row of an engine's slot is used again, a serial never."""
        self.addresses: dict[int, Address] = {}
        """By serial, where connections to an engine lead."""
        self._serials: dict[Endpoint, tuple[int, str, int]] = {}
        self._open: dict[int, OpenConnections] = {}
        """By serial, what counts the connections to an engine: the code has its address."""
        self._last_serial = 0
        self.facts: dict[int, Facts] = {}
        self._last_facts = 0
        self.moved: list[int] = []
        """Slots whose kept connections lead to another engine."""

    # ---- heads

    def template(self, memo: Memo) -> Template | None:
        """The template of a head that a connection repeats; None: it is none for the lane."""
        key = (memo.before, memo.after)
        known = self._templates.get(key)
        if known is None and (path := self._path(memo.head)) and (number := self._new_number()) is not None:
            known = self._templates[key] = self._made(number, memo, path)
        return known

    def _new_number(self) -> int | None:
        if not self._numbers:
            users = self._slabs.templates[:, Head.USERS].tolist()
            unused = next((key for key, one in self._templates.items() if not users[one.number]), None)
            if unused is None:
                return None
            self._forget(self._templates.pop(unused))
        return self._numbers.pop()

    def _forget(self, template: Template) -> None:
        for way in template.ways.values():
            self._slabs.ways[way.number, Row.IS_PLAIN] = 0
            self._free.append(way.number)
            if way.facts is not None:
                _lend(way.facts, -1)
                if (plain := self._plain.get(way.facts.pool)) is not None:
                    plain.discard(way.number)
        self._slabs.templates[template.number, Head.BEFORE_LENGTH] = 0  # before its bytes are gone
        del self.heads[template.number]
        self._numbers.append(template.number)

    def _path(self, head: RequestHead) -> str:
        """Where a plain head asks; empty of one that is none for the lane."""
        house = self._house
        if head.request_id or head.is_http_1_0 or head.is_chunked or head.expects_continue or not head.keeps_alive:
            return ""
        if head.method != b"POST" or b"?" in head.target or house.tracing is not None or house.takes_any_path:
            return ""
        path = path_of(head.target)
        return path if path in INFERENCE_PATHS else ""

    def _made(self, number: int, memo: Memo, path: str) -> Template:
        house, head = self._house, memo.head
        request_bytes(head, 0, b"x", hides_credentials=house.doorkeeper is not None)
        kept = memo.before, memo.after, head.onward
        row = self._slabs.templates[number]
        for word, text in zip((Head.BEFORE, Head.AFTER, Head.ONWARD), kept, strict=True):
            row[word], row[word + 1] = _address(text), len(text)
        row[Head.WAY] = -1
        row[Head.TELLS_USAGE] = tells_usage(path)
        words = self._slabs.words
        words[State.TEMPLATE_HIGH] = max(int(words[State.TEMPLATE_HIGH]), number + 1)
        made = self.heads[number] = Template(number, head, path, RequestHeaders(head.lines), kept)
        return made

    # ---- models

    def know(self, template: Template, model: str, now: float) -> None:
        """A model was asked for that is not known here: from now on it is, plain or not."""
        if model in template.ways or not model.isascii():
            return
        number = self._free.pop() if self._free else len(self.by_number)
        if number >= WAYS:
            return
        way = Way(number, template, model, model.encode())
        if number == len(self.by_number):
            self.by_number.append(way)
        else:
            self.by_number[number] = way
        row = self._slabs.ways[number]
        row[:] = 0
        row[Row.MODEL], row[Row.MODEL_LENGTH] = _address(way.name), len(way.name)
        self._look(way, now)
        row[Row.NEXT] = self._slabs.templates[template.number, Head.WAY]
        self._slabs.templates[template.number, Head.WAY] = number
        template.ways[model] = way
        self._join(way)

    @property
    def _changes(self) -> int:
        world, fleet = self._director.world, self._director.world.fleet
        keys = self._doors.authentication.changes if self._doors.authentication is not None else 0
        return world.version + fleet.changes + self._doors.changes + keys + (_MANY if fleet.precise.holders else 0)

    @property
    def is_stale(self) -> bool:
        """Whether something changed."""
        return self._changes != self._seen

    def refresh(self, now: float) -> None:
        """Look all ways up anew."""
        for template in self._templates.values():
            for way in template.ways.values():
                self._look(way, now)
        self._plain.clear()
        for template in self._templates.values():
            for way in template.ways.values():
                self._join(way)
        self._tell_pace()
        self._seen = self._changes

    def keep_up(self, now: float) -> None:
        """A hundred times a second: what pools have learned, and what time has brought them."""
        for pool, plain in self._plain.items():
            pool.keep_up(now)
            if pool.compiled is not plain.index:
                self._seen = -1
        self._tell_pace()

    def _tell_pace(self) -> None:
        rows = self._slabs.ways.view(np.float64)
        for pool, plain in self._plain.items():
            rows[plain.rows, Row.RATE], rows[plain.rows, Row.MEAN] = pool.pace.prefill_rate, pool.pace.answer_tokens

    def under_way(self) -> Iterable[tuple[Destination, str, int]]:
        """Where to, by which path, how many."""
        counts = self._slabs.ways[:, Row.UNDER_WAY].tolist()
        for way in self.by_number:
            if counts[way.number] and way.facts is not None:
                yield way.facts.destination, way.template.path, counts[way.number]

    def slots(self, host: str, port: int) -> list[int]:
        """The rows of engines at an address."""
        serials = self._slabs.endpoints[:, Place.SERIAL]
        known = self._serials.items()
        return [one.slot for one, (serial, *where) in known if where == [host, port] and serials[one.slot] == serial]

    def _join(self, way: Way) -> None:
        """Count a way that was just looked up among those of its pool. Of a pool's engines each is placed once, however many lead there."""
        facts = way.facts
        if facts is None or not self._slabs.ways[way.number, Row.IS_PLAIN]:
            return
        plain = self._plain.get(facts.pool)
        if plain is None:
            plain = self._plain[facts.pool] = PlainPool(facts.index)
            for one in facts.pool.members:
                self._place(one)
        plain.add(way.number)

    def _look(self, way: Way, now: float) -> None:
        """Write down what a way is now."""
        row = self._slabs.ways[way.number]
        facts = self._facts(way.template, way.model, now)
        row[Row.IS_PLAIN] = facts is not None
        if facts is None or facts.is_as(way.facts):  # of what is as it was all else stands there
            return
        self._note(facts)
        if way.facts is not None:
            _lend(way.facts, -1)
        _lend(facts, 1)
        way.facts, pool = facts, facts.pool
        row[Row.FACTS] = facts.number
        pool.reckon = self.reckon
        row[Row.INDEX] = facts.index.state
        row[Row.SEED] = np.uint64(pool.seed(way.model)).view(np.int64)
        doubles = row.view(np.float64)
        doubles[Row.RATE], doubles[Row.MEAN] = pool.pace.prefill_rate, pool.pace.answer_tokens
        limit_s = facts.traits.head_timeout_s
        doubles[Row.PATIENCE] = min(PATIENCE_S, limit_s / 2) if limit_s else PATIENCE_S
        for first, budget in zip((Row.ROUTE_REQUESTS, Row.TENANT_REQUESTS), facts.budgets, strict=True):
            buckets = (budget.requests, budget.input, budget.output) if budget is not None else (None, None, None)
            row[first : first + 3] = [ctypes.addressof(one) if one is not None else 0 for one in buckets]

    def _facts(self, template: Template, model: str, now: float) -> Facts | None:
        house, director, doors = self._house, self._director, self._doors
        user = self._user(template)
        if house.desk is not director or house.tracing is not None or doors.lines is not None or user is None:
            return None
        if doors.shared.has(model) or (budgets := doors.limits.budgets_of(model, user, now)) is None:
            return None
        question = Question(template.path, model, b"[{", 1, headers=template.headers, user=user)
        way = director.way(question)
        if way is None or not way.found.is_settled or way.found.is_adapter or len(way.found.rule.targets) != 1:
            return None
        target, world = way.found.rule.targets[0], director.world
        backend = None if target.is_provider else world.servers.get(target.key)
        if backend is None or backend.is_empty or backend.traits.tokenizer or world.tokenizer:
            return None
        traits, pool = backend.traits, backend.decode
        if traits.pd is not None or traits.sticky is not None or traits.model not in ("", model):
            return None
        if (index := pool.compiled) is None or any(one.is_tls or one.slot >= ENDPOINTS for one in pool.members):
            return None
        plan = director.go(way, question)
        if not isinstance(plan, LocalPlan):
            return None
        return Facts(plan.destination, pool, index, traits, budgets, user, self._last_facts + 1)

    def _note(self, facts: Facts) -> None:
        """Keep what a way is, for requests that go by it; the oldest is forgotten long after."""
        self._last_facts = facts.number
        self.facts[facts.number] = facts
        if len(self.facts) > _MOST_FACTS:
            now = {way.facts.number for one in self._templates.values() for way in one.ways.values() if way.facts}
            for number in list(self.facts)[: _MOST_FACTS // 2]:
                if number not in now:
                    del self.facts[number]

    def _user(self, template: Template) -> str | None:
        """Who asks; None: he has to be looked at each time."""
        guard: Authentication | None = self._doors.authentication
        return "" if guard is None else guard.user_by_key(template.headers)

    def _place(self, one: Endpoint) -> None:
        """An engine's row, by its slot."""
        known = self._serials.get(one)
        row = self._slabs.endpoints[one.slot]
        if known is None or known[1:] != (one.host, one.port) or row[Place.SERIAL] != known[0]:
            self._last_serial += 1
            self._forget_old()
            known = self._serials[one] = self._last_serial, one.host, one.port
            self.engines[known[0]] = one
            self.addresses[known[0]] = Address(one.name, one.host, one.port, one.is_tls, one.verifies)
            row[Place.SERIAL], row[Place.COUNTS] = known[0], ctypes.addressof(one)
            count = self._open[known[0]] = self._house.pools.open_to(one.host, one.port)
            row[Place.OPEN] = ctypes.addressof(count)
            self.moved.append(one.slot)
        bounds = self._house.pools.own_bounds.get((one.host, one.port), self._house.bounds)
        row[Place.MOST_IDLE] = bounds.engine_idle_connections

    def _forget_old(self) -> None:
        """Engines that are gone, once nothing is under way on them."""
        if len(self.engines) < 2 * ENDPOINTS:
            return
        by_name = self._director.world.fleet.by_name
        for serial, one in list(self.engines.items()):
            is_latest = one in self._serials and self._serials[one][0] == serial
            is_known = is_latest and by_name.get(f"{one.namespace}/{one.name}") is one
            if not is_known and one.in_flight <= 0 and not self._open[serial].count:
                del self.engines[serial], self.addresses[serial], self._open[serial]
                if is_latest:
                    del self._serials[one]


def _lend(facts: Facts, ways: int) -> None:
    """Count the ways that have the addresses of its budgets."""
    for budget in facts.budgets:
        if budget is not None:
            budget.lent += ways


def _address(text: bytes) -> int:
    """Where the bytes of an object stand that somebody keeps."""
    return int(np.frombuffer(text, np.uint8).ctypes.data) if text else 0
