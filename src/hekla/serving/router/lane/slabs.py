"""The fast lane's memory: rows, buffers and lists, as `layout.py` has them. Taken once, of a size that never changes."""

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hekla.serving.router.lane.layout import (
    CLIENTS,
    ENDPOINTS,
    ENGINES,
    EVENTS,
    GATHERED,
    HUGE_BYTES,
    HUGE_COUNT,
    ID_PREFIX_BYTES,
    IOV_WORDS,
    LARGE_BYTES,
    LARGE_COUNT,
    MOST_READS,
    RECORDS,
    SCRATCH_BYTES,
    SMALL_BYTES,
    SMALL_COUNT,
    TEMPLATES,
    TEXT_BYTES,
    TEXTS,
    WAYS,
    WHEEL_TICKS,
    Client,
    Endpoint,
    Engine,
    Record,
    State,
    Template,
    Text,
    Way,
)
from hekla.serving.router.proxy.bounds import Bounds

Words = NDArray[np.int64]
Doubles = NDArray[np.float64]

_HEAD_BYTES: Final = 4096
"""Behind the scratch: a head for an engine."""
_MOST_EVENT_BYTES: Final = 16
_SPARE_RECORDS: Final = CLIENTS
"""All connections may be cut at once."""
_PARTIAL_S: Final = 5.0
"""A request that is not whole after this is Python's, which keeps the time of such."""
PATIENCE_S: Final = 60.0
"""After so long without an answer Python has the request, and keeps its time."""


class Slabs:
    """All of it; addresses stand in the state's row."""

    def __init__(self, bounds: Bounds, id_prefix: bytes) -> None:
        assert len(id_prefix) == ID_PREFIX_BYTES
        self._arrays: dict[State, NDArray[Any]] = {}
        self.words: Words = np.zeros(len(State), np.int64)
        self.doubles: Doubles = self.words.view(np.float64)
        self.state = int(self.words.ctypes.data)
        self.clients = self._rows(State.CLIENTS, CLIENTS, len(Client))
        self.engines = self._rows(State.ENGINES, ENGINES, len(Engine))
        self.endpoints = self._rows(State.ENDPOINTS, ENDPOINTS, len(Endpoint))
        self.templates = self._rows(State.TEMPLATES, TEMPLATES, len(Template))
        self.ways = self._rows(State.WAYS, WAYS, len(Way))
        self.records = self._rows(State.RECORDS, RECORDS + _SPARE_RECORDS, len(Record))
        for which, size in ((State.SCRATCH, SCRATCH_BYTES + _HEAD_BYTES), (State.EVENTS, EVENTS * _MOST_EVENT_BYTES)):
            self._put(which, np.zeros(size, np.uint8))
        self._put(State.IOV, np.zeros(IOV_WORDS, np.int64))
        self._put(State.TEXTS, _texts())
        self._put(State.ID_PREFIX, np.frombuffer(id_prefix, np.uint8).copy())
        self._put(State.WHEEL, np.full(WHEEL_TICKS, -1, np.int64))
        self._put(State.RESTS, np.zeros(GATHERED, np.int64))
        self._buffers(State.SMALL, SMALL_COUNT, SMALL_BYTES, 0)
        self._buffers(State.LARGE, LARGE_COUNT, LARGE_BYTES, SMALL_COUNT)
        self._buffers(State.HUGE, HUGE_COUNT, HUGE_BYTES, SMALL_COUNT + LARGE_COUNT)
        self.clients[:, Client.NEXT], self.engines[:, Engine.NEXT] = _chain(CLIENTS), _chain(ENGINES)
        self.clients[:, Client.BUFFER] = self.engines[:, Engine.BUFFER] = -1
        self.endpoints[:, Endpoint.IDLE] = self.templates[:, Template.WAY] = -1
        self._bound(bounds)

    def text(self, address: int, length: int) -> bytes:
        """Bytes at an address that the code told."""
        return ctypes.string_at(address, length) if length else b""

    def buffer(self, number: int, length: int, offset: int = 0) -> bytes:
        """What a buffer holds."""
        if number < 0:
            return b""
        which, number, size = _place_of(number)
        return self.text(int(self.words[which]) + number * size + offset, length - offset)

    def pieces(self) -> bytes:
        """What the code was writing to a client."""
        count = int(self.words[State.PIECES])
        told = self._arrays[State.IOV][: 2 * count].reshape(count, 2).tolist()
        return b"".join(self.text(*one) for one in told)

    def _bound(self, bounds: Bounds) -> None:
        doubles = self.doubles
        doubles[State.IDLE_S], doubles[State.SEND_S] = bounds.idle_timeout_s, bounds.send_timeout_s
        doubles[State.PARTIAL_S] = min(_PARTIAL_S, bounds.head_timeout_s, bounds.body_timeout_s)
        doubles[State.ENGINE_IDLE_S] = bounds.engine_idle_s
        doubles[State.SILENCE_S] = min(PATIENCE_S, bounds.silence_timeout_s / 20 or PATIENCE_S)
        doubles[State.TOTAL_S] = bounds.total_timeout_s / 2 or float("inf")
        self.words[State.MOST_BYTES] = min(bounds.body_bytes, HUGE_BYTES)
        self.words[State.MOST_READS] = MOST_READS

    def _put(self, which: State, array: NDArray[Any]) -> NDArray[Any]:
        self._arrays[which] = array
        self.words[which] = array.ctypes.data
        return array

    def _rows(self, which: State, count: int, width: int) -> Words:
        array: Words = self._put(which, np.zeros((count, width), np.int64))
        return array

    def _buffers(self, which: State, count: int, size: int, first: int) -> None:
        self._put(which, np.empty(count * size, np.uint8))
        self._put(State(which + 1), np.arange(first + count - 1, first - 1, -1, dtype=np.int32))
        self.words[which + 2] = count


def _place_of(number: int) -> tuple[State, int, int]:
    """Among which buffers one stands, its number there, and their size."""
    if number < SMALL_COUNT:
        return State.SMALL, number, SMALL_BYTES
    number -= SMALL_COUNT
    if number < LARGE_COUNT:
        return State.LARGE, number, LARGE_BYTES
    return State.HUGE, number - LARGE_COUNT, HUGE_BYTES


def _texts() -> NDArray[np.uint8]:
    texts = np.zeros((len(Text), TEXT_BYTES), np.uint8)
    for which, text in TEXTS.items():
        assert len(text) < TEXT_BYTES
        texts[which, 0] = len(text)
        texts[which, 1 : len(text) + 1] = np.frombuffer(text, np.uint8)
    return texts.ravel()


def _chain(count: int) -> Words:
    """Each row's next one, the last has none."""
    following = np.arange(1, count + 1)
    following[-1] = -1
    return following
