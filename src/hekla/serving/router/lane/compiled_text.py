# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""Bytes at addresses, looked at and written: the fast lane's text. Every function is told where its text ends, and reads no byte behind it."""

from numba import njit

from hekla.serving.router.kernel.compiled_words import OPTIONS, word
from hekla.serving.router.lane.compiled_calls import byte, copy, set_byte
from hekla.serving.router.lane.layout import TEXT_BYTES, State


@njit(**OPTIONS)
def text_at(state, which):
    """Where one of `layout.TEXTS` begins."""
    return word(state, State.TEXTS) + which * TEXT_BYTES + 1


@njit(**OPTIONS)
def text_length(state, which):
    """How long it is."""
    return byte(word(state, State.TEXTS), which * TEXT_BYTES)


@njit(**OPTIONS)
def is_same(one, other, count):
    """Whether so many bytes are equal, eight at a time."""
    at = 0
    while at + 8 <= count:
        if word(one + at, 0) != word(other + at, 0):
            return False
        at += 8
    while at < count:
        if byte(one, at) != byte(other, at):
            return False
        at += 1
    return True


@njit(**OPTIONS)
def lower(letter):
    """A letter of ASCII in lower case."""
    return letter + 32 if 65 <= letter <= 90 else letter


@njit(**OPTIONS)
def is_named(state, which, begin, count):
    """Whether a header's name, or its value, is this text in whatever case."""
    if text_length(state, which) != count:
        return False
    text = text_at(state, which)
    for at in range(count):  # noqa: SIM110 - numba knows no generators without its own memory
        if lower(byte(begin, at)) != byte(text, at):
            return False
    return True


@njit(**OPTIONS)
def find(state, which, begin, end):
    """Where a text is found first; -1: nowhere."""
    text, count = text_at(state, which), text_length(state, which)
    first = byte(text, 0)
    at = begin
    while at + count <= end:
        if byte(at, 0) == first and is_same(at, text, count):
            return at
        at += 1
    return -1


@njit(**OPTIONS)
def find_last(state, which, begin, end):
    """Where it is found last; -1: nowhere."""
    text, count = text_at(state, which), text_length(state, which)
    first = byte(text, 0)
    at = end - count
    while at >= begin:
        if byte(at, 0) == first and is_same(at, text, count):
            return at
        at -= 1
    return -1


@njit(**OPTIONS)
def put_text(state, to, which):
    """Write a text; where it ends."""
    count = text_length(state, which)
    copy(to, text_at(state, which), count)
    return to + count


@njit(**OPTIONS)
def put_number(to, number):
    """Write a number of at most 18 digits; where it ends."""
    size = 1
    power = 10
    while power <= number and size < 18:
        size += 1
        power *= 10
    at = size - 1
    while at >= 0:
        set_byte(to, at, 48 + number % 10)
        number //= 10
        at -= 1
    return to + size


@njit(**OPTIONS)
def put_hex(to, number):
    """Write a number in hexadecimal digits; where it ends."""
    size = 1
    while size < 16 and number >> (4 * size) != 0:
        size += 1
    for at in range(size):
        digit = (number >> (4 * (size - 1 - at))) & 15
        set_byte(to, at, digit + 48 if digit < 10 else digit + 87)
    return to + size
