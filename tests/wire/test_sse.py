import pytest

from hekla.wire.errors import ReplyTooLargeError
from hekla.wire.sse import EventParser, ServerSentEvent, comment, encode


def test_events_come_back_as_they_were_sent():
    wire = encode("a\nb", event="delta", id="7") + comment("beat") + encode("[DONE]")
    assert EventParser().feed(wire) == [
        ServerSentEvent("a\nb", "delta", "7"),
        ServerSentEvent("[DONE]", "message", "7"),
    ]


def test_the_corners_of_the_standard_hold():
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbfdata\ndata:x\ndata:  y\nretry: 30\nunknown: z\n\n") == [
        ServerSentEvent("\nx\n y", retry_ms=30)
    ]
    assert parser.feed(b"event: lonely\n\n: comment\n\ndata: a\r\rdata: b\r\n\r\n") == [
        ServerSentEvent("a"),
        ServerSentEvent("b"),
    ]
    assert parser.feed(b"data: never ended\n") == []


def test_an_event_without_end_is_bounded():
    with pytest.raises(ReplyTooLargeError):
        EventParser(1000).feed(b"data: " + b"x" * 2000)
    parser = EventParser(1000)
    assert all(parser.feed(b"data: 123456789\n") == [] for _ in range(99))
    with pytest.raises(ReplyTooLargeError):
        parser.feed(b"data: 123456789\n" * 2)


def test_an_event_name_cannot_smuggle_lines():
    with pytest.raises(ValueError, match="line breaks"):
        encode("x", event="a\ndata: b")
