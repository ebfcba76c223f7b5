import contextlib

from hypothesis import given
from hypothesis import strategies as st

from hekla.wire.errors import ProtocolViolationError
from hekla.wire.spdy import SpdyConnection, SpdyLimits
from hekla.wire.sse import EventParser, encode

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.dictionaries(st.text("abc-", min_size=1), st.text("xyz \x7f"), max_size=4)),
        st.tuples(st.just("send"), st.binary(max_size=200)),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("ping"), st.none()),
    ),
    max_size=20,
)


def speak(calls) -> bytes:
    client, last = SpdyConnection(is_client=True), 1
    for what, value in calls:
        match what:
            case "open":
                last = client.open_stream(value)
            case "send":
                client.send(last, value)
            case "end":
                client.send(last, b"", is_last=True)
            case "reset":
                client.reset(last)
            case "ping":
                client.ping()
    return client.take_output()


@given(CALLS, st.lists(st.integers(0, 3000), max_size=8))
def test_any_split_of_spdy_frames_gives_the_same_events(calls, cuts):
    data = speak(calls)
    whole = SpdyConnection().receive(data)
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    server, events = SpdyConnection(), []
    for a, b in zip([0, *at], [*at, len(data)], strict=True):
        events += server.receive(data[a:b])
    assert events == whole


@given(CALLS, st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=9)), max_size=4), st.booleans())
def test_damaged_spdy_is_a_violation_or_understood_and_never_a_crash(calls, damages, windows):
    data = bytearray(speak(calls))
    for at, junk in damages:
        at %= len(data) + 1
        data[at : at + len(junk)] = junk
    server = SpdyConnection(flow_control=windows, limits=SpdyLimits(frame_bytes=100_000, streams=5))
    with contextlib.suppress(ProtocolViolationError):
        server.receive(bytes(data))
    assert server.open_streams <= 5
    assert len(server.take_output()) <= 100 + 20 * len(data)


@given(
    st.lists(
        st.tuples(st.text(max_size=20).filter(lambda t: "\0" not in t), st.sampled_from(["", "a", "b"])), max_size=5
    ),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_split_of_an_event_stream_gives_the_same_events(events, cuts):
    data = b"".join(encode(text, event) for text, event in events)
    whole = EventParser().feed(data)
    assert [event.data for event in whole] == [text.replace("\r\n", "\n").replace("\r", "\n") for text, _ in events]
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    parser, got = EventParser(), []
    for a, b in zip([0, *at], [*at, len(data)], strict=True):
        got += parser.feed(data[a:b])
    assert got == whole
