"""The parts of the data plane that need no socket: heads, chunks, usage, paths."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.plan import Usage
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import EngineConnection, Pools
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.serving.router.proxy.usage import UsageRemover, asking_for_usage, usage_of
from hekla.serving.router.reception import path_of
from hekla.testing.desk import Engine
from hekla.wire.chunks import Chunks, chunk
from hekla.wire.raw_heads import (
    Memo,
    RefusedHeadError,
    changed_request_bytes,
    read_answer,
    read_request,
    request_bytes,
)

BOUNDS = Bounds()
HEAD = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: r\r\nContent-Length: 10\r\nAuthorization: Bearer k\r\nX-A: 1\r\n\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=20), max_size=6),
    st.sampled_from([b"0\r\n\r\n", b"000\r\na: b\r\n\r\n", b"0;x=y\r\n\r\n"]),
    st.binary(max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=50),
)
def test_chunks_end_where_they_end_however_they_arrive(
    payloads: list[bytes], last: bytes, behind: bytes, sizes: list[int]
) -> None:
    framed = b"".join(map(chunk, payloads)) + last
    data, chunks, found = framed + behind, Chunks(), []
    position, turn = 0, 0
    while True:
        size = sizes[turn % len(sizes)]
        turn += 1
        end = chunks.feed(data[position : position + size], found)
        if end >= 0:
            assert position + end == len(framed)
            break
        position += size
        assert position < len(data)
    assert b"".join(found) == b"".join(payloads)
    assert chunks.size == len(b"".join(payloads))


@given(st.lists(st.sampled_from([b"data: a\n\n", b"data: {\"usage\": null}\n\n", b": x\n\n", b"data: b\r\n\r\n"]), max_size=8), st.integers(1, 30))  # fmt: skip
def test_only_the_event_with_nothing_but_usage_is_left_out(events: list[bytes], size: int) -> None:
    extra = b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n'
    kept = b"".join(events)
    data, remover, out = kept + extra + b"data: [DONE]\n\n", UsageRemover(10_000), b""
    for start in range(0, len(data), size):
        out += remover.feed(data[start : start + size])
    assert out + remover.rest() == kept + b"data: [DONE]\n\n"


def test_an_event_that_is_too_large_to_be_looked_at_goes_on() -> None:
    remover = UsageRemover(100)
    assert remover.feed(b"data: " + b"x" * 200) == b"data: " + b"x" * 200
    assert remover.is_clear


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":7}}', Usage(5, 7, 0)),
        (b'{"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":4}}}', Usage(5, 7, 4)),
        (b'{"usage": {"prompt_tokens": 5, "total_tokens": 5}}', Usage(5, 0, 0)),
        (b'{"usage":null}', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":999}"}', None),
        (b"", None),
    ],
)
def test_usage_is_what_the_engine_says_and_not_what_its_model_writes(tail: bytes, usage: Usage | None) -> None:
    assert usage_of(tail) == usage


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b'{"a":1}', b'{"stream_options":{"include_usage":true},"a":1}'),
        (b' { "a" : 1}', b' { "stream_options":{"include_usage":true},"a" : 1}'),
        (b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":[1]}', b'{"stream_options":[1]}'),
        (b'{"a":"\\"stream_options\\""}', b'{"stream_options":{"include_usage":true},"a":"\\"stream_options\\""}'),
    ],
)
def test_the_wish_for_usage_is_merged(body: bytes, asked: bytes) -> None:
    assert asking_for_usage(body) == asked


def test_a_head_that_comes_again_is_known_again_with_its_own_length() -> None:
    first = read_request(HEAD, BOUNDS)
    assert first is not None
    memo = Memo(first, HEAD)
    again = memo.read(HEAD.replace(b": 10", b": 123456") + b"body")
    assert again is not None
    assert (again.body_length, again.end) == (123_456, len(HEAD) + 4)
    for other in (b"X-A: 2", b"Content-Length: 1\r\nContent-Length: 1", b"Content-Length: -1", b"Transfer-Encoding: chunked"):  # fmt: skip
        assert memo.read(HEAD.replace(b"X-A: 1", other)) is None or b"X-A: 1" in other
    assert memo.read(HEAD.replace(b": 10", b": 1a")) is None
    assert memo.read(HEAD[:-3]) is None


def test_a_head_goes_on_with_its_length_and_an_id() -> None:
    head = read_request(HEAD, BOUNDS)
    assert head is not None
    out = request_bytes(head, 12, b"id-1")
    assert out.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\nHost: r\r\n")
    assert out.endswith(b"content-length: 12\r\nx-request-id: id-1\r\n\r\n")
    assert out.lower().count(b"content-length") == 1


def test_a_stranger_sees_the_headers_that_it_may_see() -> None:
    head = read_request(HEAD, BOUNDS)
    assert head is not None
    out = changed_request_bytes(
        head, 12, b"id-1", method=b"GET", path=b"/z", headers=((b"Host", b"api"), (b"Authorization", b"Bearer own")),
        kept=frozenset({b"accept"}),
    )  # fmt: skip
    assert out.startswith(b"GET /z HTTP/1.1\r\n")
    assert b"Bearer k" not in out
    assert b"X-A" not in out
    assert out.count(b"Host:") == 1
    assert b"Host: api\r\n" in out
    assert b"Authorization: Bearer own\r\n" in out


def test_headers_are_joined_and_named_in_lower_case() -> None:
    headers = RequestHeaders(b"X-A: 1\r\nx-a: 2\r\nB:  c \r\n")
    assert dict(headers) == {"x-a": "1, 2", "b": "c"}
    assert len(headers) == 2


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"/v1/x?y#z", "/v1/x"), (b"http://host:80/v1/x", "/v1/x"), (b"http://host", "/"), (b"*", "/")],
)
def test_a_path_is_what_is_left_of_a_target(target: bytes, path: str) -> None:
    assert path_of(target) == path


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reading_of_heads(data: bytes) -> None:
    for read in (read_request, read_answer):
        with contextlib.suppress(RefusedHeadError):
            read(data, BOUNDS)


class Lagging:
    """A receiver whose client lags at the last piece; and a transport that knows whether it is read."""

    wants_payload = False

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self.reads = True

    def piece(self, data: bytes, payload: object, is_last: bool) -> None:
        if is_last:
            self._connection.pause()

    def answered(self, head: object, data: bytes) -> bool:
        return True

    def steady(self) -> None: ...

    def ended(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def test_a_connection_whose_last_client_lagged_is_read_again_when_it_is_kept() -> None:
    pool = Pools(BOUNDS).of(Engine("e", "127.0.0.1", 1))
    connection = EngineConnection(pool)
    both: Any = Lagging(connection)
    connection.connection_made(both)
    connection.start(both, HEAD, b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
    connection.data_received(b"cd")
    assert pool.idle == [connection]
    assert both.reads
