import asyncio
import contextlib
import json
import ssl
import urllib.request

import pytest
from cryptography import x509

from hekla.wire import tls
from hekla.wire.client import HttpClient
from hekla.wire.errors import ConnectFailedError, ConnectionLostError
from hekla.wire.limits import Limits
from hekla.wire.messages import Request, Response
from wire.certificates import Authority
from wire.wirekit import serving, until


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def whoami(request: Request) -> Response:
    der = request.peer.certificate
    name = x509.load_der_x509_certificate(der).subject.rfc4514_string() if der else "nobody"
    return Response(200, json.dumps({"name": name, "size": len(request.body)}).encode())


def test_a_client_certificate_reaches_the_handler(authority):
    async def run():
        context = tls.server_context(*authority.issue("server"), authority.file)
        crt, key = authority.issue("anna")
        async with serving(whoami, ssl_context=context) as server:
            url = f"https://127.0.0.1:{server.port}/"
            anna = tls.client_context(ca_data=authority.file.read_bytes(), cert_file=crt, key_file=key)
            async with HttpClient(ssl_context=anna) as client:
                for _ in range(2):
                    response = await client.request("POST", url, body=b"x" * 1_000_000)
                    assert json.loads(response.body) == {"name": "CN=anna", "size": 1_000_000}
                assert server.connections == 1
            async with HttpClient(ssl_context=tls.client_context(ca_file=authority.file)) as client:
                assert json.loads((await client.request("GET", url)).body)["name"] == "nobody"

    asyncio.run(run())


def test_a_flood_of_connections_that_say_no_word_of_tls_is_closed_like_any_other(authority):
    """They were nobody's until the handshake's end, so that no bound counted them: all files of the platform could be theirs."""

    async def run():
        context = tls.server_context(*authority.issue("server"), None)
        async with serving(whoami, ssl_context=context, limits=Limits(connections=4)) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]

            async def is_closed(reader):
                with contextlib.suppress(ConnectionResetError):
                    return await reader.read() == b""
                return True

            closed = await asyncio.gather(*(is_closed(reader) for reader, _ in silent[21:]))
            assert all(closed)
            assert len(server._listener._entering) == 21, "the others still have their time to agree"
            for _, writer in silent:
                writer.close()
            async with HttpClient(ssl_context=tls.client_context(ca_file=authority.file)) as client:
                await until(lambda: not server._listener._entering)
                assert (await client.request("GET", f"https://127.0.0.1:{server.port}/")).status == 200

    asyncio.run(run())


def test_a_certificate_of_another_authority_is_refused_on_both_sides(authority, tmp_path):
    async def run():
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other")
        context = tls.server_context(*authority.issue("server"), authority.file)
        crt, key = other.issue("mallory")
        async with serving(whoami, ssl_context=context) as server:
            url = f"https://127.0.0.1:{server.port}/"
            mallory = tls.client_context(ca_file=authority.file, cert_file=crt, key_file=key)
            async with HttpClient(ssl_context=mallory) as client:
                with pytest.raises((ConnectFailedError, ConnectionLostError)):
                    await client.request("GET", url)
            async with HttpClient(ssl_context=tls.client_context(ca_file=other.file)) as client:
                with pytest.raises(ConnectFailedError, match="TLS"):
                    await client.request("GET", url)
            async with HttpClient(ssl_context=tls.client_context(insecure=True)) as client:
                assert (await client.request("GET", url)).status == 200

    asyncio.run(run())


def test_plain_http_on_a_tls_port_is_dropped_and_leaks_nothing(authority):
    async def run():
        context = tls.server_context(*authority.issue("server"), None)
        async with serving(whoami, ssl_context=context) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"200" not in await reader.read()
            writer.close()
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_a_slow_reader_of_a_push_over_tls_is_cut(authority):
    async def run():
        sinks, closed = [], asyncio.Event()

        def watch(sink):
            sinks.append(sink)
            sink.on_close(closed.set)

        from hekla.wire.limits import Limits

        context = tls.server_context(*authority.issue("server"), None)
        limits = Limits(push_buffer_bytes=1 << 20)
        async with serving(lambda _: Response(200, watch), ssl_context=context, limits=limits) as server:
            trusting = tls.client_context(ca_file=authority.file)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
            writer.transport.pause_reading()
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: sinks)
            while not closed.is_set():
                sinks[0].write(b"x" * 65536)
                await asyncio.sleep(0)
            writer.transport.abort()

    asyncio.run(run())


def test_pythons_urllib_is_served(authority):
    async def run():
        context = tls.server_context(*authority.issue("server"), None)
        async with serving(whoami, ssl_context=context) as server:

            def ask() -> bytes:
                trusting = ssl.create_default_context(cafile=str(authority.file))
                url = f"https://localhost:{server.port}/"
                with urllib.request.urlopen(url, b"12345", context=trusting) as answer:
                    return answer.read()

            assert json.loads(await asyncio.to_thread(ask))["size"] == 5

    asyncio.run(run())
