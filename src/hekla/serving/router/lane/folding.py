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


def fold(slabs: Slabs, ways: Ways, id_prefix: bytes) -> list[Over]:
    """All that is over since the last time."""
    count = int(slabs.words[State.RECORD_COUNT])
    if not count:
        return []
    slabs.words[State.RECORD_COUNT] = 0
    records = slabs.records[:count]
    doubles = records.view(np.float64)
    times = doubles[:, [Record.STARTED, Record.FIRST_BYTE, Record.ENDED, Record.DECIDE_S]].tolist()
    return [_one(ways, id_prefix, row, *time) for row, time in zip(records.tolist(), times, strict=True)]


def _one(
    ways: Ways, id_prefix: bytes, row: list[int], started: float, first_byte: float, ended: float, took_s: float
) -> Over:
    way = ways.by_number[row[Record.WAY]]
    facts = ways.facts.get(row[Record.FACTS]) or way.facts
    assert facts is not None, "a way that was gone is plain, or was"
    pool, endpoint, tokens, status = (
        facts.pool,
        ways.engines[row[Record.SERIAL]],
        row[Record.TOKENS],
        row[Record.STATUS],
    )
    is_answered = row[Record.OUTCOME] == Outcome.ANSWERED
    if row[Record.PROMPT_LENGTH] >= pool.block_bytes:
        pool.matches.note(way.model, row[Record.HELD], tokens or 1)
    if took_s and pool.times is not None:
        pool.times.note(way.model, SOONEST, SCORE, took_s)
    usage = None
    if row[Record.USAGE]:
        usage = Usage(row[Record.USAGE_INPUT], row[Record.USAGE_OUTPUT], row[Record.USAGE_CACHED])
        pool.pace.ended(row[Record.PROMPT_LENGTH], usage.input_tokens, usage.output_tokens, 0.0)
        if usage.output_tokens <= _EARLY_ANSWERS:
            pool.pace.first_byte(row[Record.AHEAD], ended - started)
    elif is_answered and status < 300:
        usage = Usage(tokens, 0)
    if is_answered and status < 400 and endpoint.faults:
        endpoint.answered()
    return Over(
        facts.destination,
        way.template.path,
        way.model,
        status,
        None if is_answered else CLIENT_LEFT,
        status if is_answered else 0,
        usage,
        tokens,
        started,
        started,
        first_byte,
        ended,
        way.template.head,
        b"%b-%x" % (id_prefix, row[Record.ID]),
        endpoint.name,
    )
