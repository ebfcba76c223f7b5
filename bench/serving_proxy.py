"""What a request costs in the router's process: CPU per chat and per chunk, added latency, memory; beside its peers.

The router runs whole: routes, the default policy over eight engines, limits, metrics and access log. It and its peers
(`proxy_subjects.py`) share one core, a raw upstream and a raw load the other; CPU is what /proc says of each one's
processes. The router has had a thousand prompts before it is measured, so it chooses in machine code and its fast lane is
open. All are up at once and take turns within every round, so that whatever else the machine does hits all alike; a figure
is the median of its rounds, a ratio the median of the rounds' ratios. `--quick --only chunk --only memory` is one piece.
"""

import asyncio
import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from bench.proxy_subjects import (
    HEAD,
    HEKLA,
    SUBJECTS,
    Run,
    Subject,
    chat,
    free_port,
    is_up,
    measured,
    pinned,
    rss_mb,
    running,
)
from bench.report import Report
from hekla.serving.router.kernel.loading import load

SHORT = 120
"""Repetitions of a sentence that make a thousand tokens, 3.5 kB."""


@dataclass(frozen=True)
class Work:
    """One kind of load, the same for all."""

    name: str
    body: bytes
    connections: int = 0
    """0: as many as suit the subject."""
    parts: int = 1
    """Chunks in an answer; the CPU is told for each."""
    wants_latency: bool = False
    least_s: float = 0.0
    """Shorter rounds would see too few answers."""
    is_brief: bool = False
    """Whether `--quick` has it, too: three minutes for the ratios that matter most."""


STREAMED = "20x0"
"""An answer of 20 chunks, as fast as the engine can."""

WORKS = (
    Work("chat of 1k tokens", chat(SHORT), is_brief=True),
    Work("chat of 10k tokens", chat(SHORT * 10)),
    Work("chat of 100k tokens", chat(SHORT * 100)),
    Work("streamed chat of 1k tokens", chat(SHORT, STREAMED)),
    Work("streamed chat of 10k tokens", chat(SHORT * 10, STREAMED)),
    Work("streamed chat of 100k tokens", chat(SHORT * 100, STREAMED)),
    Work("one client, 1k tokens", chat(SHORT), connections=1, wants_latency=True, is_brief=True),
    Work("one client, 10k tokens", chat(SHORT * 10), connections=1, wants_latency=True),
    Work("one client, 100k tokens", chat(SHORT * 100), connections=1, wants_latency=True),
    Work("one client, 1k tokens, streamed", chat(SHORT, STREAMED), connections=1, wants_latency=True),
    Work("one client, 10k tokens, streamed", chat(SHORT * 10, STREAMED), connections=1, wants_latency=True),
    Work("one client, 100k tokens, streamed", chat(SHORT * 100, STREAMED), connections=1, wants_latency=True),
    Work("chunk, 10 ms apart", chat(SHORT, "50x10"), connections=100, parts=51, least_s=3.0, is_brief=True),
    Work("chunk, flat out", chat(SHORT, "200x0"), parts=201, is_brief=True),
)
_SLOWLY = "100000x10000"
"""A chunk each 10 s, so that the slowest router has time for all streams."""

Peer = tuple[Subject, int, int]
"""Who, its port, its process."""


def _turns(work: Work, peers: list[Peer], rounds: int, seconds: float) -> dict[str, list[Run]]:
    """Every subject once a round, one after the other."""
    found: dict[str, list[Run]] = {subject.name: [] for subject, _, _ in peers}
    for turn in range(-1, rounds):
        for subject, port, pid in peers:
            connections = min(work.connections or subject.connections, subject.most_connections)
            run = measured(port, pid, connections, 0.5 if turn < 0 else max(seconds, work.least_s), work.body)
            if turn >= 0:  # the one before the first warms up
                found[subject.name].append(run)
    return found


def _report(report: Report, work: Work, found: dict[str, list[Run]], direct: Run | None) -> None:
    ours = [run.cpu_us for run in found[HEKLA.name]]
    for name, runs in found.items():
        if not all(run.count for run in runs):
            print(f"  {name}: {work.name}: no answer within {work.least_s or 1:g} s")
            continue
        costs = [run.cpu_us / work.parts for run in runs]
        notes = [f"{median(costs):.1f} us each, {min(costs):.1f} to {max(costs):.1f}"]
        if name != HEKLA.name:
            notes.append(f"{median(run.cpu_us / mine for run, mine in zip(runs, ours, strict=True)):.2f}x hekla's")
        if errors := sum(run.errors for run in runs):
            notes.append(f"{errors} errors")
        report.add(f"{name}: {work.name}, per CPU-second", 1e6 / max(median(costs), 1e-9), "/s", note="; ".join(notes))
        if direct is not None:
            added = {
                which: median(getattr(run, which) for run in runs) - getattr(direct, which)
                for which in ("p50_us", "p99_us", "first_p50_us", "first_p99_us")
            }
            note = f"p99 {added['p99_us']:.0f}; to the first piece {added['first_p50_us']:.0f}, p99 {added['first_p99_us']:.0f}"
            report.add(f"{name}: added p50, {work.name}", added["p50_us"], "us", note=note)


def _memory(report: Report, name: str, port: int, pid: int, streams: int) -> None:
    """Streams that stay open: what each costs."""
    body = chat(SHORT, _SLOWLY)
    before, held = rss_mb(pid), []
    try:
        for _ in range(streams):
            one = socket.create_connection(("127.0.0.1", port), 30)
            one.sendall(HEAD % len(body) + body)
            held.append(one)
        for one in held:
            one.settimeout(60)
            one.recv(65_536)
        report.add(f"{name}: memory at {streams:,} streams", rss_mb(pid), "MB", note=f"{before:.0f} MB before")
    except OSError as error:
        print(f"  {name}: memory at {streams:,} streams: it did not answer all of them: {error}")
    finally:
        for one in held:
            one.close()


def _without(report: Report, work: Work, engine: int, engine_pid: int, rounds: int, seconds: float) -> Run:
    """The median of the engine asked by itself, for what a router adds."""
    runs = [measured(engine, engine_pid, 1, seconds, work.body) for _ in range(rounds)]
    report.add(f"no router: p50, {work.name}", median(run.p50_us for run in runs), "us")
    return min(runs, key=lambda run: abs(run.p50_us - median(one.p50_us for one in runs)))


def _compare(report: Report, engine: int, engine_pid: int, stack: ExitStack) -> None:
    seconds, rounds = (1.0, 2) if report.is_quick else (1.5, 5)
    works = [one for one in WORKS if (one.is_brief or report.only or not report.is_quick) and report.wants(one.name)]
    folder = stack.enter_context(report.folder())
    if not works:
        return
    peers: list[Peer] = []
    for subject in SUBJECTS:
        place = stack.enter_context(running(subject, engine, folder))
        if place is not None:
            peers.append((subject, *place))
        else:
            print(f"  {subject.name}: not installed, or it did not come up")
    assert peers, "nothing came up"
    assert peers[0][0] is HEKLA, "the router did not come up"
    measured(*peers[0][1:], 32, 1.5, chat(SHORT))
    for work in works:
        direct = _without(report, work, engine, engine_pid, rounds, seconds) if work.wants_latency else None
        _report(report, work, _turns(work, peers, rounds, seconds), direct)


def _memories(report: Report, engine: int) -> None:
    """Each router by itself, after the same load."""
    for subject in SUBJECTS:
        name = subject.name
        if not report.wants(f"memory of {name}") or (report.is_quick and not report.only and subject is not HEKLA):
            continue
        with report.folder() as folder, running(subject, engine, folder) as place:
            if place is None:
                print(f"  {name}: not installed, or it did not come up")
                continue
            report.add(f"{name}: memory before any load", rss_mb(place[1]), "MB")
            measured(*place, min(32, subject.most_connections), 1.5, chat(SHORT))
            for streams in (1_000,) if report.is_quick and not report.only else (1_000, 5_000):
                if streams <= subject.most_streams:
                    _memory(report, name, *place, streams)


def run(report: Report) -> None:
    """What a request costs in the router, beside haproxy, sglang-router, vllm-router and LiteLLM."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(load(niceness=0))  # compiled before, as on any machine that has run a router
    engine = free_port()
    process = pinned(0, [sys.executable, "-m", "bench.proxy_subjects", "upstream", str(engine)])
    try:
        assert is_up(engine, process, 30.0), "the upstream did not come up"
        with ExitStack() as stack:
            _compare(report, engine, process.pid, stack)
        _memories(report, engine)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
