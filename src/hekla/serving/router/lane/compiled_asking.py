# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""The first half of a plain request in the fast lane: what a client sends, the decision, and the way to the engine.

`compiled_passing.py` has the other half. What is not plain is told to Python by a command (`layout.Command`), before anything was changed for it.
"""

from numba import float64, njit, uint64

from hekla.serving.router.endpoints import Counts
from hekla.serving.router.kernel.compiled import decide_for
from hekla.serving.router.kernel.compiled_words import (
    OPTIONS,
    double,
    set_double,
    set_word,
    word,
)
from hekla.serving.router.kernel.layout import SLOT_BITS
from hekla.serving.router.lane.compiled_calls import (
    CLOCK,
    CLOSE,
    RECV,
    SEND,
    WRITEV,
    byte,
    call,
    copy,
    set_byte,
)
from hekla.serving.router.lane.compiled_counts import may_pass, take_share
from hekla.serving.router.lane.compiled_question import first_field, read_question
from hekla.serving.router.lane.compiled_rows import (
    appended,
    buffer_at,
    client_at,
    close_engine,
    endpoint_at,
    engine_at,
    free_client,
    hear_all,
    leave_template,
    may_take,
    take_engine,
    template_at,
    use_template,
    wait_for,
    way_at,
    widened,
)
from hekla.serving.router.lane.compiled_text import is_same, put_hex, put_number, put_text, text_length
from hekla.serving.router.lane.layout import (
    FIRST_BYTES,
    HUGE_BYTES,
    ID_PREFIX_BYTES,
    ONE_IN,
    SCRATCH_BYTES,
    Client,
    Command,
    Endpoint,
    Engine,
    Phase,
    Reason,
    State,
    Template,
    Text,
    Way,
)

_AGAIN = -11
_AT_ONCE = 0x40 | 0x4000
"""Do not wait, and no signal."""
_MOST_DIGITS = 8
_MONOTONIC = 1
_PREFILL = Counts.word("prefill_tokens")
_SLOTS = (1 << SLOT_BITS) - 1
_MORE, _WHOLE, _OTHER = 0, 1, -1
_MOST_BLANKS = 256
"""Before the first field of a body into which another is put."""


@njit(**OPTIONS)
def told(state, command, number, reason):
    """Have Python do something."""
    set_word(state, State.CLIENT, number)
    set_word(state, State.REASON, reason)
    return command


@njit(**OPTIONS)
def hand_over(state, number, reason, data, length):
    """A connection with nothing under way, and what was read last: behind what its buffer holds."""
    set_word(state, State.DATA, data)
    set_word(state, State.LENGTH, length)
    return told(state, Command.HAND_OVER, number, reason)


@njit(**OPTIONS)
def take_over(state, number, reason, data, length):
    """A request under way, and what its engine said last: behind what the engine's buffer holds."""
    set_word(state, State.ENGINE_DATA, data)
    set_word(state, State.ENGINE_LENGTH, length)
    return told(state, Command.TAKE_OVER, number, reason)


@njit(**OPTIONS)
def close_client(state, number):
    """Close a client's connection, and tell Python."""
    call(CLOSE, word(client_at(state, number), Client.FD), 0, 0, 0, 0, 0)
    free_client(state, number)
    return told(state, Command.GONE, number, 0)


# ---- a request


@njit(**OPTIONS)
def _is_head(state, template, begin, length):
    """Whether a request begins with a known head: the digits of its length alone may be others."""
    before, after = word(template, Template.BEFORE_LENGTH), word(template, Template.AFTER_LENGTH)
    if before == 0 or not is_same(begin, word(template, Template.BEFORE), min(length, before)):
        return _OTHER
    if length <= before:
        return _MORE
    at, found = before, 0
    while at < length and at - before <= _MOST_DIGITS and 48 <= byte(begin, at) <= 57:
        found = 10 * found + byte(begin, at) - 48
        at += 1
    if at - before > _MOST_DIGITS or (at == before and at < length):
        return _OTHER
    if not is_same(begin + at, word(template, Template.AFTER), min(length - at, after)):
        return _OTHER
    if length - at < after:
        return _MORE
    set_word(state, State.HEAD_END, at + after)
    set_word(state, State.BODY_LENGTH, found)
    return _WHOLE


@njit(**OPTIONS)
def _other_head(state, client, begin, length):
    """Whether a request begins with another known head than those before it, which is then its connection's."""
    for number in range(word(state, State.TEMPLATE_HIGH)):
        what = _is_head(state, template_at(state, number), begin, length)
        if what != _OTHER:
            leave_template(state, client)
            use_template(state, client, number)
            return what
    return _OTHER


@njit(**OPTIONS)
def _find_way(state, template):
    """What is known of the model that is asked for; -1: nothing."""
    number, model, length = word(template, Template.WAY), word(state, State.MODEL), word(state, State.MODEL_LENGTH)
    while number >= 0:
        way = way_at(state, number)
        if word(way, Way.MODEL_LENGTH) == length and is_same(word(way, Way.MODEL), model, length):
            return number
        number = word(way, Way.NEXT)
    return -1


@njit(**OPTIONS)
def _seconds(state):
    """A clock, for what is measured."""
    place = word(state, State.IOV)
    call(CLOCK, _MONOTONIC, place, 0, 0, 0, 0)
    return float64(word(place, 0)) + float64(word(place, 1)) * 1e-9


@njit(**OPTIONS)
def _decide(state, way, tokens, answer, now):
    """Choose the engine and count there (`kernel/compiled.py`); one choice in sixteen is timed."""
    count = word(state, State.IDS)
    is_timed = count % ONE_IN == 0
    began = _seconds(state) if is_timed else 0.0
    found = decide_for(
        word(way, Way.INDEX),
        word(state, State.PROMPT),
        word(state, State.PROMPT_LENGTH),
        uint64(word(way, Way.SEED)),
        tokens,
        answer,
        now,
        double(way, Way.RATE),
    )
    return found, _seconds(state) - began if is_timed else 0.0


@njit(**OPTIONS)
def _charge(state, number, client, way_number, found, tokens, answer, now):
    """Note what the request counts, as `pool.Charge`."""
    way, slot, held = way_at(state, way_number), found & _SLOTS, found >> SLOT_BITS
    place = endpoint_at(state, slot)
    counts = word(place, Endpoint.COUNTS)
    ahead = word(counts, _PREFILL)
    set_word(client, Client.WAY, way_number)
    set_word(client, Client.ENDPOINT, slot)
    set_word(client, Client.SERIAL, word(place, Endpoint.SERIAL))
    set_word(client, Client.COUNTS, counts)
    set_word(client, Client.TOKENS, tokens)
    set_word(client, Client.ANSWER, answer)
    set_word(client, Client.HELD, held)
    set_word(client, Client.UNCACHED, tokens - held if held < tokens else 1)
    set_word(client, Client.AHEAD, ahead)
    set_word(client, Client.PREFILLED, 0)
    set_word(client, Client.PROMPT_LENGTH, word(state, State.PROMPT_LENGTH))
    set_word(client, Client.MOST_OUTPUT, word(state, State.MOST_OUTPUT))
    set_word(client, Client.RETRIED, 0)
    set_word(client, Client.SERVED, word(client, Client.SERVED) + 1)
    set_word(client, Client.FACTS, word(way, Way.FACTS))
    set_double(client, Client.STARTED, now)
    set_double(client, Client.FIRST_BYTE, 0.0)
    set_word(client, Client.EVENTS, 0)
    set_word(client, Client.HAS_USAGE, 0)
    set_word(state, State.IDS, word(state, State.IDS) + 1)
    set_word(client, Client.ID, word(state, State.IDS))
    set_word(way, Way.UNDER_WAY, word(way, Way.UNDER_WAY) + 1)
    if word(client, Client.IS_STREAM) == 0:  # of a stream the first byte shows when prefill is over
        wait_for(state, number, now + ahead / double(way, Way.RATE))


@njit(**OPTIONS)
def _ask(state, number, begin, length, now):
    """A whole request: decide, and send it; or hand it over."""
    client = client_at(state, number)
    head_end = word(state, State.HEAD_END)
    template = template_at(state, word(client, Client.TEMPLATE))
    if not read_question(state, begin + head_end, begin + length):
        return _unread(state, number, begin, length, Reason.UNUSUAL)
    is_stream = word(state, State.IS_STREAM)
    asks_usage = is_stream & (1 - word(state, State.WANTS_USAGE)) & word(template, Template.TELLS_USAGE)
    if asks_usage != 0 and first_field(begin + head_end, begin + length) > begin + head_end + _MOST_BLANKS:
        return _unread(state, number, begin, length, Reason.UNUSUAL)
    way_number = _find_way(state, template)
    if way_number < 0:
        return _unread(state, number, begin, length, Reason.UNKNOWN)
    way, tokens = way_at(state, way_number), (word(state, State.PROMPT_LENGTH) + 3) // 4
    if word(way, Way.IS_PLAIN) == 0 or not may_pass(way, tokens, now):
        return _unread(state, number, begin, length, Reason.DECIDED)
    buffer = word(client, Client.BUFFER)
    if buffer < 0:
        if not may_take(state, length):
            return _unread(state, number, begin, length, Reason.FULL)
        buffer = appended(state, -1, 0, begin, length)
    mean, asked = double(way, Way.MEAN), word(state, State.MOST_OUTPUT)
    answer = asked if asked > 0 and asked < mean else int(mean)
    found, took_s = _decide(state, way, tokens, answer, now)
    set_word(client, Client.BUFFER, buffer)
    set_word(client, Client.LENGTH, length)
    if found < 0:
        return hand_over(state, number, Reason.DECIDED, begin, 0)
    take_share(way, tokens)
    set_word(client, Client.IS_STREAM, is_stream)
    set_word(client, Client.ASKS_USAGE, asks_usage)
    _charge(state, number, client, way_number, found, tokens, answer, now)
    set_double(client, Client.DECIDE_S, took_s)
    set_word(client, Client.HEAD_END, head_end)
    engine = take_engine(state, word(client, Client.ENDPOINT))
    if engine < 0:
        set_word(client, Client.PHASE, Phase.WAITING)
        set_double(client, Client.SINCE, now)
        return told(state, Command.CONNECT, number, 0)
    return send_request(state, number, engine, now)


@njit(**OPTIONS)
def _unread(state, number, begin, length, reason):
    """Hand a request over that was read: it stands in the client's buffer, or in the scratch alone."""
    is_kept = word(client_at(state, number), Client.BUFFER) >= 0
    return hand_over(state, number, reason, begin, 0 if is_kept else length)


@njit(**OPTIONS)
def put_id(state, at, request):
    """The end of a line, and the one that names a request, without its end; where that is."""
    at = put_text(state, at, Text.ID_LINE)
    copy(at, word(state, State.ID_PREFIX), ID_PREFIX_BYTES)
    set_byte(at, ID_PREFIX_BYTES, 45)
    return put_hex(at + ID_PREFIX_BYTES + 1, request)


@njit(**OPTIONS)
def _put_head(state, body_length, request):
    """The end of a head for an engine, behind the scratch; its length."""
    begin = word(state, State.SCRATCH) + SCRATCH_BYTES
    at = put_number(put_text(state, begin, Text.LENGTH_LINE), body_length)
    at = put_id(state, at, request)
    for one in range(4):
        set_byte(at, one, 10 if one & 1 else 13)
    return at + 4 - begin


@njit(**OPTIONS)
def engine_failed(state, engine_number):
    """A connection that is of no use: once more on a fresh one if it was stale, or Python tries another engine."""
    engine = engine_at(state, engine_number)
    number = word(engine, Engine.CLIENT)
    client = client_at(state, number)
    if word(engine, Engine.LENGTH) > 0:  # Python sees its end, too
        return take_over(state, number, Reason.ANSWER, 0, 0)
    is_stale = word(engine, Engine.REUSED) != 0 and word(client, Client.RETRIED) == 0
    close_engine(state, engine_number)
    set_word(client, Client.ENGINE, -1)
    if is_stale:
        set_word(client, Client.RETRIED, 1)
        set_word(client, Client.PHASE, Phase.WAITING)
        return told(state, Command.CONNECT, number, 0)
    return take_over(state, number, Reason.CLOSED, 0, 0)


@njit(**OPTIONS)
def send_request(state, number, engine_number, now):
    """Send what the client's buffer holds."""
    client, engine, iov = client_at(state, number), engine_at(state, engine_number), word(state, State.IOV)
    template = template_at(state, word(client, Client.TEMPLATE))
    head_end, length = word(client, Client.HEAD_END), word(client, Client.LENGTH)
    set_word(client, Client.PHASE, Phase.ASKED)
    set_double(client, Client.SINCE, now)
    set_word(client, Client.ENGINE, engine_number)
    set_word(engine, Engine.CLIENT, number)
    set_double(engine, Engine.SINCE, now)
    body, left = buffer_at(state, word(client, Client.BUFFER)) + head_end, length - head_end
    wish = text_length(state, Text.USAGE_WISH) if word(client, Client.ASKS_USAGE) != 0 else 0
    head_rest = _put_head(state, left + wish, word(client, Client.ID))
    if wish != 0:  # the first field of the body
        before = first_field(body, body + left) - body
        at = word(state, State.SCRATCH) + SCRATCH_BYTES + head_rest
        copy(at, body, before)
        put_text(state, at + before, Text.USAGE_WISH)
        head_rest, body, left = head_rest + before + wish, body + before, left - before
    set_word(iov, 0, word(template, Template.ONWARD))
    set_word(iov, 1, word(template, Template.ONWARD_LENGTH))
    set_word(iov, 2, word(state, State.SCRATCH) + SCRATCH_BYTES)
    set_word(iov, 3, head_rest)
    set_word(iov, 4, body)
    set_word(iov, 5, left)
    sent = call(WRITEV, word(engine, Engine.FD), iov, 3, 0, 0, 0)
    if sent < 0 and sent != _AGAIN:
        return engine_failed(state, engine_number)
    unsent = word(template, Template.ONWARD_LENGTH) + head_rest + left - max(sent, 0)
    set_word(client, Client.UNSENT, unsent)
    if unsent > left:
        return take_over(state, number, Reason.UNSENT, 0, 0)
    if unsent > 0:
        hear_all(state, engine_number)
    return Command.NOTHING


@njit(**OPTIONS)
def send_more(state, engine_number):
    """An engine takes again: what it has not taken yet of a request, if anything."""
    engine = engine_at(state, engine_number)
    client = client_at(state, word(engine, Engine.CLIENT))
    unsent = word(client, Client.UNSENT)
    if unsent == 0:
        return Command.NOTHING
    begin = buffer_at(state, word(client, Client.BUFFER)) + word(client, Client.LENGTH) - unsent
    sent = call(SEND, word(engine, Engine.FD), begin, unsent, _AT_ONCE, 0, 0)
    if sent < 0 and sent != _AGAIN:
        return engine_failed(state, engine_number)
    set_word(client, Client.UNSENT, unsent - max(sent, 0))
    return Command.NOTHING


@njit(**OPTIONS)
def _take_request(state, number, begin, length, now):
    """What came of a request so far: ask, wait for more, or hand it over."""
    client = client_at(state, number)
    what = _is_head(state, template_at(state, word(client, Client.TEMPLATE)), begin, length)
    if what == _OTHER:
        what = _other_head(state, client, begin, length)
    needed = word(state, State.HEAD_END) + word(state, State.BODY_LENGTH) if what == _WHOLE else length + 1
    if what == _OTHER or needed > HUGE_BYTES or length > needed:
        return _unread(state, number, begin, length, Reason.UNUSUAL)
    if what == _WHOLE and word(state, State.BODY_LENGTH) > word(state, State.MOST_BYTES):
        return _unread(state, number, begin, length, Reason.UNUSUAL)
    if length == needed:
        return _ask(state, number, begin, length, now)
    buffer = word(client, Client.BUFFER)
    wider = widened(state, buffer, length, needed)
    if wider < 0:
        return _unread(state, number, begin, length, Reason.FULL)
    set_word(client, Client.BUFFER, wider)
    if buffer < 0:
        copy(buffer_at(state, wider), begin, length)
        set_word(client, Client.PHASE, Phase.PARTIAL)
        set_double(client, Client.SINCE, now)
    if what == _WHOLE and word(client, Client.NEEDED) == 0:
        set_word(client, Client.NEEDED, needed)
        set_double(client, Client.SINCE, now)
    set_word(client, Client.LENGTH, length)
    return Command.NOTHING


@njit(**OPTIONS)
def _read_body(state, number, now):
    """More came of a request whose length is known: it is read to where it belongs, and not beyond its end."""
    client = client_at(state, number)
    buffer, before = word(client, Client.BUFFER), word(client, Client.LENGTH)
    missing, begin = word(client, Client.NEEDED) - before, buffer_at(state, buffer)
    got = call(RECV, word(client, Client.FD), begin + before, missing, _AT_ONCE, 0, 0)
    if got == _AGAIN:
        return Command.NOTHING
    if got <= 0:
        return close_client(state, number)
    set_word(client, Client.LENGTH, before + got)
    if got < missing:
        return Command.NOTHING
    set_word(client, Client.MORE, 1)  # what is behind it was told, too, and is told no more
    return _take_request(state, number, begin, before + got, now)


@njit(**OPTIONS)
def _read_on(state, number, got, now):
    """So much more came into the scratch of a request whose head is not whole."""
    client, scratch = client_at(state, number), word(state, State.SCRATCH)
    buffer, before = word(client, Client.BUFFER), word(client, Client.LENGTH)
    if buffer < 0:
        return _take_request(state, number, scratch, got, now)
    wider = appended(state, buffer, before, scratch, got)
    if wider < 0:
        return hand_over(state, number, Reason.FULL, scratch, got)
    set_word(client, Client.BUFFER, wider)
    set_word(client, Client.LENGTH, before + got)
    return _take_request(state, number, buffer_at(state, wider), before + got, now)


@njit(**OPTIONS)
def read_client(state, number, now):
    """Something came from a client on whose connection nothing is under way."""
    client, scratch = client_at(state, number), word(state, State.SCRATCH)
    if word(client, Client.NEEDED) > 0:
        return _read_body(state, number, now)
    got = call(RECV, word(client, Client.FD), scratch, FIRST_BYTES, _AT_ONCE, 0, 0)
    if got == _AGAIN:
        return Command.NOTHING
    if got <= 0:
        return close_client(state, number)
    if got < FIRST_BYTES:
        return _read_on(state, number, got, now)
    set_word(client, Client.MORE, 1)  # there may be more, of which nobody tells again
    command = _read_on(state, number, got, now)
    if command == Command.NOTHING and word(client, Client.PHASE) == Phase.PARTIAL:
        return _read_body(state, number, now)
    return command


@njit(**OPTIONS)
def read_last(state, number):
    """A client that sends no more: what it sent before, if anything, is Python's."""
    scratch = word(state, State.SCRATCH)
    got = call(RECV, word(client_at(state, number), Client.FD), scratch, SCRATCH_BYTES, _AT_ONCE, 0, 0)
    return hand_over(state, number, Reason.UNUSUAL, scratch, got) if got > 0 else close_client(state, number)
