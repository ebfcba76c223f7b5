# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""A stream of events through the fast lane: whole chunks of whole events go on as they come; what is not whole waits for its rest.

So whatever the client was sent ends between two events, and Python can go on from there (`resuming.py`): with a client who lags, with
an engine that ends early, with chunks that are written otherwise. The usage that the router alone asked for is left out, as
`proxy/relay.py` does.
"""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, set_double, set_word, word
from hekla.serving.router.lane.compiled_answer import read_usage, tells_usage_only
from hekla.serving.router.lane.compiled_asking import put_id, take_over
from hekla.serving.router.lane.compiled_calls import RECV, WRITEV, byte, call, copy, is_dull, set_byte
from hekla.serving.router.lane.compiled_counts import begin_stream, end_request
from hekla.serving.router.lane.compiled_ending import client_left, go_on, recall_usage
from hekla.serving.router.lane.compiled_rows import (
    appended,
    buffer_at,
    client_at,
    drop_request,
    engine_at,
    give_buffer,
    keep_engine,
    may_read_on,
    may_take,
    take_buffer,
)
from hekla.serving.router.lane.compiled_text import is_same, lower, text_at, text_length
from hekla.serving.router.lane.layout import (
    MOST_PIECES,
    SCRATCH_BYTES,
    Client,
    Command,
    Engine,
    Outcome,
    Phase,
    Reason,
    State,
    Text,
)

_AGAIN = -11
_AT_ONCE = 0x40 | 0x4000
"""Do not wait, and no signal."""
_CR, _LF, _QUOTE = 13, 10, 34
_MOST_DIGITS = 6
_MORE, _ENDED, _OTHER = 0, 1, -1
_DULL_BYTES, _DULL_READS = 32, 34


@njit(**OPTIONS)
def keep_answer(state, engine, data, length):
    """Keep a part of an answer behind what is kept; whether there was room."""
    before = word(engine, Engine.LENGTH)
    buffer = appended(state, word(engine, Engine.BUFFER), before, data, length)
    if buffer >= 0:
        set_word(engine, Engine.BUFFER, buffer)
        set_word(engine, Engine.LENGTH, before + length)
    return buffer >= 0


# ---- what came


@njit(**OPTIONS)
def _chunk(state, begin, end):
    """Where the payload of a chunk begins, whose size stands in the state; -1: its first line is not whole, -2: it is an unusual one."""
    size, at = 0, begin
    while at < end and at - begin <= _MOST_DIGITS:
        digit = lower(byte(at, 0))
        if 48 <= digit <= 57:
            size = 16 * size + digit - 48
        elif 97 <= digit <= 102:
            size = 16 * size + digit - 87
        else:
            break
        at += 1
    if at - begin > _MOST_DIGITS:
        return -2
    if at < end and (at == begin or byte(at, 0) != _CR):
        return -2
    if at + 1 >= end:
        return -1
    set_word(state, State.BODY_LENGTH, size)
    return at + 2 if byte(at, 1) == _LF else -2


@njit(**OPTIONS)
def _look(state, at, end):
    """How many events end in a payload, doubled; and one more where a usage may stand in it."""
    usage, size = text_at(state, Text.USAGE), text_length(state, Text.USAGE)
    events, has_usage = 0, 0
    while at < end:
        while at + _DULL_READS <= end and is_dull(at):
            at += _DULL_BYTES
        stop = min(at + _DULL_BYTES, end)
        while at < stop:
            found = byte(at, 0)
            if found == _LF and at + 1 < end and byte(at, 1) == _LF:
                events += 1
                at += 1
            elif found == _QUOTE and at + size <= end and is_same(at, usage, size):
                has_usage = 1
            at += 1
    return 2 * events + has_usage


@njit(**OPTIONS)
def _put_piece(state, begin, end):
    """Write this to the client, too; whether there is room for more."""
    count, iov = word(state, State.PIECES), word(state, State.IOV)
    if end > begin:
        set_word(iov, 2 * count, begin)
        set_word(iov, 2 * count + 1, end - begin)
        count += 1
        set_word(state, State.PIECES, count)
        set_word(state, State.PIECES_LENGTH, word(state, State.PIECES_LENGTH) + end - begin)
    return count < MOST_PIECES


@njit(**OPTIONS)
def _is_line_end(at):
    return byte(at, 0) == _CR and byte(at, 1) == _LF


@njit(**OPTIONS)
def _walk(state, asks_usage, at, end):
    """Look at whole chunks and put what is to go on; whether more is to come, the stream has ended, or it is an unusual one."""
    kind, piece = _MORE, at
    set_word(state, State.EVENTS_SEEN, 0)
    set_word(state, State.USAGE_SEEN, -1)
    while at < end:
        begin = _chunk(state, at, end)
        last = begin + word(state, State.BODY_LENGTH)
        if begin == -2:
            return _OTHER
        if begin == -1 or last + 2 > end:
            break
        if not _is_line_end(last):
            return _OTHER
        if last == begin:
            at, kind = last + 2, _ENDED
            break
        if last - begin < 2 or byte(last, -1) != _LF or byte(last, -2) != _LF:
            return _OTHER
        seen = _look(state, begin, last)
        set_word(state, State.EVENTS_SEEN, word(state, State.EVENTS_SEEN) + (seen >> 1))
        if seen & 1:
            set_word(state, State.USAGE_SEEN, 1 if read_usage(state, begin, last) else 0)
            if asks_usage != 0:
                if seen >> 1 != 1:
                    return _OTHER
                if tells_usage_only(state, begin, last):
                    if not _put_piece(state, piece, at):
                        return _OTHER
                    piece = last + 2
        at = last + 2
    set_word(state, State.WALKED, at)
    _put_piece(state, piece, at)
    return _OTHER if kind == _ENDED and at != end else kind


# ---- on to the client


@njit(**OPTIONS)
def _put_name(state, client):
    """The line that says to which request an answer belongs, unless the engine says it; it stands behind the scratch."""
    if word(state, State.HAS_ID) != 0:
        return
    begin = word(state, State.SCRATCH) + SCRATCH_BYTES
    end = put_id(state, begin, word(client, Client.ID))
    set_byte(end, 0, _CR)
    set_byte(end, 1, _LF)
    _put_piece(state, begin + 2, end + 2)


@njit(**OPTIONS)
def put_named(state, client, begin, head_end, end):
    """An answer, or its head, as it came, with that line behind the others of its head."""
    _put_piece(state, begin, head_end - 2)
    _put_name(state, client)
    _put_piece(state, head_end - 2, end)


@njit(**OPTIONS)
def _put_head(state, client, begin, end):
    """The head of a stream, as `relay.py` writes it: as it came, or with the line about chunks last, if something is left out of them."""
    if word(client, Client.ASKS_USAGE) == 0:
        put_named(state, client, begin, end, end)
        return
    line = text_at(state, Text.CHUNKED_LINE)
    _put_piece(state, begin, word(state, State.CUT_AT))
    _put_piece(state, word(state, State.CUT_END), end - 2)
    _put_name(state, client)
    _put_piece(state, line, line + text_length(state, Text.CHUNKED_LINE))


@njit(**OPTIONS)
def _note(state, client, now):
    """What was seen of a stream, once it goes on."""
    set_double(client, Client.SINCE, now)
    set_word(client, Client.EVENTS, word(client, Client.EVENTS) + word(state, State.EVENTS_SEEN))
    if word(state, State.USAGE_SEEN) >= 0:
        set_word(client, Client.HAS_USAGE, word(state, State.USAGE_SEEN))
        set_word(client, Client.USAGE_INPUT, word(state, State.USAGE_INPUT))
        set_word(client, Client.USAGE_OUTPUT, word(state, State.USAGE_OUTPUT))
        set_word(client, Client.USAGE_CACHED, word(state, State.USAGE_CACHED))


@njit(**OPTIONS)
def keep_pieces(state, client, sent):
    """The client did not take all of the end of an answer: the rest waits."""
    iov, skipped, kept = word(state, State.IOV), sent, 0
    buffer = take_buffer(state, word(state, State.PIECES_LENGTH) - sent)
    for one in range(word(state, State.PIECES)):
        begin, count = word(iov, 2 * one), word(iov, 2 * one + 1)
        if skipped < count:
            copy(buffer_at(state, buffer) + kept, begin + skipped, count - skipped)
            kept += count - skipped
        skipped = max(skipped - count, 0)
    set_word(client, Client.BUFFER, buffer)
    set_word(client, Client.LENGTH, kept)


@njit(**OPTIONS)
def _end(state, engine_number, sent, now):
    """The stream is whole."""
    number = word(engine_at(state, engine_number), Engine.CLIENT)
    client = client_at(state, number)
    is_taken = sent == word(state, State.PIECES_LENGTH)
    if not is_taken:
        keep_pieces(state, client, sent)
    set_word(client, Client.ENGINE, -1)
    keep_engine(state, engine_number, now)
    end_request(state, client, now, Outcome.ANSWERED, word(client, Client.STATUS), recall_usage(state, client))
    if is_taken:
        return go_on(state, number, now)
    set_word(client, Client.PHASE, Phase.SENDING)
    return Command.NOTHING


@njit(**OPTIONS)
def _keep_rest(state, engine_number, begin, length):
    """What is not whole of a stream waits for its rest."""
    engine = engine_at(state, engine_number)
    buffer = word(engine, Engine.BUFFER)
    set_word(engine, Engine.LENGTH, 0)
    if length == 0:
        give_buffer(state, buffer)
        set_word(engine, Engine.BUFFER, -1)
    elif buffer >= 0:
        copy(buffer_at(state, buffer), begin, length)  # from the first byte on: it may overlap what it comes from
        set_word(engine, Engine.LENGTH, length)
    elif not keep_answer(state, engine, begin, length):
        return take_over(state, word(engine, Engine.CLIENT), Reason.FULL, begin, length)
    return Command.NOTHING


@njit(**OPTIONS)
def stream_on(state, engine_number, begin, length, head_end, data, unkept, now):
    """Pass on what is whole of so much of a stream, which begins with a head if that is not 0; `unkept` bytes of it are kept nowhere."""
    engine, end, first = engine_at(state, engine_number), begin + length, begin + head_end
    number = word(engine, Engine.CLIENT)
    client = client_at(state, number)
    set_word(state, State.PIECES, 0)
    set_word(state, State.PIECES_LENGTH, 0)
    if head_end > 0:
        _put_head(state, client, begin, first)
    kind = _walk(state, word(client, Client.ASKS_USAGE), first, end)
    walked, total = word(state, State.WALKED), word(state, State.PIECES_LENGTH)
    is_nothing = kind == _ENDED and head_end > 0 and word(state, State.EVENTS_SEEN) == 0
    if kind == _OTHER or is_nothing:
        return take_over(state, number, Reason.ANSWER, data, unkept)
    if walked == first:
        if unkept > 0 and not keep_answer(state, engine, data, unkept):
            return take_over(state, number, Reason.FULL, data, unkept)
        return Command.NOTHING
    if kind == _ENDED and not may_take(state, total):
        return take_over(state, number, Reason.FULL, data, unkept)
    sent = call(WRITEV, word(client, Client.FD), word(state, State.IOV), word(state, State.PIECES), 0, 0, 0)
    is_lost = sent < 0 and sent != _AGAIN
    sent = max(sent, 0)
    if head_end > 0:
        drop_request(state, client)
        set_word(client, Client.PHASE, Phase.STREAMING)
        set_word(client, Client.STATUS, word(state, State.STATUS))
        begin_stream(state, client, now)
    _note(state, client, now)
    if is_lost:
        return client_left(state, number, now)
    if kind == _ENDED:
        return _end(state, engine_number, sent, now)
    if sent < total:
        set_word(engine, Engine.LENGTH, 0)
        set_word(state, State.LENGTH, sent)
        return take_over(state, number, Reason.LAGS, walked, end - walked)
    return _keep_rest(state, engine_number, walked, end - walked)


@njit(**OPTIONS)
def read_stream(state, engine_number, now):
    """More came of a stream of which the client was sent a part; all of it is read, or as much as is one turn's."""
    engine, scratch = engine_at(state, engine_number), word(state, State.SCRATCH)
    number = word(engine, Engine.CLIENT)
    while True:
        got = call(RECV, word(engine, Engine.FD), scratch, SCRATCH_BYTES, _AT_ONCE, 0, 0)
        if got == _AGAIN:
            return Command.NOTHING
        if got <= 0:  # Python sees its end, too
            return take_over(state, number, Reason.ANSWER, 0, 0)
        begin, length, unkept = scratch, got, got
        if word(engine, Engine.BUFFER) >= 0:
            if not keep_answer(state, engine, scratch, got):
                return take_over(state, number, Reason.FULL, scratch, got)
            begin, length, unkept = buffer_at(state, word(engine, Engine.BUFFER)), word(engine, Engine.LENGTH), 0
        command = stream_on(state, engine_number, begin, length, 0, scratch, unkept, now)
        if command != Command.NOTHING or got < SCRATCH_BYTES:
            return command
        if not is_streaming(state, engine_number, number) or not may_read_on(state, engine_number):
            return Command.NOTHING


@njit(**OPTIONS)
def is_streaming(state, engine_number, number):
    """Whether a client is sent a stream of this engine's."""
    is_its = word(engine_at(state, engine_number), Engine.CLIENT) == number
    return is_its and word(client_at(state, number), Client.PHASE) == Phase.STREAMING
