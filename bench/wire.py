"""What the wire costs: requests per second and CPU per request, server and client apart, plain and over TLS.

The server runs in a child process; the load comes from this one: raw sockets with ready bytes for the server's figure,
`HttpClient` for the client's. CPU is each process's own user and system time, so the two do not hide each other.
"""

import asyncio
import datetime
import ipaddress
import multiprocessing
import resource
import ssl
import tempfile
import time
from pathlib import Path

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.report import Report
from hekla.wire import tls
from hekla.wire.client import HttpClient
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

POD = b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}' + b" " * 3200 + b"}"
GET = b"GET /api/v1/namespaces/default/pods/x HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer token\r\naccept: application/json\r\nuser-agent: bench\r\n\r\n"
CONNECTIONS = 64


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(pipe, folder: str) -> None:
    """Two servers, plain and TLS; tells its CPU time whenever asked."""

    def answer(_: Request) -> Response:
        return Response(200, POD)

    async def run() -> None:
        plain, secure = Server(), Server()
        await plain.start(answer)
        await secure.start(answer, ssl_context=tls.server_context(f"{folder}/server.crt", f"{folder}/server.key", None))
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), lambda: pipe.recv() and pipe.send(cpu_s()))
        pipe.send((plain.port, secure.port))
        await asyncio.Event().wait()

    uvloop.run(run())


class Load(asyncio.Protocol):
    """One raw connection that asks again as soon as it was answered."""

    done = 0
    size = 0

    def connection_made(self, transport) -> None:
        self.transport, self.got = transport, 0
        transport.write(GET)

    def data_received(self, data: bytes) -> None:
        if Load.size == 0:
            Load.size = data.index(b"\r\n\r\n") + 4 + len(POD)
        self.got += len(data)
        if self.got >= Load.size:
            self.got = 0
            Load.done += 1
            self.transport.write(GET)


async def load_server(port: int, context: ssl.SSLContext | None, seconds: float, pipe) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Load, "127.0.0.1", port, ssl=context) for _ in range(CONNECTIONS)]
    await asyncio.sleep(0.3)
    pipe.send(True)
    before, start, cpu = Load.done, time.perf_counter(), pipe.recv()
    await asyncio.sleep(seconds)
    pipe.send(True)
    count, took, used = Load.done - before, time.perf_counter() - start, pipe.recv() - cpu
    for transport, _ in made:
        transport.abort()
    return count / took, used / count * 1e6


async def load_client(url: str, context: ssl.SSLContext | None, seconds: float, body: bytes) -> tuple[float, float]:
    headers = (("authorization", "Bearer token"), ("content-type", "application/json"))
    method = "POST" if body else "GET"
    count, end = 0, 0.0
    async with HttpClient(ssl_context=context) as client:

        async def worker() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await client.request(method, url, headers, body)
                count += 1

        end = time.perf_counter() + 0.3
        await asyncio.gather(*[worker() for _ in range(CONNECTIONS)])
        count, end, cpu, start = 0, time.perf_counter() + seconds, cpu_s(), time.perf_counter()
        await asyncio.gather(*[worker() for _ in range(CONNECTIONS)])
        return count / (time.perf_counter() - start), (cpu_s() - cpu) / count * 1e6


def self_signed(folder: Path) -> None:
    """A P-256 certificate for 127.0.0.1."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def run(report: Report) -> None:
    """GET and POST of a 3.3 kB pod over 64 connections; against the prototype's CPU of specs/performance.md 6.3 and 6.5."""
    seconds = 0.3 if report.is_quick else 3.0
    with tempfile.TemporaryDirectory() as folder:
        self_signed(Path(folder))
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, folder), daemon=True)
        child.start()
        ports = ours.recv()
        try:
            measure(report, ports, tls.client_context(ca_file=f"{folder}/server.crt"), seconds, ours)
        finally:
            child.kill()
            child.join()


def measure(report: Report, ports: tuple[int, int], trusting: ssl.SSLContext, seconds: float, pipe) -> None:
    """All cases."""

    def note(case: str, figures: tuple[float, float], prototype_us: float | None = None) -> None:
        report.add(f"{case}", figures[0], "requests/s")
        report.add(f"{case}: CPU of the side measured", figures[1], "us", baseline=prototype_us)

    for name, port, context in (("plain", ports[0], None), ("TLS", ports[1], trusting)):
        Load.size = 0
        get = uvloop.run(load_server(port, context, seconds, pipe))
        note(f"server, GET, {name}", get, 44.8 if context else 14.6)
        url = f"{'https' if context else 'http'}://127.0.0.1:{port}/x"
        note(f"client, GET, {name}", uvloop.run(load_client(url, context, seconds, b"")))
        note(
            f"client, POST 3.3 kB, {name}",
            uvloop.run(load_client(url, context, seconds, POD)),
            None if context else 43,
        )
