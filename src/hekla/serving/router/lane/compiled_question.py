# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""Reads a plain question, as `reading.py` reads it, or says that it is none: then Python reads it.

All of the body is walked, strictly: what is taken here is JSON to anybody. A field that `reading.py` looks at and that is not
one of six, a name that comes twice or is written with escapes, media, nesting beyond 60: not plain.
"""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, set_word, word
from hekla.serving.router.lane.compiled_calls import byte, is_quiet
from hekla.serving.router.lane.compiled_text import is_same, text_at, text_length
from hekla.serving.router.lane.layout import MEDIA_BYTES, RUN_BYTES, State, Text

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _POINT, _ZERO = 34, 92, 44, 58, 45, 46, 48
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_DEEPEST = 60
_MOST_DIGITS = 9
_ONES = 0x0101010101010101
_HIGH = -0x7F7F7F7F7F7F7F80
"""The highest bit of each of eight bytes."""


@njit(**OPTIONS)
def _skip_blank(at, end):
    while at < end:
        found = byte(at, 0)
        if found != 32 and found != 10 and found != 13 and found != 9:
            break
        at += 1
    return at


@njit(**OPTIONS)
def _is_hex(digit):
    return 48 <= digit <= 57 or 65 <= digit <= 70 or 97 <= digit <= 102


@njit(**OPTIONS)
def _skip_escape(at, end):
    """Behind a backslash; -1: not plain, as half of a pair of surrogates."""
    if at >= end:
        return -1
    kind = byte(at, 0)
    if kind != 117:  # u
        # " \ / b f n r t
        is_one = kind == 34 or kind == 92 or kind == 47 or kind == 98 or kind == 102 or kind == 110 or kind == 114
        return at + 1 if is_one or kind == 116 else -1
    if at + 5 > end:
        return -1
    for digit in range(1, 5):
        if not _is_hex(byte(at, digit)):
            return -1
    if byte(at, 1) | 32 == 100 and byte(at, 2) > 55:  # d8 to df
        return -1
    return at + 5


@njit(**OPTIONS)
def _is_next(at, end, lowest, highest):
    return at < end and lowest <= byte(at, 0) <= highest


@njit(**OPTIONS)
def _skip_wide(at, end):
    """Behind a letter that UTF-8 writes in several bytes; -1: it is not UTF-8."""
    first = byte(at, 0)
    lowest, highest, more = 0x80, 0xBF, 0
    if 0xC2 <= first <= 0xDF:
        more = 1
    elif 0xE0 <= first <= 0xEF:
        more = 2
        lowest = 0xA0 if first == 0xE0 else 0x80
        highest = 0x9F if first == 0xED else 0xBF
    elif 0xF0 <= first <= 0xF4:
        more = 3
        lowest = 0x90 if first == 0xF0 else 0x80
        highest = 0x8F if first == 0xF4 else 0xBF
    else:
        return -1
    if not _is_next(at + 1, end, lowest, highest):
        return -1
    for one in range(2, more + 1):
        if not _is_next(at + one, end, 0x80, 0xBF):
            return -1
    return at + 1 + more


@njit(**OPTIONS)
def _has_special(eight):
    """Whether one of eight bytes ends a string, escapes, is no character or more than ASCII; may say so of none, never not of one."""
    quote, backslash = eight ^ (_QUOTE * _ONES), eight ^ (_BACKSLASH * _ONES)
    found = (quote - _ONES) & ~quote
    found |= (backslash - _ONES) & ~backslash
    found |= (eight - 32 * _ONES) & ~eight
    return ((found | eight) & _HIGH) != 0


@njit(**OPTIONS)
def _skip_string(at, end):
    """Behind a string whose quote was read; -1: not plain."""
    while at < end:
        while at + 32 <= end and is_quiet(at):
            at += 32
        while at + 8 <= end and not _has_special(word(at, 0)):
            at += 8
        if at >= end:
            return -1
        found = byte(at, 0)
        if found == _QUOTE:
            return at + 1
        if found < 32:
            return -1
        if found == _BACKSLASH:
            at = _skip_escape(at + 1, end)
        elif found >= 128:
            at = _skip_wide(at, end)
        else:
            at += 1
        if at < 0:
            return -1
    return -1


@njit(**OPTIONS)
def _skip_digits(at, end):
    """Behind at least one digit; -1: there is none."""
    begin = at
    while at < end and 48 <= byte(at, 0) <= 57:
        at += 1
    return at if at > begin else -1


@njit(**OPTIONS)
def _skip_number(at, end):
    """Behind a number as JSON writes it; -1: it is none."""
    if byte(at, 0) == _MINUS:
        at += 1
    if at >= end:
        return -1
    at = at + 1 if byte(at, 0) == _ZERO else _skip_digits(at, end)
    if at >= 0 and at < end and byte(at, 0) == _POINT:
        at = _skip_digits(at + 1, end)
    if at >= 0 and at < end and byte(at, 0) | 32 == 101:  # e
        at += 1
        if at < end and (byte(at, 0) == 43 or byte(at, 0) == _MINUS):
            at += 1
        at = _skip_digits(at, end)
    return at


@njit(**OPTIONS)
def _skip_word(at, end):
    """Behind true, false or null; -1: it is none of them."""
    if at + 4 <= end:
        a, b, c, d = byte(at, 0), byte(at, 1), byte(at, 2), byte(at, 3)
        if (a == 116 and b == 114 and c == 117 and d == 101) or (a == 110 and b == 117 and c == 108 and d == 108):
            return at + 4
        if at + 5 <= end and a == 102 and b == 97 and c == 108 and d == 115 and byte(at, 4) == 101:
            return at + 5
    return -1


@njit(**OPTIONS)
def _skip_scalar(at, end):
    found = byte(at, 0)
    if found == _QUOTE:
        return _skip_string(at + 1, end)
    if found == _MINUS or 48 <= found <= 57:
        return _skip_number(at, end)
    return _skip_word(at, end)


@njit(**OPTIONS)
def _skip_name(at, end):
    """Behind a field's name and its colon; -1: not plain."""
    at = _skip_blank(at, end)
    if at >= end or byte(at, 0) != _QUOTE:
        return -1
    at = _skip_string(at + 1, end)
    if at < 0:
        return -1
    at = _skip_blank(at, end)
    if at >= end or byte(at, 0) != _COLON:
        return -1
    return _skip_blank(at + 1, end)


@njit(**OPTIONS)
def skip_value(at, end):
    """Behind a value of whatever kind; -1: not plain."""
    depth, kinds = 0, 0  # a bit for each level: 1 where it is an object
    while True:
        if at >= end:
            return -1
        found = byte(at, 0)
        if found == _OPEN or found == _OPEN_LIST:  # noqa: SIM109 - numba makes a tuple and a call of `in`
            depth += 1
            if depth > _DEEPEST:
                return -1
            kinds = (kinds << 1) | (1 if found == _OPEN else 0)
            at = _skip_blank(at + 1, end)
            closing = _CLOSE if kinds & 1 else _CLOSE_LIST
            if at >= end or byte(at, 0) != closing:
                if kinds & 1:
                    at = _skip_name(at, end)
                    if at < 0:
                        return -1
                continue
            at += 1
            depth -= 1
            kinds >>= 1
        else:
            at = _skip_scalar(at, end)
            if at < 0:
                return -1
        while depth > 0:  # behind a value: the next one of its list or object, or its end
            at = _skip_blank(at, end)
            if at >= end:
                return -1
            found = byte(at, 0)
            at += 1
            if found == _COMMA:
                at = _skip_name(at, end) if kinds & 1 else _skip_blank(at, end)
                if at < 0:
                    return -1
                break
            if found != (_CLOSE if kinds & 1 else _CLOSE_LIST):
                return -1
            depth -= 1
            kinds >>= 1
        if depth == 0:
            return at


@njit(**OPTIONS)
def _field(state, begin, count):
    """Which field a name is; -1: one that nobody looks at, -2: one written so that it may be any."""
    for at in range(count):
        if byte(begin, at) == _BACKSLASH:
            return -2
    for which in range(Text.MODEL, Text.CACHE_SALT + 1):
        if text_length(state, which) == count and is_same(text_at(state, which), begin, count):
            return which
    return -1


@njit(**OPTIONS)
def _number(at, end):
    """A number of up to nine digits, 0 for null; -1: another."""
    if byte(at, 0) == 110:
        return 0
    count = end - at
    if count > _MOST_DIGITS:
        return -1
    found = 0
    for one in range(count):
        digit = byte(at, one)
        if not 48 <= digit <= 57:
            return -1
        found = 10 * found + digit - 48
    return found


@njit(**OPTIONS)
def _is_plain_name(begin, end):
    """Whether a model's name is printable ASCII without escapes."""
    at = begin
    while at < end:
        found = byte(at, 0)
        if found < 32 or found > 126 or found == _BACKSLASH:
            return False
        at += 1
    return end > begin


@njit(**OPTIONS)
def _has_media(begin, end):
    """As `reading._has_a_run_without_spaces`: base64 may be in it."""
    if end - begin <= MEDIA_BYTES:
        return False
    at = begin
    while at < end - RUN_BYTES:
        is_run = True
        for one in range(RUN_BYTES):
            if byte(at, one) == 32:
                is_run = False
                break
        if is_run:
            return True
        at += RUN_BYTES
    return False


@njit(**OPTIONS)
def _is_wish_for_usage(state, begin, end):
    """Whether the options of a stream are `{"include_usage": true}` and nothing else."""
    name, count = text_at(state, Text.INCLUDE_USAGE), text_length(state, Text.INCLUDE_USAGE)
    at = _skip_blank(begin + 1, end)
    if byte(begin, 0) != _OPEN or at + count >= end or not is_same(at, name, count):
        return False
    at = _skip_blank(_skip_blank(at + count, end) + 1, end)  # all of it is JSON: behind a name there is a colon
    return byte(at, 0) == 116 and byte(_skip_blank(at + 4, end), 0) == _CLOSE  # true


@njit(**OPTIONS)
def first_field(at, end):
    """Where the first field of an object begins, or the object ends."""
    return _skip_blank(_skip_blank(at, end) + 1, end)


@njit(**OPTIONS)
def _take_field(state, which, begin, end):
    """Note what a field says; whether it is plain."""
    first = byte(begin, 0)
    if which == Text.MODEL:
        if first != _QUOTE or not _is_plain_name(begin + 1, end - 1):
            return False
        set_word(state, State.MODEL, begin + 1)
        set_word(state, State.MODEL_LENGTH, end - begin - 2)
    elif which == Text.MESSAGES:
        if first != _OPEN_LIST or byte(begin, 1) != _OPEN or _has_media(begin, end):
            return False
        set_word(state, State.PROMPT, begin)
        set_word(state, State.PROMPT_LENGTH, end - begin)
    elif which == Text.STREAM:
        if first != 116 and first != 102 and first != 110:  # true, false, null
            return False
        set_word(state, State.IS_STREAM, 1 if first == 116 else 0)
    elif which == Text.STREAM_OPTIONS:
        if not _is_wish_for_usage(state, begin, end):
            return False
        set_word(state, State.WANTS_USAGE, 1)
    elif which == Text.MAX_TOKENS or which == Text.MAX_COMPLETION_TOKENS:
        asked = _number(begin, end)
        if asked < 0:
            return False
        if asked > 0 and (which == Text.MAX_COMPLETION_TOKENS or word(state, State.MOST_OUTPUT) == 0):
            set_word(state, State.MOST_OUTPUT, asked)
    else:
        return False
    return True


@njit(**OPTIONS)
def read_question(state, begin, end):
    """Whether a body is a plain question; what it asks stands in the state."""
    set_word(state, State.MODEL_LENGTH, 0)
    set_word(state, State.PROMPT_LENGTH, 0)
    set_word(state, State.MOST_OUTPUT, 0)
    set_word(state, State.IS_STREAM, 0)
    set_word(state, State.WANTS_USAGE, 0)
    at = _skip_blank(begin, end)
    if at >= end or byte(at, 0) != _OPEN:
        return False
    seen = 0
    while True:
        at = _skip_blank(at + 1, end)
        name = at + 1
        value = _skip_name(at, end)
        if value < 0:
            return False
        at = skip_value(value, end)
        if at < 0:
            return False
        colon = value - 1
        while byte(colon, 0) != _COLON:
            colon -= 1
        close = colon - 1
        while byte(close, 0) != _QUOTE:
            close -= 1
        which = _field(state, name, close - name)
        if which == -2:
            return False
        if which >= 0:
            mark = 1 << (which - Text.MODEL)
            if seen & mark != 0:
                return False
            if not _take_field(state, which, value, at):
                return False
            seen |= mark
        at = _skip_blank(at, end)
        if at >= end:
            return False
        if byte(at, 0) == _CLOSE:
            break
        if byte(at, 0) != _COMMA:
            return False
    is_over = _skip_blank(at + 1, end) == end
    return is_over and word(state, State.MODEL_LENGTH) > 0 and word(state, State.PROMPT_LENGTH) > 0
