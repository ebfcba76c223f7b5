"""Makes of the fast lane's records what everybody learns from: the books' entries, the pace of engines, how much of prompts was held."""

from typing import Final

import numpy as np
from msgspec import Struct

from hekla.serving.router.exchange import CLIENT_LEFT
from hekla.serving.router.lane.layout import Outcome, Record, State
from hekla.serving.router.lane.slabs import Slabs
from hekla.serving.router.lane.ways import Ways
from hekla.serving.router.plan import Destination, Refusal, Usage
from hekla.serving.router.plugin_times import SCORE
from hekla.serving.router.pool import SOONEST
from hekla.wire.raw_heads import RequestHead

_EARLY_ANSWERS: Final = 1
"""Tokens of an answer that was all prefill, at most."""


class Over(Struct, gc=False):
    """A request that is over, as the books look at an `exchange.Exchange`."""

    destination: Destination
    path: str
    model: str
    status: int
    refusal: Refusal | None
    upstream_status: int
    usage_told: Usage | None
    input_tokens: int
    started_at: float
    planned_at: float
    first_byte_at: float
    ended_at: float
    head: RequestHead
    request_id: bytes
    target_name: str
    attempts: int = 1
    events: int = 0
    trace: None = None


_NUMBERS: Final = [
    Record.WAY, Record.FACTS, Record.SERIAL, Record.STATUS, Record.OUTCOME, Record.ID, Record.TOKENS, Record.HELD, Record.AHEAD,
    Record.PROMPT_LENGTH, Record.USAGE, Record.USAGE_INPUT, Record.USAGE_OUTPUT, Record.USAGE_CACHED, Record.IS_STREAM, Record.EVENTS,
]  # fmt: skip
_TIMES: Final = [Record.STARTED, Record.FIRST_BYTE, Record.ENDED, Record.DECIDE_S]
"""Columns, in the order in which `_one` takes them: until Python 3.12 a member looked up on its class costs 0.15 us, and there are twenty."""
_ANSWERED: Final = int(Outcome.ANSWERED)
_BEGAN: Final = int(Outcome.BEGAN)


def fold(slabs: Slabs, ways: Ways, id_prefix: bytes) -> list[Over]:
    """All that is over since the last time."""
    count = int(slabs.words[State.RECORD_COUNT])
    if not count:
        return []
    slabs.words[State.RECORD_COUNT] = 0
    records = slabs.records[:count]
    times = records.view(np.float64)[:, _TIMES].tolist()
    rows = zip(records[:, _NUMBERS].tolist(), times, strict=True)
    return [over for row, time in rows if (over := _one(ways, id_prefix, *row, *time)) is not None]


def _one(
    ways: Ways,
    id_prefix: bytes,
    way_number: int,
    facts_number: int,
    serial: int,
    status: int,
    outcome: int,
    request: int,
    tokens: int,
    held: int,
    ahead: int,
    prompt_length: int,
    has_usage: int,
    used: int,
    made: int,
    cached: int,
    is_stream: int,
    events: int,
    started: float,
    first_byte: float,
    ended: float,
    took_s: float,
) -> Over | None:
    way = ways.by_number[way_number]
    facts = ways.facts.get(facts_number) or way.facts
    assert facts is not None, "a way that was gone is plain, or was"
    pool, endpoint, is_answered = facts.pool, ways.engines[serial], outcome == _ANSWERED
    if outcome == _BEGAN:
        pool.pace.first_byte(ahead, first_byte - started)
        if endpoint.faults:
            endpoint.answered_at(first_byte)
        return None
    if prompt_length >= pool.block_bytes:
        pool.matches.note(way.model, held, tokens or 1)
    if took_s and pool.times is not None:
        pool.times.note(way.model, SOONEST, SCORE, took_s)
    usage = None
    if has_usage:
        usage = Usage(used, made, cached)
        pool.pace.ended(prompt_length, used, made, ended - first_byte if is_stream else 0.0)
        if made <= _EARLY_ANSWERS and not is_stream:
            pool.pace.first_byte(ahead, ended - started)
    elif first_byte and status < 300:
        usage = Usage(tokens, events)
    if is_answered and status < 400 and endpoint.faults:
        endpoint.answered_at(ended)
    template = way.template
    return Over(
        facts.destination,
        template.path,
        way.model,
        status,
        None if is_answered else CLIENT_LEFT,
        status if first_byte else 0,
        usage,
        tokens,
        started,
        started,
        first_byte,
        ended,
        template.head,
        b"%b-%x" % (id_prefix, request),
        endpoint.name,
        events=events,
    )
