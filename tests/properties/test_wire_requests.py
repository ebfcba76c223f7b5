import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.wire.errors import RefusedError
from hekla.wire.limits import Limits
from hekla.wire.messages import Peer, Request, Response
from hekla.wire.requests import RequestReader
from hekla.wire.server import Server
from wire.wirekit import Raw, until

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
VALUE = st.text("abcdefghij ,;=/%", max_size=20).map(str.strip)
RESERVED = {"host", "connection", "upgrade", "transfer-encoding", "content-length", "expect", "te", "trailer"}


@st.composite
def request_bytes(draw) -> bytes:
    method = draw(st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]))
    path = "/" + draw(st.text("abc/%20?=&.", max_size=20))
    lines = [f"{method} {path} HTTP/1.1", "host: x"]
    names = draw(st.lists(TOKEN.filter(lambda name: name not in RESERVED), max_size=5, unique=True))
    lines += [f"{name}: {draw(VALUE)}" for name in names]
    if draw(st.booleans()) and method != "GET":
        lines += ["connection: upgrade", "upgrade: h2c"]
    body = draw(st.binary(max_size=60))
    if draw(st.booleans()):
        lines.append("transfer-encoding: chunked")
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
    else:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def read(pieces: list[bytes], limits: Limits | None = None) -> tuple[list[Request], str]:
    taken: list[Request] = []
    reader = RequestReader(limits or Limits(), Peer(), lambda incoming: taken.append(incoming.request), lambda: None)
    try:
        for piece in pieces:
            reader.feed(piece)
            while reader.halted:
                reader.restart()
    except RefusedError as refusal:
        return taken, str(refusal.status)
    return taken, ""


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.lists(request_bytes(), min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_requests(requests, cuts):
    data = b"".join(requests)
    whole = read([data])
    assert len(whole[0]) == len(requests)
    assert read(split(data, cuts)) == whole
    assert read([data[i : i + 1] for i in range(len(data))]) == whole


@given(st.lists(request_bytes(), min_size=1, max_size=2), st.lists(st.integers(0, 5000), max_size=5), st.data())
def test_damaged_bytes_are_refused_or_read_and_the_requests_before_them_are_untouched(requests, cuts, data):
    good = b"".join(requests)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=8)) + good[at + 1 :]
    taken, _ = read(split(bad, cuts))
    before = 0
    while sum(map(len, requests[: before + 1])) <= at and before < len(requests):
        before += 1
    assert taken[:before] == read([good])[0][:before]


@given(st.integers(1, 400), st.integers(1, 70))
def test_an_endless_header_is_refused_within_the_bound(size, piece):
    limits = Limits(header_bytes=200, url_bytes=100)
    endless = b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * (1000 + size)
    assert read(split(endless, list(range(0, len(endless), piece))), limits)[1] == "431"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), request_bytes()), min_size=1, max_size=6), st.booleans())
def test_garbage_never_breaks_the_server_or_leaks_a_connection(pieces, leave_at_once):
    errors = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server = Server()
        await server.start(lambda r: Response(200, r.body), on_error=lambda _, error: errors.append(error))
        peer = await Raw.to(server)
        for piece in pieces:
            if not peer.writer.is_closing():
                peer.writer.write(piece)
        if not leave_at_once:
            await asyncio.sleep(0)
        peer.leave()
        fresh = await Raw.to(server)
        await fresh.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await fresh.answer())[0] == 200
        fresh.leave()
        await until(lambda: server.connections == 0)
        await server.stop()

    asyncio.run(run())
    assert not errors
