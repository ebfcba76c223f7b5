"""What one owner's session is answered, and how fast, while another owner's on the same node does its worst (abuse cases 19 and 44).

A program (`true`) in the quiet session and the gateway's `/health` are asked every 10 ms, whether or not those before were answered, and
timed from the moment at which they were due: what waits behind a slow one counts as slow, and so does what this process is late by, which
shares the machine with the noise. Windows with and without noise alternate; each with noise has a noisy session of its own, begun a
second before and ended after it. Both sessions are of templates that ask for nothing and may hold 512 MiB, unless a noise says otherwise.
The noise's way out cannot be measured on a machine without an outside: what it sends goes to its own client through the gateway, instead.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.agents import Door, doors, key_of, platform
from bench.report import Report, percentile, run_alone
from hekla.testing.platform import PlatformProcess

ROUNDS, WINDOW_S, EVERY_S, SETTLE_S = 4, 2.0, 0.01, 1.0
REST_S = 3.0
"""After noise: thousands of files may still be removed when its session is over."""
SLO_TIMES, SLO_MS = 3.0, 50.0
"""A neighbour's p99 is at most so many times what it is alone, or so many milliseconds, whichever is more."""
QUIET, NOISY = "quiet", "noisy"
OWNER, OTHER = 0, 1
PORT = 8000
TEMPLATES = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates"
TEMPLATE = {"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate"}

SPIN = """
import os
for _ in range(20):
    if os.fork() == 0: break
while True: pass
"""
FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    except OSError: pass
"""
THREADS = """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError: pass
"""
THRASH = """
while True:
    held = None
    held = bytearray(384 << 20)
    held[::4096] = b"x" * (len(held) // 4096)
"""
TOO_MUCH = """
import os
while True:
    if os.fork() == 0:
        held = []
        while True: held.append(b"x" * (16 << 20))
    os.wait()
"""
DIRTY = """
piece = bytes(1 << 20)
while True:
    with open("/disk/large", "wb") as file:
        for _ in range(400): file.write(piece)
"""
SYNCS = """
import itertools, os
for number in itertools.count():
    file = os.open(f"/disk/{number % 100_000}", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"x" * 100)
    os.fsync(file)
    os.close(file)
"""
LOOPBACK = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
piece = bytes(1 << 16)
while True:
    one.sendall(piece)
    left = len(piece)
    while left: left -= len(other.recv(left))
"""
REFUSED = """
import urllib.error, urllib.request
while True:
    try: urllib.request.urlopen("http://not-allowed.invalid/")
    except urllib.error.HTTPError: pass
"""
SENDS = f"""
import socket
listening = socket.create_server(("127.0.0.1", {PORT}))
while True:
    client, _ = listening.accept()
    client.recv(65536)
    try:
        client.sendall(b"HTTP/1.1 200 OK\\r\\nconnection: close\\r\\n\\r\\n")
        while True: client.sendall(bytes(1 << 18))
    except OSError: pass
"""
READS = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(got / (time.monotonic() - began))))
host, port, request, rate = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
one = socket.create_connection((host, port))
one.sendall(request.encode())
assert (piece := one.recv(1 << 20)).startswith(b"HTTP/1.1 200"), piece
began, got = time.monotonic(), 0
while piece := one.recv(1 << 20):
    got += len(piece)
    time.sleep(max(0.0, began + got / rate - time.monotonic()))
"""
"""Reads its answer at a rate in bytes a second at most, and tells at its end what it was."""
GIGABIT = 125e6


@dataclass(frozen=True)
class Noise:
    """What the noisy session does."""

    name: str
    source: str
    reads: float = 0.0
    """Bytes a second that its client takes of it through the gateway; 0: it has none."""
    quiet_asks_milli: int = 0
    """What the neighbour's template asks for, in thousandths of a processor."""


NOISES = (
    Noise("20 spinning processes", SPIN),
    Noise("20 spinning processes, the neighbour asks for 500m", SPIN, quiet_asks_milli=500),
    Noise("a fork bomb", FORKS),
    Noise("a thread bomb", THREADS),
    Noise("384 MiB taken and given back", THRASH),
    Noise("more memory than its limit, killed again and again", TOO_MUCH),
    Noise("gigabytes written to a volume", DIRTY),
    Noise("fsyncs of 100,000 small files in a volume", SYNCS),
    Noise("its own network flooded", LOOPBACK),
    Noise("the egress broker asked without end", REFUSED),
    Noise("1 Gbit/s sent through the gateway", SENDS, reads=GIGABIT),
)


@dataclass
class Answered:
    """Milliseconds from the moment a request was due to the end of its answer."""

    programs: list[float]
    healths: list[float]


async def asked_for(door: Door, session: str, seconds: float, into: Answered) -> None:
    """Requests that keep to their times, whatever becomes of those before; every answer must be a good one."""

    async def program(due: float) -> None:
        await door.command(session, OWNER)
        into.programs.append((time.perf_counter() - due) * 1e3)

    async def health(due: float) -> None:
        await door.health()
        into.healths.append((time.perf_counter() - due) * 1e3)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as asking:
        for number in range(int(seconds / EVERY_S)):
            due = began + number * EVERY_S
            await asyncio.sleep(due - time.perf_counter())
            asking.create_task(program(due))
            asking.create_task(health(due))


async def used(door: Door, session: str, owner: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(await door.ask("GET", f"sessions/{session}/usage", owner=owner))
    return found


@asynccontextmanager
async def noise_of(door: Door, noise: Noise, rates: list[float]) -> AsyncIterator[str]:
    """A noisy session that is at it."""
    session = await door.create(NOISY, OTHER)
    body = {"command": ["python3", "-c", noise.source], "timeout": "600s"}
    at_it = asyncio.create_task(door.ask("POST", f"sessions/{session}/daemon/api/execute", body, owner=OTHER))
    try:
        await asyncio.sleep(SETTLE_S / 2)
        with reader_of(door, session, noise.reads, rates):
            await asyncio.sleep(SETTLE_S / 2)
            yield session
            if at_it.done():
                raise RuntimeError(f"{noise.name}: {at_it.result()!r}")
    finally:
        at_it.cancel()
        with contextlib.suppress(asyncio.CancelledError, RuntimeError):
            await at_it
        await door.end(session, OTHER)


@contextmanager
def reader_of(door: Door, session: str, rate: float, rates: list[float]) -> Iterator[None]:
    """The noisy session's client, a process of its own; the bytes a second that it got are added to `rates`."""
    if not rate:
        yield
        return
    address = urlsplit(door.url)
    request = f"GET {address.path}sessions/{session}/ports/{PORT}/ HTTP/1.1\r\nhost: {address.netloc}\r\nx-api-key: {key_of(OTHER)}\r\n\r\n"
    command = [sys.executable, "-c", READS, str(address.hostname), str(address.port), request, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        try:
            yield
        finally:
            reader.terminate()
            rates.append(float(reader.communicate()[0]))


async def beside(report: Report, door: Door, noise: Noise) -> None:
    """Windows without this noise and with it, in turns."""
    name = QUIET if not noise.quiet_asks_milli else f"{QUIET}-{noise.quiet_asks_milli}"
    alone, together, spent = Answered([], []), Answered([], []), dict.fromkeys(("cpuUs", "writtenBytes"), 0.0)
    rates: list[float] = []
    session = await door.create(name, OWNER)
    await asked_for(door, session, SETTLE_S, Answered([], []))
    for _ in range(report.scaled(ROUNDS)):
        await asked_for(door, session, WINDOW_S, alone)
        async with noise_of(door, noise, rates) as noisy:
            before = await used(door, noisy, OTHER)
            await asked_for(door, session, WINDOW_S, together)
            after = await used(door, noisy, OTHER)
        for key in spent:
            spent[key] += after[key] - before[key]
        await asyncio.sleep(REST_S)
    await door.end(session, OWNER)
    told(report, noise.name, alone, together)
    seconds = report.scaled(ROUNDS) * WINDOW_S
    report.add(f"{noise.name}: it is charged", spent["cpuUs"] / 1e6 / seconds, "cpu-s/s")
    report.add(f"{noise.name}: it is charged", spent["writtenBytes"] / 1e6 / seconds, "MB/s", note="of a disk")
    if rates:
        report.add(f"{noise.name}: its client got", sum(rates) / len(rates) / 1e6, "MB/s")


def told(report: Report, name: str, alone: Answered, together: Answered) -> None:
    for what, before, now in (
        ("a program", alone.programs, together.programs),
        ("/health", alone.healths, together.healths),
    ):
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            quiet, value = percentile(before, share), percentile(now, share)
            is_kept = value <= max(SLO_TIMES * quiet, SLO_MS)
            note = "" if word == "p50" else "kept" if is_kept else "MISSED"
            report.add(f"{name}: {what}, {word}", value, "ms", baseline=quiet, note=note)


def template_of(name: str, asks_milli: int = 0) -> dict[str, Any]:
    """With a volume on the node's disk."""
    resources = {
        "limits": {"memory": "512Mi"}, "requests": {"cpu": f"{asks_milli}m", "memory": "0"},
    }  # fmt: skip
    container = {
        "name": "main", "image": "code-interpreter", "resources": resources,
        "volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": "disk", "emptyDir": {}}]}
    annotations = {"hekla.dev/egress": "allowed.invalid"}
    spec = {"podTemplate": {"metadata": {"annotations": annotations}, "spec": pod}}
    return {**TEMPLATE, "metadata": {"name": name}, "spec": spec}


async def whole(report: Report, process: PlatformProcess) -> None:
    async with doors(process) as door:
        for template in (template_of(QUIET), template_of(f"{QUIET}-500", 500), template_of(NOISY)):
            door.objects("POST", TEMPLATES, template)
        await door.until_quiet()
        for noise in NOISES:
            if report.wants(noise.name):
                await beside(report, door, noise)


def run(report: Report) -> None:
    """A session's answers beside a noisy one of another owner on the same node."""
    with report.folder() as folder, platform(folder, nodes=1) as process:
        uvloop.run(whole(report, process))


if __name__ == "__main__":
    run_alone("agents_neighbours", run)
