"""The API server's store without HTTP: durable writes, fan-out, lists, memory, restart.

The baseline is SQLite alone with one fsync per write, measured beside us: what a store without group commit does.
"""

import asyncio
import contextlib
import gc
import json
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import uvloop

from bench.report import Report, Watch, percentile, resident_bytes
from hekla.apiserver.sqlite_driver import ApswConnection, StandardConnection
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Key, Render, Stored
from hekla.apiserver.watch_hub import WatchHub, WatchRequest

ENV = [{"name": f"VARIABLE_{i}", "value": "x" * 60} for i in range(32)]
SPEC = {"nodeName": "", "containers": [{"name": "main", "image": "trainer:1", "env": ENV}], "pad": "y" * 600}
TAIL = json.dumps({"spec": SPEC, "status": {"phase": "Pending"}})[1:].encode()


def pod_of(name: str) -> tuple[Render, dict[str, str], dict[str, str]]:
    """A pod of 4 kB, as a training job has thousands of."""
    head = b'{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","name":"' + name.encode() + b'"},'
    labels = {"app": "training", "job": name[4:7]}
    fields = {"metadata.name": name, "metadata.namespace": "ml", "spec.nodeName": "", "status.phase": "Pending"}
    return (lambda revision: (head % revision + TAIL, b"")), labels, fields


async def create(store: SqliteStore, number: int) -> Stored:
    name = f"pod-{(number * 7919) % 1_000_003:07}"
    render, labels, fields = pod_of(name)
    return await store.put(Key("pods", "ml", name), render, expected=0, labels=labels, fields=fields)


class NullSink:
    """Takes everything at once."""

    def __init__(self) -> None:
        self.bytes = self.writes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        self.writes += 1

    def close(self) -> None: ...

    def abort(self) -> None: ...

    buffered = 0

    def on_close(self, _callback: object) -> None: ...


def json_event(type: str, stored: Stored, _revision: int) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type.encode(), stored.body)


def run(report: Report) -> None:
    """B6 (in process): the revision log and the watch hub, durable with synchronous=FULL, pods of 4 kB"""
    alone = sqlite_alone(report)
    for driver in (StandardConnection, ApswConnection):
        for clients in (1, 64, 512):
            with report.folder() as folder:
                uvloop.run(writes(report, folder, driver, clients, alone))
    for rate in (2000, 8000):
        with report.folder() as folder:
            uvloop.run(paced(report, folder, rate))
    with report.folder() as folder:
        uvloop.run(fan_out(report, folder))
    with report.folder() as folder:
        uvloop.run(idle_watches(report, folder))
    with report.folder() as folder:
        uvloop.run(fill(folder, report.scaled(100_000)))
        size = sum(path.stat().st_size for path in folder.iterdir())
        report.add("database with 100,000 pods of 4 kB", size / 1e6, "MB")
        for line in reopened(folder):
            report.add(*line)


def sqlite_alone(report: Report) -> float:
    """One insert of 4 kB and one fsync per write, on the standard library."""
    with report.folder() as folder, contextlib.closing(sqlite3.connect(folder / "x.db", isolation_level=None)) as db:
        for sql in (
            "pragma journal_mode=wal",
            "pragma synchronous=full",
            "create table log(rv integer primary key, body)",
        ):
            db.execute(sql)
        count, watch = report.scaled(5000), Watch()
        for number in range(count):
            db.execute("insert into log values(?, ?)", (number, b"x" * 4000))
        rate = count / watch.read().wall_s
    report.add("SQLite alone, one fsync per write", rate, "writes/s")
    return rate


async def writes(report: Report, folder: Path, driver: type, clients: int, alone: float) -> None:
    store = SqliteStore(folder, driver=driver)
    total = report.scaled(3000 if clients == 1 else 60_000)
    taken: list[float] = []

    async def client(first: int) -> None:
        for number in range(first, total, clients):
            start = time.perf_counter()
            await create(store, number)
            taken.append(time.perf_counter() - start)

    watch = Watch()
    await asyncio.gather(*(client(first) for first in range(clients)))
    spent = watch.read()
    name = f"{'apsw' if driver is ApswConnection else 'sqlite3'}, {clients} clients"
    report.add(f"durable creates, {name}", total / spent.wall_s, "puts/s", baseline=alone)
    report.add(f"  per CPU-second, {name}", total / spent.cpu_s, "puts/cpu-s")
    report.add(f"  latency p50, {name}", percentile(taken, 0.5) * 1e3, "ms")
    report.add(f"  latency p99, {name}", percentile(taken, 0.99) * 1e3, "ms")
    await store.close()


async def paced(report: Report, folder: Path, rate: int) -> None:
    """What a write takes when the store is not saturated: the rate at which DESIGN asks for a p99."""
    store, taken = SqliteStore(folder), []
    loop = asyncio.get_running_loop()

    async def one(number: int) -> None:
        start = time.perf_counter()
        await create(store, number)
        taken.append(time.perf_counter() - start)

    begin, tasks = loop.time(), set()
    for number in range(report.scaled(rate * 10)):
        pause_s = begin + number / rate - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        task = asyncio.ensure_future(one(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    report.add(f"at {rate:,} creates/s: latency p50", percentile(taken, 0.5) * 1e3, "ms")
    report.add(f"at {rate:,} creates/s: latency p99", percentile(taken, 0.99) * 1e3, "ms")
    await store.close()


async def fan_out(report: Report, folder: Path) -> None:
    store = SqliteStore(folder)
    hub, sinks = WatchHub(store), [NullSink() for _ in range(1000)]
    for sink in sinks:
        hub.watch(WatchRequest(resource="pods", encode=json_event), sink)
    total, watch = report.scaled(20_000), Watch()
    await asyncio.gather(*(clients_of(store, first, total, 64) for first in range(64)))
    spent = watch.read()
    report.add("fan-out to 1,000 watchers: durable creates", total / spent.wall_s, "puts/s")
    report.add("fan-out to 1,000 watchers: events delivered", total * 1000 / spent.wall_s, "events/s")
    report.add("fan-out to 1,000 watchers: writes to sinks", sinks[0].writes * 1000 / spent.wall_s, "writes/s")
    hub.close()
    selective = [NullSink() for _ in range(1000)]
    for number, sink in enumerate(selective):
        wanted = f"{number:03}"
        hub.watch(
            WatchRequest(resource="pods", encode=json_event, matches=lambda one, w=wanted: one.labels["job"] == w), sink
        )
    total_selected, watch = report.scaled(2000), Watch()
    await asyncio.gather(*(clients_of(store, total + first, total + total_selected, 64) for first in range(64)))
    rate = total_selected * 1000 / watch.read().wall_s
    report.add("1,000 watchers, each with its own selector", rate, "matches/s")
    await store.close()


async def idle_watches(report: Report, folder: Path) -> None:
    store = SqliteStore(folder)
    hub = WatchHub(store)
    tracemalloc.start()
    for number in range(10_000):
        request = WatchRequest(resource="pods", encode=json_event, field=("spec.nodeName", f"node-{number}"))
        hub.watch(request, NullSink())
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    report.add("10,000 idle watches: memory of each, its request and sink included", taken / 10_000 / 1e3, "kB")
    total, watch = report.scaled(20_000), Watch()
    await asyncio.gather(*(clients_of(store, first, total, 64) for first in range(64)))
    report.add("durable creates beside 10,000 idle watches", total / watch.read().wall_s, "puts/s")
    hub.close()
    await store.close()


async def clients_of(store: SqliteStore, first: int, last: int, step: int) -> None:
    for number in range(first, last, step):
        await create(store, number)


async def fill(folder: Path, count: int) -> None:
    store = SqliteStore(folder)
    await asyncio.gather(*(clients_of(store, first, count, 256) for first in range(256)))
    await store.close()


REOPEN = """
import asyncio, sys
from bench.store import measure_open
asyncio.run(measure_open(sys.argv[1]))
"""


def reopened(folder: Path) -> list[tuple[str, float, str]]:
    """In a fresh process, so that memory is what the store alone takes."""
    program = [sys.executable, "-c", REOPEN, str(folder)]
    output = subprocess.run(program, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]).stdout
    return [(name, value, unit) for name, value, unit in json.loads(output)]


async def measure_open(directory: str) -> None:
    gc.collect()
    before, watch = resident_bytes(), Watch()
    store = SqliteStore(directory)
    opened = watch.read()
    grown = resident_bytes() - before
    count = store.count("pods")
    watch = Watch()
    first = store.list("pods")[:50_000]
    ordered = watch.read()
    watch = Watch()
    body = b",".join([stored.body for stored in store.list_durable("pods")[:50_000]])
    joined = watch.read()
    figures = [
        (f"open with {count:,} pods", opened.wall_s, "s"),
        (f"memory for {count:,} pods", grown / 1e6, "MB"),
        ("  of which bodies", sum(len(one.body) for one in store.list("pods")) / 1e6, "MB"),
        (f"list of {len(first):,} pods: first, sorted", ordered.wall_s * 1e3, "ms"),
        (f"list of {len(first):,} pods: joined, {len(body) / 1e6:.0f} MB", joined.wall_s * 1e3, "ms"),
    ]
    print(json.dumps(figures))
    await store.close()
