"""Makes of the fast lane's records what everybody learns from: a lot for the books, the pace of engines, how much of prompts was held."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.exchange import CLIENT_LEFT
from hekla.serving.router.lane.layout import Outcome, Record, State
from hekla.serving.router.lane.slabs import Slabs, Words
from hekla.serving.router.lane.ways import Ways
from hekla.serving.router.lots import Floats, Lot, RequestKind
from hekla.serving.router.plugin_times import SCORE
from hekla.serving.router.pool import SOONEST, Pool

_EARLY_ANSWERS: Final = 1
"""Tokens of an answer that was all prefill, at most."""
_ANSWERED: Final = int(Outcome.ANSWERED)
_BEGAN: Final = int(Outcome.BEGAN)
_REFUSALS: Final = 300
"""Statuses from here on tell of no tokens."""
_KEYS: Final = [Record.WAY, Record.FACTS, Record.SERIAL, Record.STATUS, Record.OUTCOME]
_NUMBERS: Final = [
    Record.OUTCOME, Record.TOKENS, Record.HELD, Record.AHEAD, Record.PROMPT_LENGTH, Record.USAGE, Record.USAGE_INPUT,
    Record.USAGE_OUTPUT, Record.IS_STREAM,
]  # fmt: skip
_TIMES: Final = [Record.STARTED, Record.FIRST_BYTE, Record.ENDED, Record.DECIDE_S]
"""Columns, in the order in which `_learn` takes them."""


@dataclass(frozen=True, slots=True)
class _Where:
    """What the records of a kind teach about."""

    kind: RequestKind
    pool: Pool
    endpoint: Endpoint
    model: str


def fold(slabs: Slabs, ways: Ways, id_prefix: bytes) -> Lot | None:
    """All that is over since the last time; None: nothing is."""
    count = int(slabs.words[State.RECORD_COUNT])
    if not count:
        return None
    slabs.words[State.RECORD_COUNT] = 0
    records = slabs.records[:count].copy()
    times = records.view(np.float64)
    numbers: dict[tuple[int, ...], int] = {}
    keys = zip(*records[:, _KEYS].T.tolist(), (times[:, Record.FIRST_BYTE] != 0.0).tolist(), strict=True)
    kind = [numbers.setdefault(key, len(numbers)) for key in keys]
    wheres = [_where(ways, *key) for key in numbers]
    _learn(records, times, kind, wheres)
    return _lot(records, times, np.array(kind), [one.kind for one in wheres], id_prefix)


def _where(
    ways: Ways, way_number: int, facts_number: int, serial: int, status: int, outcome: int, has_begun: int
) -> _Where:
    way, endpoint = ways.by_number[way_number], ways.engines[serial]
    facts = ways.facts.get(facts_number) or way.facts
    assert facts is not None, "a way that was gone is plain, or was"
    refusal = None if outcome == _ANSWERED else CLIENT_LEFT
    said, template = status if has_begun else 0, way.template
    kind = RequestKind(facts.destination, template.path, way.model, status, refusal, said, template.head, endpoint.name)
    return _Where(kind, facts.pool, endpoint, way.model)


def _learn(records: Words, times: Floats, kinds: list[int], wheres: list[_Where]) -> None:
    rows = zip(kinds, *records[:, _NUMBERS].T.tolist(), *times[:, _TIMES].T.tolist(), strict=True)
    for number, outcome, tokens, held, ahead, length, has_usage, used, made, is_stream, started, first, ended, took in rows:  # fmt: skip
        where = wheres[number]
        pool = where.pool
        if outcome == _BEGAN:
            pool.pace.first_byte(ahead, first - started)
            if where.endpoint.faults:
                where.endpoint.answered_at(first)
            continue
        if length >= pool.block_bytes:
            pool.matches.note(where.model, held, tokens or 1)
        if took and pool.times is not None:
            pool.times.note(where.model, SOONEST, SCORE, took)
        if has_usage:
            pool.pace.ended(length, used, made, ended - first if is_stream else 0.0)
            if made <= _EARLY_ANSWERS and not is_stream:
                pool.pace.first_byte(ahead, ended - started)
        if outcome == _ANSWERED and where.kind.status < 400 and where.endpoint.faults:
            where.endpoint.answered_at(ended)


def _lot(records: Words, times: Floats, kind: Words, kinds: list[RequestKind], id_prefix: bytes) -> Lot | None:
    """Those that are over, without those that only began."""
    is_over = records[:, Record.OUTCOME] != _BEGAN
    if not is_over.all():
        records, times = records[is_over], times[is_over]
        here, kind = np.unique(kind[is_over], return_inverse=True)
        kinds = [kinds[number] for number in here.tolist()]
    if not len(records):
        return None
    first_byte_at, has_usage = times[:, Record.FIRST_BYTE], records[:, Record.USAGE] != 0
    is_counted = has_usage | ((first_byte_at != 0.0) & (records[:, Record.STATUS] < _REFUSALS))
    made = np.where(has_usage, records[:, Record.USAGE_OUTPUT], records[:, Record.EVENTS])
    return Lot(
        kinds,
        kind,
        request=records[:, Record.ID],
        id_prefix=id_prefix,
        input_tokens=np.where(has_usage, records[:, Record.USAGE_INPUT], records[:, Record.TOKENS]),
        output_tokens=np.where(is_counted, made, 0),
        is_counted=is_counted,
        events=records[:, Record.EVENTS],
        started_at=times[:, Record.STARTED],
        first_byte_at=first_byte_at,
        ended_at=times[:, Record.ENDED],
    )
