# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""Reads an engine's answer: its head as `wire/raw_heads.read_answer` does, the usage as `proxy/usage.usage_of` does.

Only what may go on as it came is taken: HTTP/1.1, a length or a stream of events in chunks, nothing else that concerns the hop alone.
Everything else is Python's.
"""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, set_word, word
from hekla.serving.router.lane.compiled_calls import byte
from hekla.serving.router.lane.compiled_text import find, find_last, is_named, is_same, text_at, text_length
from hekla.serving.router.lane.layout import TAIL_BYTES, AnswerKind, State, Text

_CR, _LF, _COLON, _BLANK, _TAB = 13, 10, 58, 32, 9
_OPEN, _OPEN_LIST, _CLOSE_LIST = 123, 91, 93
_STATUS_AT, _LINE_AT = 9, 12
_MOST_DIGITS = 15
_MOST_LENGTH = 9


@njit(**OPTIONS)
def _is_token(letter):
    """Of a header's name."""
    if 48 <= letter <= 57 or 65 <= letter <= 90 or 94 <= letter <= 122:  # digits, letters and ^ _ `
        return True
    # ! # $ % & ' * + - . | ~
    is_sign = letter == 33 or 35 <= letter <= 39 or letter == 42 or letter == 43 or letter == 45 or letter == 46
    return is_sign or letter == 124 or letter == 126


@njit(**OPTIONS)
def _line_end(at, end):
    """Where the CR LF of a line is; -1: it is not whole, -2: there is what may not be in a line."""
    while at < end:
        found = byte(at, 0)
        if found == _CR:
            if at + 1 >= end:
                return -1
            return at if byte(at, 1) == _LF else -2
        if found == _LF or found == 0:
            return -2
        at += 1
    return -1


@njit(**OPTIONS)
def _is_hop(state, begin, count):
    """Whether a header is one that makes an answer no plain one."""
    if is_named(state, Text.CONTENT_ENCODING, begin, count):
        return True
    for which in range(Text.CONNECTION, Text.PROXY_CONNECTION + 1):  # noqa: SIM110 - as in `is_named`
        if is_named(state, which, begin, count):
            return True
    return False


@njit(**OPTIONS)
def _length(begin, end):
    """What a content-length says; -1: nothing clear."""
    if begin == end or end - begin > _MOST_LENGTH:
        return -1
    found = 0
    while begin < end:
        digit = byte(begin, 0)
        if not 48 <= digit <= 57:
            return -1
        found = 10 * found + digit - 48
        begin += 1
    return found


@njit(**OPTIONS)
def _take_header(state, begin, end):
    """Note what a line of a head says; whether it is plain."""
    colon = begin
    while colon < end and _is_token(byte(colon, 0)):
        colon += 1
    count = colon - begin
    if count == 0 or colon == end or byte(colon, 0) != _COLON:
        return False
    value = colon + 1
    while value < end and (byte(value, 0) == _BLANK or byte(value, 0) == _TAB):
        value += 1
    last = end
    while last > value and (byte(last - 1, 0) == _BLANK or byte(last - 1, 0) == _TAB):
        last -= 1
    if is_named(state, Text.CONTENT_LENGTH, begin, count):
        if word(state, State.BODY_LENGTH) >= 0:
            return False
        length = _length(value, last)
        set_word(state, State.BODY_LENGTH, length)
        return length >= 0
    if is_named(state, Text.CONTENT_TYPE, begin, count):
        wide = text_length(state, Text.EVENT_STREAM)
        is_events = last - value >= wide and is_named(state, Text.EVENT_STREAM, value, wide)
        set_word(state, State.IS_EVENTS, 1 if is_events else 0)
        return True
    if is_named(state, Text.TRANSFER_ENCODING, begin, count):
        if word(state, State.IS_CHUNKED) != 0 or not is_named(state, Text.CHUNKED, value, last - value):
            return False
        set_word(state, State.IS_CHUNKED, 1)
        set_word(state, State.CUT_AT, begin)
        set_word(state, State.CUT_END, end + 2)
        return True
    if is_named(state, Text.REQUEST_ID, begin, count):
        set_word(state, State.HAS_ID, 1)
        return True
    return not _is_hop(state, begin, count)


@njit(**OPTIONS)
def read_answer(state, begin, end):
    """What kind of answer begins here; status, end of the head and length stand in the state."""
    size = text_length(state, Text.HTTP_1_1)
    if end - begin < _LINE_AT + 2:
        return (
            AnswerKind.MORE
            if is_same(begin, text_at(state, Text.HTTP_1_1), min(end - begin, size))
            else AnswerKind.OTHER
        )
    if not is_same(begin, text_at(state, Text.HTTP_1_1), size):
        return AnswerKind.OTHER
    status = _length(begin + _STATUS_AT, begin + _LINE_AT)
    behind = byte(begin, _LINE_AT)
    if status < 200 or status > 599 or status == 204 or status == 304 or (behind != _BLANK and behind != _CR):
        return AnswerKind.OTHER
    set_word(state, State.STATUS, status)
    set_word(state, State.BODY_LENGTH, -1)
    set_word(state, State.IS_CHUNKED, 0)
    set_word(state, State.IS_EVENTS, 0)
    set_word(state, State.HAS_ID, 0)
    at = _line_end(begin + _LINE_AT, end)
    while True:
        if at < 0:
            return AnswerKind.MORE if at == -1 else AnswerKind.OTHER
        line = at + 2
        at = _line_end(line, end)
        if at == line:
            break
        if at > 0 and not _take_header(state, line, at):
            return AnswerKind.OTHER
    set_word(state, State.HEAD_END, at + 2 - begin)
    has_length, is_events = word(state, State.BODY_LENGTH) >= 0, word(state, State.IS_EVENTS) != 0
    if word(state, State.IS_CHUNKED) != 0:
        return AnswerKind.STREAM if is_events and not has_length and status < 300 else AnswerKind.OTHER
    return AnswerKind.WHOLE if has_length and not is_events else AnswerKind.OTHER


@njit(**OPTIONS)
def _is_blank(letter):
    return letter == 32 or 9 <= letter <= 13


@njit(**OPTIONS)
def _number_behind(at, end):
    """The number behind a name, a colon and blanks; -1: there is none."""
    while at < end and _is_blank(byte(at, 0)):
        at += 1
    if at >= end or byte(at, 0) != _COLON:
        return -1
    at += 1
    while at < end and _is_blank(byte(at, 0)):
        at += 1
    found, count = 0, 0
    while at < end and count < _MOST_DIGITS and 48 <= byte(at, 0) <= 57:
        found = 10 * found + byte(at, 0) - 48
        count += 1
        at += 1
    return found if count > 0 else -1


@njit(**OPTIONS)
def _counted(state, one, other, begin, end):
    """The first number that stands behind one of two names; -1: none does."""
    at = begin
    while True:
        first, second = find(state, one, at, end), find(state, other, at, end)
        if first < 0 and second < 0:
            return -1
        is_first = second < 0 or (first >= 0 and first < second)
        at = first + text_length(state, one) if is_first else second + text_length(state, other)
        found = _number_behind(at, end)
        if found >= 0:
            return found


@njit(**OPTIONS)
def _opens(state, which, opening, begin, end):
    """Where a name is followed by a colon and this opening of a list or an object: behind it; -1: nowhere."""
    at = find(state, which, begin, end)
    while at >= 0:
        behind = _behind_blanks(at + text_length(state, which), end)
        if behind < end and byte(behind, 0) == _COLON:
            behind = _behind_blanks(behind + 1, end)
            if behind < end and byte(behind, 0) == opening:
                return behind + 1
        at = find(state, which, at + 1, end)
    return -1


@njit(**OPTIONS)
def _behind_blanks(at, end):
    while at < end and _is_blank(byte(at, 0)):
        at += 1
    return at


@njit(**OPTIONS)
def tells_usage_only(state, begin, end):
    """Whether an event is the extra one (`proxy/usage.py`): no choices, and the usage."""
    if _opens(state, Text.USAGE, _OPEN, begin, end) < 0:
        return False
    at = _opens(state, Text.CHOICES, _OPEN_LIST, begin, end)
    while at >= 0:
        behind = _behind_blanks(at, end)
        if behind < end and byte(behind, 0) == _CLOSE_LIST:
            return True
        at = _opens(state, Text.CHOICES, _OPEN_LIST, at, end)
    return False


@njit(**OPTIONS)
def read_usage(state, begin, end):
    """Whether the end of an answer tells what the engine counted; it stands in the state."""
    if end - begin > TAIL_BYTES:
        begin = end - TAIL_BYTES
    at = find_last(state, Text.USAGE, begin, end)
    if at < 0:
        return False
    read = _counted(state, Text.PROMPT_TOKENS, Text.INPUT_TOKENS, at, end)
    written = _counted(state, Text.COMPLETION_TOKENS, Text.OUTPUT_TOKENS, at, end)
    if read < 0 and written < 0:
        return False
    cached = _counted(state, Text.CACHED_TOKENS, Text.CACHE_READ_INPUT_TOKENS, at, end)
    set_word(state, State.USAGE_INPUT, max(read, 0))
    set_word(state, State.USAGE_OUTPUT, max(written, 0))
    set_word(state, State.USAGE_CACHED, max(cached, 0))
    return True
