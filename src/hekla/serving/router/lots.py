"""Requests that are over, many at once and in columns: what the fast lane (`lane/folding.py`) tells the books.

An object for each took 4 us to make and as long again to read; what a lot has in common is said once, as a `RequestKind`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from hekla.serving.router.plan import Destination, Refusal
from hekla.wire.raw_heads import RequestHead

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MS_PER_S: Final = 1000


class RequestKind(Struct, frozen=True, gc=False):
    """What requests have in common that went one way and ended alike, as the books look at an `exchange.Exchange`."""

    destination: Destination
    path: str
    model: str
    status: int
    refusal: Refusal | None
    upstream_status: int
    head: RequestHead
    target_name: str
    attempts: int = 1


@dataclass(slots=True)
class Lot:
    """Many that are over; a row of each column is one."""

    kinds: list[RequestKind]
    """There is one of each."""
    kind: Ints
    """Which of them."""
    request: Ints
    """Its number, which is the end of its id."""
    id_prefix: bytes
    input_tokens: Ints
    output_tokens: Ints
    is_counted: npt.NDArray[np.bool_]
    """Whether its tokens count in the metrics: the engine told them, or its answer began and was no refusal."""
    events: Ints
    started_at: Floats
    """It is planned in the same moment."""
    first_byte_at: Floats
    """0: none came."""
    ended_at: Floats

    def __len__(self) -> int:
        return len(self.kind)


_COLUMNS: Final = (
    "request", "input_tokens", "output_tokens", "is_counted", "events", "started_at", "first_byte_at", "ended_at",
)  # fmt: skip


def joined(lots: Sequence[Lot]) -> Lot:
    """One lot of several, in their order; of one router, so that the beginnings of all ids are the same."""
    if len(lots) == 1:
        return lots[0]
    kinds = [kind for lot in lots for kind in lot.kinds]
    before = np.cumsum([0, *(len(lot.kinds) for lot in lots[:-1])])
    kind = np.concatenate([lot.kind + skipped for lot, skipped in zip(lots, before, strict=True)])
    columns = {name: np.concatenate([getattr(lot, name) for lot in lots]) for name in _COLUMNS}
    return Lot(kinds, kind, id_prefix=lots[0].id_prefix, **columns)


def ms_between(begin: Floats, end: Floats) -> list[int]:
    """Whole milliseconds, 0 where it did not begin or does not end later."""
    took = np.where((end > begin) & (begin > 0), end - begin, 0.0)
    told: list[int] = np.rint(took * _MS_PER_S).astype(np.int64).tolist()
    return told


def ms_of(wall_s: Floats) -> list[int]:
    """Milliseconds since 1970, what is less left out."""
    second = wall_s.astype(np.int64)
    told: list[int] = (second * _MS_PER_S + ((wall_s - second) * _MS_PER_S).astype(np.int64)).tolist()
    return told
