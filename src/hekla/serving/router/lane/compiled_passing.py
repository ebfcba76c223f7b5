# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""The other half of a plain request in the fast lane: what its engine answers, on to the client; streams by `compiled_streaming.py`."""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, set_double, set_word, word
from hekla.serving.router.lane.compiled_answer import read_answer, read_usage
from hekla.serving.router.lane.compiled_asking import close_client, engine_failed, take_over
from hekla.serving.router.lane.compiled_calls import RECV, WRITEV, call
from hekla.serving.router.lane.compiled_counts import end_request
from hekla.serving.router.lane.compiled_ending import go_on
from hekla.serving.router.lane.compiled_rows import (
    buffer_at,
    client_at,
    drop_request,
    engine_at,
    keep_engine,
    may_read_on,
    may_take,
)
from hekla.serving.router.lane.compiled_streaming import (
    is_streaming,
    keep_answer,
    keep_pieces,
    put_named,
    read_stream,
    stream_on,
)
from hekla.serving.router.lane.layout import (
    ID_LINE_BYTES,
    LARGE_BYTES,
    SCRATCH_BYTES,
    SMALL_BYTES,
    AnswerKind,
    Client,
    Command,
    Engine,
    Outcome,
    Phase,
    Reason,
    State,
)

_AGAIN = -11
_AT_ONCE = 0x40 | 0x4000
"""Do not wait, and no signal."""


# ---- an answer


@njit(**OPTIONS)
def _is_busy(status):
    """As `exchange.BUSY`: another engine may have room."""
    return status == 429 or status == 502 or status == 503 or status == 504


@njit(**OPTIONS)
def _is_nothing(state):
    """A 200 without a body: another engine may say something."""
    return word(state, State.STATUS) == 200 and word(state, State.BODY_LENGTH) == 0


@njit(**OPTIONS)
def _pass_on(state, engine_number, begin, length, now):
    """A whole answer: to the client with it; what he does not take at once is kept."""
    engine = engine_at(state, engine_number)
    number, status = word(engine, Engine.CLIENT), word(state, State.STATUS)
    client = client_at(state, number)
    set_word(state, State.PIECES, 0)
    set_word(state, State.PIECES_LENGTH, 0)
    put_named(state, client, begin, begin + word(state, State.HEAD_END), begin + length)
    sent = call(WRITEV, word(client, Client.FD), word(state, State.IOV), word(state, State.PIECES), 0, 0, 0)
    is_lost = sent < 0 and sent != _AGAIN
    rest = word(state, State.PIECES_LENGTH) - max(sent, 0)
    has_usage = status < 400 and read_usage(state, begin, begin + length)
    drop_request(state, client)
    if rest > 0 and not is_lost:
        keep_pieces(state, client, max(sent, 0))
    set_word(client, Client.ENGINE, -1)
    keep_engine(state, engine_number, now)
    end_request(state, client, now, Outcome.ANSWERED, status, has_usage)
    set_double(client, Client.SINCE, now)
    if is_lost:
        return close_client(state, number)
    if rest > 0:
        set_word(client, Client.PHASE, Phase.SENDING)
        return Command.NOTHING
    return go_on(state, number, now)


@njit(**OPTIONS)
def read_engine(state, engine_number, now):
    """Something came from an engine that was asked."""
    engine, data = engine_at(state, engine_number), word(state, State.SCRATCH)
    if is_streaming(state, engine_number, word(engine, Engine.CLIENT)):
        return read_stream(state, engine_number, now)
    got = call(RECV, word(engine, Engine.FD), data, SCRATCH_BYTES, _AT_ONCE, 0, 0)
    if got == _AGAIN:
        return Command.NOTHING
    if got <= 0:
        return engine_failed(state, engine_number)
    number, begin, length = word(engine, Engine.CLIENT), data, got
    if word(client_at(state, number), Client.UNSENT) != 0:  # it answers before it was asked all
        return take_over(state, number, Reason.ANSWER, data, got)
    is_kept = word(engine, Engine.BUFFER) >= 0
    if is_kept:
        if not keep_answer(state, engine, data, got):
            return take_over(state, number, Reason.FULL, data, got)
        begin, length = buffer_at(state, word(engine, Engine.BUFFER)), word(engine, Engine.LENGTH)
    unkept = 0 if is_kept else got
    kind = read_answer(state, begin, begin + length)
    if kind == AnswerKind.STREAM and word(client_at(state, number), Client.IS_STREAM) != 0:
        command = stream_on(state, engine_number, begin, length, word(state, State.HEAD_END), data, unkept, now)
        if command != Command.NOTHING or got < SCRATCH_BYTES:
            return command
        if is_streaming(state, engine_number, number):
            return read_stream(state, engine_number, now) if may_read_on(state, engine_number) else Command.NOTHING
        return take_over(state, number, Reason.ANSWER, 0, 0) if word(engine, Engine.CLIENT) == number else command
    if (
        kind == AnswerKind.OTHER
        or kind == AnswerKind.STREAM
        or (kind == AnswerKind.WHOLE and (_is_busy(word(state, State.STATUS)) or _is_nothing(state)))
    ):
        return take_over(state, number, Reason.ANSWER, data, unkept)
    needed = word(state, State.HEAD_END) + word(state, State.BODY_LENGTH) if kind == AnswerKind.WHOLE else length + 1
    if needed + ID_LINE_BYTES > LARGE_BYTES or length > needed:
        return take_over(state, number, Reason.ANSWER, data, unkept)
    if length < needed:
        if not is_kept and not keep_answer(state, engine, data, got):
            return take_over(state, number, Reason.FULL, data, got)
        return Command.NOTHING
    if length + ID_LINE_BYTES > SMALL_BYTES and not may_take(state, length + ID_LINE_BYTES):
        return take_over(state, number, Reason.FULL, data, unkept)
    return _pass_on(state, engine_number, begin, length, now)
