"""The fast lane reads a head as Python reads it, or leaves it to Python: generated heads, plain, odd and hostile, cut at every byte."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.serving.router.house import House
from hekla.serving.router.lane.layout import AnswerKind, State
from hekla.serving.router.lane.ways import Template, Ways
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import Pools
from hekla.testing.desk import PlainDesk
from hekla.wire.raw_heads import (
    AnswerHead,
    Memo,
    RefusedHeadError,
    RequestHead,
    read_answer,
    read_request,
    request_bytes,
)
from serving.router import lanekit

BOUNDS = Bounds()
MORE, WHOLE = 0, 1


class Heads:
    """The code that compares heads with templates, over bytes that end where nobody may read."""

    def __init__(self) -> None:
        from hekla.serving.router.lane.compiled_answer import read_answer
        from hekla.serving.router.lane.compiled_asking import _is_head
        from hekla.serving.router.lane.compiled_rows import template_at

        self._is_head, self._template_at, self._answer = _is_head, template_at, read_answer
        self.slabs = lanekit.GuardedSlabs(BOUNDS, b"0" * 12)

    def template(self, data: bytes, *, hides_credentials: bool) -> Template | None:
        """What the lane keeps of a head, if Python accepts it and it is plain."""
        head = accepted(data)
        if head is None or not head.body_length or head.expects_continue:
            return None
        house = House(PlainDesk({}), Pools(BOUNDS), BOUNDS, clock=lambda: 0.0)
        doorkeeper: Any = object()
        house.doorkeeper = doorkeeper if hides_credentials else None
        return Ways(self.slabs, house, None, None).template(Memo(head, data))  # type: ignore[arg-type]

    def _placed(self, data: bytes) -> int:
        scratch = self.slabs._arrays[State.SCRATCH]
        begin = int(self.slabs.words[State.SCRATCH]) + scratch.nbytes - len(data)
        ctypes.memmove(begin, data, len(data))
        return begin

    def request(self, template: Template, data: bytes) -> tuple[int, int, int]:
        """Whether it is the template's head, where it ends, how long its body is."""
        row = self._template_at(self.slabs.state, template.number)
        what = self._is_head(self.slabs.state, row, self._placed(data), len(data))
        return what, int(self.slabs.words[State.HEAD_END]), int(self.slabs.words[State.BODY_LENGTH])

    def answer(self, data: bytes) -> tuple[int, int, int, int]:
        begin = self._placed(data)
        kind = self._answer(self.slabs.state, begin, begin + len(data))
        words = self.slabs.words
        return kind, int(words[State.STATUS]), int(words[State.HEAD_END]), int(words[State.BODY_LENGTH])


def accepted(data: bytes) -> RequestHead | None:
    try:
        return read_request(data, BOUNDS)
    except RefusedHeadError:
        return None


@pytest.fixture(scope="module")
def heads() -> Heads:
    lanekit.compiled()
    return Heads()


LINES = st.sampled_from(
    [
        b"Host: router", b"host: other", b"Content-Type: application/json", b"Accept: */*", b"X: 1", b"X-A:  b  ", b"x:",
        b"Authorization: Bearer k", b"X-Api-Key: k", b"X-Request-Id: mine", b"Connection: keep-alive", b"Connection: close",
        b"Connection: x-a", b"Keep-Alive: 5", b"TE: trailers", b"Trailer: x", b"Upgrade: h2c", b"Proxy-Connection: close",
        b"Transfer-Encoding: chunked", b"transfer-encoding: gzip, chunked", b"Expect: 100-continue", b"Expect: x", b" folded",
        b"\tfolded: 1", b"no colon", b"space : 1", b": x", b"X: \x00", b"X: a\rb", b"X: a\nb", b"X: \xff",
        b"X: Content-Length: 5", b"X-Content-Length: 7", b"content-length : 5",
    ]
)  # fmt: skip
"""Of a head, whatever may be in it but its length."""
NUMBERS = st.sampled_from(
    [b"10", b"0", b"00", b"010", b"0000000010", b"99999999", b"100000000", b"999999999999999999", b"9" * 19, b"9" * 400, b"",
     b"+5", b"-5", b"5,5", b"5, 5", b"0x5", b"5 5", b"5_0", b"\xb2", b"5\x0b", b"1e3", b"\xd9\xa5"]
) | st.integers(0, 10**9).map(b"%d".__mod__)  # fmt: skip
LENGTHS = st.tuples(
    st.sampled_from([b"Content-Length:", b"content-length:", b"CONTENT-LENGTH:"]), st.sampled_from([b" ", b"", b"\t", b"  "]), NUMBERS,
    st.sampled_from([b"", b"", b"", b" ", b"\t "]),
).map(b"".join)  # fmt: skip
FIRST = st.sampled_from(
    [b"POST /v1/chat/completions HTTP/1.1"] * 6
    + [b"POST /v1/completions HTTP/1.1", b"POST /v1/chat/completions HTTP/1.0", b"POST /v1/chat/completions?x=1 HTTP/1.1",
       b"GET /v1/models HTTP/1.1", b"POST  /v1/chat/completions HTTP/1.1", b"post /v1/chat/completions HTTP/1.1",
       b"POST http://router/v1/chat/completions HTTP/1.1"]
)  # fmt: skip
BODIES = st.sampled_from([b"", b"{}", b'{"model":"m"}', b"5\r\nhello\r\n0\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n"])


def head(first: bytes, before: list[bytes], lengths: list[bytes], behind: list[bytes]) -> bytes:
    return b"\r\n".join([first, *before, *lengths, *behind, b"", b""])


PLAIN = st.builds(
    head,
    st.sampled_from([b"POST /v1/chat/completions HTTP/1.1", b"POST /v1/completions HTTP/1.1"]),
    st.sampled_from([[b"Host: router"], [b"Accept: */*", b"Host: router", b"Authorization: Bearer k"]]),
    st.integers(1, 99_999).map(lambda number: [b"Content-Length: %d" % number]),
    st.sampled_from([[], [b"Content-Type: application/json"], [b"X-Content-Length: 7", b"X: Content-Length: 5"]]),
)
ANY = st.builds(
    head, FIRST, st.lists(LINES, max_size=3).map(lambda lines: [b"Host: router", *lines]), st.lists(LENGTHS, min_size=1, max_size=2), st.lists(LINES, max_size=2)
)  # fmt: skip


def other_length(data: bytes, number: bytes) -> bytes:
    """The same head with something else in the place of its length."""
    before, name, rest = data.partition(b"Content-Length: ")
    return before + name + number + rest.lstrip(b"0123456789")


@st.composite
def asked(draw: Callable[..., Any]) -> tuple[bytes, bytes]:
    """A head that the lane may know, and what comes then: mostly nearly the same."""
    known = draw(PLAIN | ANY)
    how = draw(st.integers(0, 4))
    data = other_length(known, draw(NUMBERS)) if how else draw(ANY)
    if how >= 3:
        at = draw(st.integers(0, len(data)))
        put = draw(
            st.binary(max_size=2) | st.sampled_from([b"\r\n", b"\n", b" ", b"0", b"9", b"\r\nContent-Length: 5"])
        )
        data = data[:at] + put + data[at + draw(st.integers(0, 2)) :]
    return known, data + draw(BODIES)


def held_to_python(heads: Heads, template: Template, data: bytes, *, hides_credentials: bool) -> bool:
    """Whether the lane takes the head; at every byte it waits only where Python waits, and takes only what Python takes."""
    for end in range(1, len(data) + 1):
        what, its_end, length = heads.request(template, data[:end])
        if what == MORE:
            assert read_request(data[:end], BOUNDS) is None
        elif what == WHOLE:
            found = read_request(data[:end], BOUNDS)
            assert found is not None
            assert (found.end, found.body_length) == (its_end, length)
            assert (found.keeps_alive, found.is_chunked, found.expects_continue, found.is_http_1_0) == (True, False, False, False)  # fmt: skip
            onward = template.kept[2] + b"content-length: %d\r\nx-request-id: i\r\n\r\n" % length
            assert onward == request_bytes(found, length, b"i", hides_credentials=hides_credentials)
            return True
    return False


@settings(max_examples=300)
@given(asked(), st.booleans())
def test_a_head_that_the_lane_takes_is_read_so_by_python_at_whichever_byte_it_was_cut(
    heads: Heads, pair: tuple[bytes, bytes], hides_credentials: bool
) -> None:
    known, data = pair
    template = heads.template(known, hides_credentials=hides_credentials)
    if template is not None:
        held_to_python(heads, template, data, hides_credentials=hides_credentials)


@pytest.mark.parametrize(
    ("number", "is_taken"),
    [(b"7", True), (b"0", True), (b"0007", True), (b"99999999", True), (b"100000000", False), (b"9" * 30, False),
     (b"", False), (b"+7", False), (b"7 ", False), (b"7,7", False), (b"7\r\nContent-Length: 7", False)],
)  # fmt: skip
def test_another_length_is_taken_where_it_is_digits(heads: Heads, number: bytes, is_taken: bool) -> None:
    known = head(b"POST /v1/chat/completions HTTP/1.1", [b"Host: router"], [b"Content-Length: 10"], [b"Accept: */*"])
    template = heads.template(known, hides_credentials=False)
    assert template is not None
    data = other_length(known, number) + b"{}"
    assert held_to_python(heads, template, data, hides_credentials=False) is is_taken


# ---- answers of engines


ANSWER_LINES = st.sampled_from(
    [
        b"date: today", b"server: u", b"x-a:  b  ", b"x:", b"content-type: application/json", b"content-type: Text/Event-Stream; x",
        b"content-encoding: gzip", b"connection: close", b"connection: keep-alive", b"keep-alive: 5", b"trailer: x", b"upgrade: h2c",
        b"transfer-encoding: chunked", b"proxy-connection: x", b" folded", b"\tfolded: 1", b"no colon", b"x y: z", b": z", b"x:\x00",
        b"x: a\nb", b"x: a\rb", b"x: \xff", b"x-content-length: 7", b"content-length : 5",
    ]
)  # fmt: skip
STATUSES = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 5
    + [b"HTTP/1.1 404", b"HTTP/1.1 404 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 99 x", b"HTTP/1.1 100 Continue", b"HTTP/1.1 204 No", b"HTTP/1.1 304 x",
       b"HTTP/1.1 200\tx", b"HTTP/1.1  200 OK", b"HTTP/2 200", b"HTTP/1.1 600 x", b"HTTP/1.1 2000 x", b"HTTP/1.1 +20 x", b"http/1.1 200 OK"]
)  # fmt: skip
ANSWERS = st.builds(
    head,
    STATUSES,
    st.lists(ANSWER_LINES, max_size=3),
    st.lists(LENGTHS, max_size=2),
    st.lists(ANSWER_LINES, max_size=2),
)


def as_python(data: bytes) -> AnswerHead | str | None:
    try:
        return read_answer(data, BOUNDS)
    except RefusedHeadError as error:
        return error.sentence


@settings(max_examples=200)
@given(ANSWERS, BODIES, st.integers(0, 400), st.binary(max_size=2))
def test_an_answer_that_the_lane_takes_is_read_so_by_python_at_whichever_byte_it_was_cut(
    heads: Heads, data: bytes, body: bytes, where: int, put: bytes
) -> None:
    at = where % (4 * len(data))  # three of four are left as they are
    data = (data[:at] + put + data[at:] if at < len(data) else data) + body
    for end in range(1, len(data) + 1):
        kind, *found = heads.answer(data[:end])
        if kind == AnswerKind.MORE:
            assert as_python(data[:end]) is None
        elif kind == AnswerKind.WHOLE:
            read = as_python(data[:end])
            assert isinstance(read, AnswerHead)
            assert [read.status, read.end, read.body_length] == found
            assert (read.is_plain, read.keeps_alive, read.is_chunked, read.is_event_stream, read.is_encoded) == (True, True, False, False, False)  # fmt: skip
            return
        else:
            return
