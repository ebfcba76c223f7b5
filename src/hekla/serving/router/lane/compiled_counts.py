# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""What a request of the fast lane counts: on its engine as `pool.Charge` does, in budgets as `limits.Budget` does, in a record for Python."""

from numba import njit

from hekla.serving.router.endpoints import Counts
from hekla.serving.router.kernel.compiled_words import OPTIONS, double, set_double, set_word, word
from hekla.serving.router.lane.compiled_rows import client_at, wait_no_more, way_at
from hekla.serving.router.lane.layout import (
    TICKS_PER_S,
    WHEEL_TICKS,
    Bucket,
    Client,
    Outcome,
    Record,
    State,
    Way,
)

_IN_FLIGHT, _UNANSWERED = Counts.word("in_flight"), Counts.word("unanswered")
_PREFILL, _CONTEXT, _DECODE = Counts.word("prefill_tokens"), Counts.word("context_tokens"), Counts.word("decode_tokens")
_BUSY, _BUSY_SINCE, _HEARD = Counts.word("busy_s"), Counts.word("busy_since"), Counts.word("heard_at")
_RECORD_BYTES = len(Record) * 8

# ---- budgets


@njit(**OPTIONS)
def _fill(bucket, now):
    """As `Bucket.fill`."""
    level = double(bucket, Bucket.LEVEL)
    if now > double(bucket, Bucket.AT):
        level += (now - double(bucket, Bucket.AT)) * double(bucket, Bucket.RATE)
        amount = double(bucket, Bucket.AMOUNT)
        level = level if level < amount else amount
        set_double(bucket, Bucket.LEVEL, level)
        set_double(bucket, Bucket.AT, now)
    return level


@njit(**OPTIONS)
def _settle(bucket, units, now):
    """As `Bucket.settle`."""
    level = _fill(bucket, now) - units
    amount = double(bucket, Bucket.AMOUNT)
    set_double(bucket, Bucket.LEVEL, level if level < amount else amount)


@njit(**OPTIONS)
def may_pass(way, tokens, now):
    """Whether no budget refuses a request now; takes nothing."""
    for first in range(Way.ROUTE_REQUESTS, Way.TENANT_OUTPUT + 1, Way.TENANT_REQUESTS - Way.ROUTE_REQUESTS):
        requests, read, written = word(way, first), word(way, first + 1), word(way, first + 2)
        if requests != 0 and _fill(requests, now) < 1:
            return False
        if read != 0 and _fill(read, now) < tokens:
            return False
        if written != 0 and _fill(written, now) < 1:
            return False
    return True


@njit(**OPTIONS)
def take_share(way, tokens):
    """Take what a request needs that may pass."""
    for first in range(Way.ROUTE_REQUESTS, Way.TENANT_OUTPUT + 1, Way.TENANT_REQUESTS - Way.ROUTE_REQUESTS):
        requests, read = word(way, first), word(way, first + 1)
        if requests != 0:
            set_double(requests, Bucket.LEVEL, double(requests, Bucket.LEVEL) - 1)
        if read != 0:
            set_double(read, Bucket.LEVEL, double(read, Bucket.LEVEL) - tokens)


@njit(**OPTIONS)
def _settle_budgets(state, way, tokens, now):
    """The engine told what it counted: put the estimate right, and take the answer's tokens."""
    used, made = word(state, State.USAGE_INPUT), word(state, State.USAGE_OUTPUT)
    for first in range(Way.ROUTE_REQUESTS, Way.TENANT_OUTPUT + 1, Way.TENANT_REQUESTS - Way.ROUTE_REQUESTS):
        read, written = word(way, first + 1), word(way, first + 2)
        if read != 0 and used != 0:
            _settle(read, used - tokens, now)
        if written != 0:
            _settle(written, made, now)


# ---- counts on engines


@njit(**OPTIONS)
def prefilled(state, client):
    """Prefill is over, or must be."""
    wait_no_more(state, client)
    if word(client, Client.PREFILLED) == 0:
        set_word(client, Client.PREFILLED, 1)
        counts = word(client, Client.COUNTS)
        set_word(counts, _UNANSWERED, word(counts, _UNANSWERED) - 1)
        set_word(counts, _PREFILL, word(counts, _PREFILL) - word(client, Client.UNCACHED))


@njit(**OPTIONS)
def _end_charge(state, client, now):
    """As `Charge.end`."""
    prefilled(state, client)
    counts = word(client, Client.COUNTS)
    left = word(counts, _IN_FLIGHT) - 1
    set_word(counts, _IN_FLIGHT, left)
    if left == 0:
        set_double(counts, _BUSY, double(counts, _BUSY) + (now - double(counts, _BUSY_SINCE)))
    answer = word(client, Client.ANSWER)
    set_word(counts, _CONTEXT, word(counts, _CONTEXT) - (word(client, Client.TOKENS) + answer))
    set_word(counts, _DECODE, word(counts, _DECODE) - answer)


@njit(**OPTIONS)
def keep_up(state, now):
    """Whose prefill is reckoned to be over by now, is over."""
    last = int(now * TICKS_PER_S)
    tick = max(word(state, State.TICK), last - WHEEL_TICKS)
    wheel = word(state, State.WHEEL)
    while tick < last:
        tick += 1
        number = word(wheel, tick % WHEEL_TICKS)
        while number >= 0:
            client = client_at(state, number)
            number = word(client, Client.DUE_NEXT)
            if word(client, Client.DUE) <= last:
                prefilled(state, client)
    set_word(state, State.TICK, max(word(state, State.TICK), last))


@njit(**OPTIONS)
def begin_stream(state, client, now):
    """The first byte of a stream came: as `Charge.first_byte`."""
    prefilled(state, client)
    set_double(client, Client.FIRST_BYTE, now)
    set_double(word(client, Client.COUNTS), _HEARD, now)
    write_down(state, client, now, Outcome.BEGAN, word(client, Client.STATUS), False)


# ---- over


@njit(**OPTIONS)
def end_request(state, client, now, outcome, status, has_usage):
    """Take back what a request counts, settle its budgets, and write it down for Python."""
    way = way_at(state, word(client, Client.WAY))
    _end_charge(state, client, now)
    if has_usage:
        set_double(word(client, Client.COUNTS), _HEARD, now)
        _settle_budgets(state, way, word(client, Client.TOKENS), now)
    elif word(client, Client.EVENTS) > 0:  # what was sent was generated, and must not pass free
        set_word(state, State.USAGE_INPUT, word(client, Client.TOKENS))
        set_word(state, State.USAGE_OUTPUT, word(client, Client.EVENTS))
        _settle_budgets(state, way, word(client, Client.TOKENS), now)
    set_word(way, Way.UNDER_WAY, word(way, Way.UNDER_WAY) - 1)
    write_down(state, client, now, outcome, status, has_usage)


@njit(**OPTIONS)
def write_down(state, client, now, outcome, status, has_usage):
    """A record of a request for Python."""
    count = word(state, State.RECORD_COUNT)
    set_word(state, State.RECORD_COUNT, count + 1)
    record = word(state, State.RECORDS) + count * _RECORD_BYTES
    set_word(record, Record.WAY, word(client, Client.WAY))
    set_word(record, Record.FACTS, word(client, Client.FACTS))
    set_word(record, Record.SERIAL, word(client, Client.SERIAL))
    set_word(record, Record.STATUS, status)
    set_word(record, Record.OUTCOME, outcome)
    set_word(record, Record.TEMPLATE, word(client, Client.TEMPLATE))
    set_word(record, Record.ID, word(client, Client.ID))
    set_double(record, Record.STARTED, double(client, Client.STARTED))
    began = double(client, Client.FIRST_BYTE)
    set_double(record, Record.FIRST_BYTE, now if outcome == Outcome.ANSWERED and began == 0.0 else began)
    set_double(record, Record.ENDED, now)
    set_word(record, Record.TOKENS, word(client, Client.TOKENS))
    set_word(record, Record.HELD, word(client, Client.HELD))
    set_word(record, Record.AHEAD, word(client, Client.AHEAD))
    set_word(record, Record.PROMPT_LENGTH, word(client, Client.PROMPT_LENGTH))
    set_word(record, Record.USAGE, 1 if has_usage else 0)
    set_word(record, Record.USAGE_INPUT, word(state, State.USAGE_INPUT))
    set_word(record, Record.USAGE_OUTPUT, word(state, State.USAGE_OUTPUT))
    set_word(record, Record.USAGE_CACHED, word(state, State.USAGE_CACHED))
    set_double(record, Record.DECIDE_S, double(client, Client.DECIDE_S))
    set_word(record, Record.IS_STREAM, word(client, Client.IS_STREAM))
    set_word(record, Record.EVENTS, word(client, Client.EVENTS))
