"""The broker over real sockets: tunnels, plain requests, secrets, names that turn, rules that are tightened while a connection is open."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hekla.api.agents.egress import rules_of
from hekla.api.agents.node_contract import SecretHeader
from hekla.node.egress import broker as brokers
from hekla.node.egress.broker import DECISIONS_AT_ONCE, DECISIONS_PER_S, LONGEST_HEAD, EgressBroker, SecretAwayError
from hekla.node.egress.rules import ALLOWED, judge_address
from hekla.testing import virtual_time

PATIENCE_S = 30.0


@asynccontextmanager
async def server_that(answers):
    """A server on a free port."""
    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo_head(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(head), head))
    await writer.drain()
    writer.close()


async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


async def until_end(reader):
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def here(host, port):
    return ["127.0.0.1"]


@asynccontextmanager
async def broker_with(rules, *, allows_local=True, **more):
    """A broker, and a way to connect to it."""
    verdict = (lambda address: ALLOWED) if allows_local else judge_address
    broker = EgressBroker(
        "box/u1", rules_of(rules), address_verdict=verdict, resolver=more.pop("resolver", here), **more
    )
    listening = socket.create_server(("127.0.0.1", 0))
    await broker.serve(listening)
    port = listening.getsockname()[1]
    try:
        yield broker, lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        await broker.close()


async def asked(connect, data):
    """Everything that comes back."""
    reader, writer = await connect()
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


def test_a_tunnel_to_an_allowed_host_carries_bytes_and_they_are_counted():
    async def story():
        async with server_that(echo) as port, broker_with(f"api.test:{port}") as (broker, connect):
            reader, writer = await connect()
            writer.write(b"CONNECT api.test:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            assert (broker.traffic.sent, broker.traffic.received) == (5, 5)

    asyncio.run(story())


def test_what_is_not_allowed_gets_a_sentence_and_no_connection():
    async def story():
        async with server_that(echo) as port, broker_with("api.test:443") as (broker, connect):
            answer = await asked(connect, b"CONNECT api.test:%d HTTP/1.1\r\n\r\n" % port)
            assert answer.startswith(b"HTTP/1.1 403")
            assert b"its egress rules do not name it" in answer.splitlines()[0]  # clients show no more of it
            assert broker.traffic.refused == {"not-allowed": 1}

    asyncio.run(story())


def test_a_refusal_is_one_line_whatever_was_asked_for():
    async def story():
        async with broker_with("api.test:443") as (_, connect):
            answer = await asked(connect, "CONNECT a\u00e4\x01b:443 HTTP/1.1\r\n\r\n".encode())
            assert answer.splitlines()[1].startswith(b"content-type: ")
            assert all(32 <= sign < 127 for sign in answer.splitlines()[0])

    asyncio.run(story())


@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::ffff:10.0.0.1"]]
)
def test_a_name_that_points_inward_leads_nowhere(addresses):
    async def resolver(host, port):
        return addresses

    async def story():
        async with broker_with("*", allows_local=False, resolver=resolver) as (broker, connect):
            answer = await asked(connect, b"CONNECT rebind.test:443 HTTP/1.1\r\n\r\n")
            assert b"x-hekla-egress: private-address" in answer
            assert broker.traffic.refused == {"private-address": 1}

    asyncio.run(story())


def test_a_name_is_resolved_once_and_its_judged_address_is_used():
    calls = []

    async def resolver(host, port):
        calls.append(host)
        return ["127.0.0.1"] if len(calls) == 1 else ["127.0.0.2"]

    async def story():
        async with (
            server_that(echo_head) as port,
            broker_with(f"once.test:{port}", resolver=resolver) as (_, connect),
        ):
            answer = await asked(connect, b"GET http://once.test:%d/a?b=1 HTTP/1.1\r\nHost: other.test\r\n\r\n" % port)
            assert (
                b"GET /a?b=1 HTTP/1.1\r\nHost: once.test:%d\r\n" % port in answer
            )  # the rule's host, not the header's
            assert calls == ["once.test"]

    asyncio.run(story())


def test_a_connection_is_cut_when_the_rules_no_longer_allow_it():
    async def story():
        async with server_that(echo) as port, broker_with(f"api.test:{port}") as (broker, connect):
            reader, writer = await connect()
            writer.write(b"CONNECT api.test:%d HTTP/1.1\r\n\r\nx" % port)
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1)
            broker.change(rules_of("other.test"))
            async with asyncio.timeout(PATIENCE_S):
                assert await until_end(reader) == b""
            writer.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET https://api.test/ HTTP/1.1\r\n\r\n",
        b"GET http://user:pw@api.test/ HTTP/1.1\r\n\r\n",
        b"GET http://:pw@api.test/ HTTP/1.1\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\nHost:other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nA: b\nHost: other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nA: b\rHost: other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nA: \x00\r\n\r\n",
        b"GET http://api.test/ HTTP/1.9\r\n\r\n",
        b"POST http://api.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"POST http://api.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST http://api.test/ HTTP/1.1\r\nContent-Length : 1\r\n\r\nx",
        b"GET http://api.test/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nHost\xa0: other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nHost\x85: other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nHost other.test\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\n: other.test\r\n\r\n",
        b"G" * 33 + b" http://api.test/ HTTP/1.1\r\n\r\n",
        b"G\xffT http://api.test/ HTTP/1.1\r\n\r\n",
        b"CONNECT api.test HTTP/1.1\r\n\r\n",
        b"CONNECT api.test:\xb2 HTTP/1.1\r\n\r\n",
        b"CONNECT api.test:%b HTTP/1.1\r\n\r\n" % (b"1" * 5000),
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_passed_on(data):
    async def story():
        async with broker_with("*") as (_, connect):
            assert (await asked(connect, data)).startswith(b"HTTP/1.1 400")

    asyncio.run(story())


def certificate_for(name, directory):
    """A certificate that signs itself: contexts of its server and of those that trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = made.public_bytes(serialization.Encoding.PEM)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "server.pem").write_bytes(key.private_bytes(*plain) + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.pem")
    return server, ssl.create_default_context(cadata=pem.decode())


@pytest.mark.parametrize(("name", "is_reached"), [("api.test", True), ("other.test", False)])
def test_a_secret_is_added_outside_over_tls_to_the_server_that_the_certificate_names(tmp_path, name, is_reached):
    served, trusted = certificate_for(name, tmp_path)
    seen = []

    async def keep_head(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def secret_of(header):
        return f"value-of-{header.secret}/{header.key}"

    async def story():
        server = await asyncio.start_server(keep_head, "127.0.0.1", 0, ssl=served)
        port = server.sockets[0].getsockname()[1]
        header = SecretHeader(host="api.test", port=port, secret="keys", key="token", format="Bearer {}")
        rules = f"api.test:80, api.test:{port}"
        async with broker_with(rules, secrets=[header], secret_of=secret_of, tls=trusted) as (_, connect):
            answer = await asked(
                connect, b"GET http://api.test/v1 HTTP/1.1\r\nAuthorization: Bearer placeholder\r\n\r\n"
            )
        server.close()
        return answer

    answer = asyncio.run(story())
    assert (b" 200 " in answer[:20]) == is_reached
    assert b"value-of" not in answer
    assert [b"Authorization: Bearer value-of-keys/token\r\n" in head for head in seen] == ([True] if is_reached else [])
    assert not [head for head in seen if b"placeholder" in head]


@pytest.mark.parametrize(
    ("problem", "sentence", "code"),
    [
        (LookupError("keys"), b'secret "keys" has no key "token"', "no-secret"),
        (SecretAwayError("keys"), b'secret "keys" cannot be read now; try again', "secret-away"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
            b'key "token" of secret "keys" is no text',
            "bad-secret",
        ),
    ],
)
def test_a_secret_that_is_not_there_is_an_error_and_never_silently_left_out(tmp_path, problem, sentence, code):
    """Over TLS, to a server that would have been told: in plain text nothing gets so far that a secret is looked for."""
    served, trusted = certificate_for("api.test", tmp_path)
    seen = []

    async def note(reader, writer):
        seen.append(await reader.read())
        writer.close()

    async def none(header):
        raise problem

    async def story():
        server = await asyncio.start_server(note, "127.0.0.1", 0, ssl=served)
        port = server.sockets[0].getsockname()[1]
        header = SecretHeader(host="api.test", port=port, secret="keys", key="token", format="Bearer {}")
        rules = f"api.test:80, api.test:{port}"
        async with broker_with(rules, secrets=[header], secret_of=none, tls=trusted) as (broker, connect):
            answer = await asked(connect, b"GET http://api.test/ HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 502")
            assert sentence in answer
            assert broker.traffic.refused == {code: 1}
        server.close()

    asyncio.run(story())
    assert not any(seen)


def lines_of(said):
    return [
        {name: value for name, value in one.items() if name != "log_level"} for one in said if one["event"] == "egress"
    ]


def test_the_log_says_what_came_of_a_request_and_where_it_was_for():
    """A request whose secret was missing was a line that it is allowed, then one that something is refused, nobody knew where to."""

    async def none(header):
        raise LookupError("keys")

    async def story():
        async with server_that(echo_head) as port:
            header = SecretHeader(host="api.test", port=port, secret="keys", key="token", format="Bearer {}")
            rules = f"api.test:80, other.test:{port}"
            async with broker_with(rules, secrets=[header], secret_of=none) as (_, connect):
                with structlog.testing.capture_logs() as said:
                    await asked(connect, b"GET http://api.test/ HTTP/1.1\r\n\r\n")
                    await asked(connect, b"GET http://other.test:%d/ HTTP/1.1\r\n\r\n" % port)
                    await asked(connect, b"CONNECT elsewhere.test:443 HTTP/1.1\r\n\r\n")
                    await asked(connect, b"nonsense\r\n\r\n")
                refused = {"event": "egress", "sandbox": "box/u1", "allowed": False}
                missing, passed, unnamed, nonsense = lines_of(said)
                assert missing == {**refused, "host": "api.test", "port": 80, "method": "GET", "reason": "no-secret",
                                   "message": 'secret "keys" has no key "token"'}  # fmt: skip
                assert (passed["host"], passed["allowed"]) == ("other.test", True)
                assert {
                    "host": "elsewhere.test",
                    "port": 443,
                    "method": "CONNECT",
                    "reason": "not-allowed",
                }.items() <= unnamed.items()
                assert nonsense == {**refused, "reason": "bad-request", "message": "this is no request to a proxy"}

    asyncio.run(story())


def test_a_connection_that_is_cut_is_a_line_of_the_log():
    async def story():
        async with server_that(echo) as port, broker_with(f"api.test:{port}") as (broker, connect):
            reader, writer = await connect()
            writer.write(b"CONNECT api.test:%d HTTP/1.1\r\n\r\n" % port)
            await reader.readuntil(b"\r\n\r\n")
            with structlog.testing.capture_logs() as said:
                broker.change(rules_of("other.test"))
                await until_end(reader)
            (line,) = lines_of(said)
            assert (line["host"], line["port"], line["allowed"], line["reason"]) == ("api.test", port, False, "cut")
            writer.close()

    asyncio.run(story())


def test_one_connection_too_many_is_told_so_and_the_log_once(monkeypatch):
    """It was closed without a word, and nobody heard of it."""
    monkeypatch.setattr(brokers, "MOST_CONNECTIONS", 1)

    async def story():
        async with server_that(echo) as port, broker_with(f"api.test:{port}") as (broker, connect):
            reader, writer = await connect()
            writer.write(b"CONNECT api.test:%d HTTP/1.1\r\n\r\n" % port)
            await reader.readuntil(b"\r\n\r\n")
            with structlog.testing.capture_logs() as said:
                for _ in range(3):
                    refused, _ = await connect()
                    answer = await until_end(refused)
                    assert answer.startswith(b"HTTP/1.1 503 1 connections are open; close some\r\n")
            assert [line["reason"] for line in lines_of(said)] == ["too-many"]
            assert broker.traffic.refused == {"too-many": 3}
            writer.close()

    asyncio.run(story())


def test_who_comes_and_goes_at_the_bound_fills_no_log(monkeypatch):
    """Each that got in and said nothing made the next one's refusal a line again, as often as a sandbox could connect."""
    monkeypatch.setattr(brokers, "MOST_CONNECTIONS", 1)

    async def story():
        async with broker_with("api.test") as (broker, connect):
            with structlog.testing.capture_logs() as said:
                for _ in range(20):
                    _, inside = await connect()
                    while not broker._tasks:
                        await asyncio.sleep(0)
                    refused, _ = await connect()
                    assert (await until_end(refused)).startswith(b"HTTP/1.1 503 ")
                    inside.close()
                    while broker._tasks:
                        await asyncio.sleep(0)
            assert [line["reason"] for line in lines_of(said)] == ["too-many"]
            assert broker.traffic.refused == {"too-many": 20}

    asyncio.run(story())


def test_who_asks_without_end_waits_and_each_decision_is_still_a_line():
    """The audit log has no bound: a loop of refused requests filled the host's disk."""

    async def story():
        broker = EgressBroker("box", rules_of("api.test"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(DECISIONS_AT_ONCE):
            await broker._turn()
        assert loop.time() == began
        for _ in range(10 * int(DECISIONS_PER_S)):
            await broker._turn()
        assert loop.time() - began == pytest.approx(10.0)
        await asyncio.sleep(5.0)
        rested = loop.time()
        for _ in range(5 * int(DECISIONS_PER_S)):
            await broker._turn()
        assert loop.time() == pytest.approx(rested)

    virtual_time.run(story())


@pytest.mark.parametrize(
    "data",
    [
        b"X\r\n\r\n",
        b"CONNECT :\r\n\r\n",
        b"GET http://api.test/ HTTP/1.1\r\nHost other.test\r\n\r\n",
        b"GET http://other.test/ HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * (LONGEST_HEAD + 1000),
    ],
)
def test_what_is_no_request_waits_its_turn_as_others_do(tmp_path, monkeypatch, data):
    """Each is a line of the log too: a loop of them wrote a thousand lines a second. A UNIX socket, whose bytes are there at once."""
    monkeypatch.setattr(brokers, "DECISIONS_AT_ONCE", 2)

    async def story():
        broker = EgressBroker("box", rules_of("api.test"))
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "s"))
            listening.listen()
            await broker.serve(listening)
            for _ in range(2 + 10):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                writer.write(data)
                await until_end(reader)
                writer.close()
            assert sum(broker.traffic.refused.values()) == 2 + 10
            assert asyncio.get_running_loop().time() == pytest.approx(10 / DECISIONS_PER_S)
            await broker.close()

    virtual_time.run(story())
