"""A stream through the data plane without sockets: however its bytes arrive, the client reads the same events."""

import asyncio
import json
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.plan import Fault, Usage
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import EngineConnection, Pools
from hekla.serving.router.proxy.relay import Relay
from hekla.testing.desk import Engine
from hekla.wire.chunks import LAST_CHUNK, OPENINGS, Chunks, chunk
from hekla.wire.raw_heads import AnswerHead, read_request

BOUNDS = Bounds()
ASKED = read_request(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n", BOUNDS)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


class Answer(Relay):
    """One client's answer."""

    def __init__(self, *, leaves_usage_out: bool) -> None:
        super().__init__(Wire())
        self.is_over = False
        self._event_bytes = BOUNDS.event_bytes if leaves_usage_out else 0

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        assert ASKED is not None
        self.prepare(ASKED, head, data, event_bytes=self._event_bytes)
        return True

    def whole(self, head: AnswerHead, data: bytes) -> None:
        raise AssertionError("a stream is never whole at once")

    def began(self) -> None:
        pass

    def said_nothing(self) -> None:
        raise AssertionError("there is an event in every stream")

    def ended(self) -> None:
        self.is_over = True

    def failed(self, fault: Fault, why: str) -> None:
        raise AssertionError(why)

    @property
    def payload(self) -> bytes:
        """What the client reads, out of its chunks."""
        body = b"".join(cast(Wire, self.transport).written).partition(b"\r\n\r\n")[2]
        found: list[bytes] = []
        assert Chunks().feed(body, found) == len(body)
        return b"".join(found)


def event(said: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(said).encode()


def passed(pieces: list[bytes], *, leaves_usage_out: bool) -> Answer:
    engine = EngineConnection(Pools(BOUNDS).of(Engine("e", "127.0.0.1", 1)))
    engine.connection_made(Wire())
    answer = Answer(leaves_usage_out=leaves_usage_out)
    engine.start(answer, b"", b"")
    for piece in pieces:
        engine.data_received(piece)
    assert answer.is_over
    return answer


TEXTS = st.lists(st.text('ab\u00e4"\\ usage\n', max_size=40), min_size=1, max_size=12)


@given(TEXTS, st.lists(st.integers(1, 200), min_size=1, max_size=20), st.booleans(), st.booleans(), st.booleans())
def test_a_stream_is_the_same_however_it_arrives(
    texts: list[str], sizes: list[int], has_usage: bool, leaves_usage_out: bool, is_upper: bool
) -> None:
    events = [event({"choices": [{"text": text}]}) for text in texts]
    told = [event(USAGE)] if has_usage else []
    chunks = [chunk(one) for one in (*events, *told, b"data: [DONE]\n\n")]
    if is_upper:
        chunks = [one.partition(b"\r\n")[0].upper() + b"\r\n" + one.partition(b"\r\n")[2] for one in chunks]
    framed, cut, position = b"".join(chunks) + LAST_CHUNK, [], 0
    while position < len(framed):
        cut.append(framed[position : position + sizes[len(cut) % len(sizes)]])
        position += len(cut[-1])
    as_sent = [HEAD, *chunks[:-1], chunks[-1] + LAST_CHUNK]
    expected = b"".join((*events, *(() if leaves_usage_out else told), b"data: [DONE]\n\n"))
    for pieces in (as_sent, [HEAD, *chunks, LAST_CHUNK], [HEAD, *cut], [HEAD + framed]):
        answer = passed(pieces, leaves_usage_out=leaves_usage_out)
        assert answer.payload == expected
        assert answer.usage() == (Usage(7, 3) if has_usage else None)
    assert passed(as_sent, leaves_usage_out=leaves_usage_out).events == len(events) + len(told) + 1


@given(st.binary(min_size=1, max_size=5000), st.booleans())
def test_a_whole_chunk_begins_as_its_length_says_and_nothing_else_does(payload: bytes, is_upper: bool) -> None:
    framed = (b"%X\r\n%b\r\n" if is_upper else b"%x\r\n%b\r\n") % (len(payload), payload)
    assert framed.startswith(OPENINGS[len(framed)])
    assert not (framed + b"0").startswith(OPENINGS[len(framed) + 1]) or OPENINGS[len(framed)] == ()
    assert not LAST_CHUNK.startswith(OPENINGS[len(LAST_CHUNK)])
