"""What a sandbox costs on the node: cold, warm, claimed, asleep, forked, idle; beside a plain python3, bubblewrap and runc where they are.

No gateway and no API server: those add their own. `first command` is until its first byte is here. CPU is what the sandbox's group counted.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.report import Report, percentile, run_alone
from hekla.api.agents.node_contract import CheckpointKind, Claim
from hekla.node.runtimes import ContainerKey, ContainerSpec
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.sandbox.daemon.parked import REST_AFTER_S

ROUNDS = 60
CHILDREN = 8
IDLE = 100
HELLO = "print('x')"
BUBBLEWRAP = (
    "bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent",
)  # fmt: skip


class Node:
    """A runtime and the sandboxes on it."""

    def __init__(self, runtime: ZygoteSandboxes) -> None:
        self.runtime = runtime
        self._count = 0

    async def start(self) -> ContainerKey:
        self._count += 1
        key = ContainerKey(f"u{self._count}", "main", 0)
        await self.runtime.start(ContainerSpec(key=key, argv=(), hostname="box"))
        return key

    async def claimed(self) -> ContainerKey:
        key = await self.start()
        await self.runtime.claim(key, Claim(session=key.pod_uid))
        return key

    async def ask(self, key: ContainerKey, path: str, body: object) -> bytes:
        reader, writer = await asyncio.open_connection(sock=await self.runtime.dial(key, 0))
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
        answer = await reader.read()
        writer.close()
        assert b" 200 " in answer[:20], answer
        return answer


async def timed(rounds: int, act: Callable[[], Awaitable[object]]) -> list[float]:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        await act()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def told(report: Report, name: str, taken: list[float], note: str = "") -> None:
    report.add(f"{name}, p50", percentile(taken, 0.5), "ms", note=note)
    report.add(f"{name}, p99", percentile(taken, 0.99), "ms")


async def on_the_node(report: Report, folder: Path, *, warm: int, preload: tuple[str, ...]) -> None:
    kind = f"{'warm' if warm else 'cold'}{', numpy imported' if preload else ''}"
    runtime = ZygoteSandboxes(folder / f"state {kind}", warm=warm, preload=preload)
    await runtime.open(lambda key, end: None)
    if runtime.refusal:
        print(f"  {runtime.refusal}")
        return
    node = Node(runtime)
    try:
        first = await node.claimed()
        await settled(runtime)
        starts, claims, firsts = [], [], []
        for _ in range(report.scaled(ROUNDS)):
            began = time.perf_counter()
            key = await node.start()
            started = time.perf_counter()
            await runtime.claim(key, Claim(session="s"))
            claimed = time.perf_counter()
            await node.ask(key, "/api/execute", {"command": ["/bin/true"]})
            starts.append((started - began) * 1e3)
            claims.append((claimed - started) * 1e3)
            firsts.append((time.perf_counter() - began) * 1e3)
            await runtime.stop(key, grace_s=0)
            await settled(runtime)
        told(report, f"start ({kind})", starts)
        told(report, f"claim ({kind})", claims)
        told(report, f"start, claim, first command ({kind})", firsts)
        if warm:
            await first_cells(report, node)
        if not warm:
            await asleep_and_forked(report, node, first)
    finally:
        await runtime.close()


async def first_cells(report: Report, node: Node) -> None:
    """In sandboxes that have waited for longer than their interpreters need to be ready."""
    cells, used = [], []
    for _ in range(report.scaled(20)):
        await asyncio.sleep(2 * REST_AFTER_S)
        key = await node.claimed()
        used.append((await node.runtime.usage(key)).memory_bytes / 2**20)
        began = time.perf_counter()
        await node.ask(key, "/execute", {"code": "1 + 1"})
        cells.append((time.perf_counter() - began) * 1e3)
        await node.runtime.stop(key, grace_s=0)
        await settled(node.runtime)
    told(report, "first cell of a sandbox that waited", cells)
    report.add("  memory of it before, p50", percentile(used, 0.5), "MiB")


async def asleep_and_forked(report: Report, node: Node, key: ContainerKey) -> None:
    runtime = node.runtime
    await node.ask(key, "/execute", {"code": "x = list(range(100_000))"})
    cell = await timed(report.scaled(ROUNDS), lambda: node.ask(key, "/execute", {"code": "1 + 1"}))
    told(report, "a cell in a running interpreter", cell)
    freezes, thaws = [], []
    for _ in range(report.scaled(ROUNDS)):
        freezes += await timed(1, lambda: runtime.freeze(key))
        thaws += await timed(1, lambda: runtime.thaw(key))
    told(report, "freeze", freezes)
    told(report, "thaw", thaws)
    forks = []
    for _ in range(report.scaled(20)):
        children = [await node.start() for _ in range(CHILDREN)]
        began = time.perf_counter()
        copy = os.memfd_create("fork")
        await runtime.pack(key, CheckpointKind.INTERPRETER, copy)
        await asyncio.gather(*(runtime.claim_as_copy(child, copy, Claim(session=child.pod_uid)) for child in children))
        forks.append((time.perf_counter() - began) * 1e3)
        os.close(copy)
        for child in children:
            await runtime.stop(child, grace_s=0)
    told(report, f"fork 1 to {CHILDREN}, into sandboxes that wait, with an interpreter of 100,000 numbers", forks)
    idle = [await node.start() for _ in range(report.scaled(IDLE))]
    used = [(await runtime.usage(one)).memory_bytes / 2**20 for one in idle]
    report.add("memory of an idle sandbox, p50", percentile(used, 0.5), "MiB", note="charged to its group")
    for one in idle:
        await runtime.stop(one, grace_s=0)


async def settled(runtime: ZygoteSandboxes) -> None:
    """Until the warm ones are made again: what is measured is a start, not the making of the next."""
    while runtime.is_refilling:
        await asyncio.sleep(0.002)


def bundles(folder: Path, python: str) -> dict[str, tuple[str, ...]]:
    """What runc is told: the host's programs, read-only, in all namespaces but the user's, as its own `runc spec` has them."""
    made: dict[str, tuple[str, ...]] = {}
    for name, argv in {"true": ("/usr/bin/true",), "python3": (python, "-c", HELLO)}.items():
        bundle = folder / name
        root = bundle / "rootfs"
        for place in ("usr", "proc", "dev", "sys", "tmp"):
            (root / place).mkdir(parents=True)
        for link in ("bin", "lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        subprocess.run(("runc", "spec"), cwd=bundle, check=True)
        config = json.loads((bundle / "config.json").read_text())
        config["process"] |= {"args": argv, "terminal": False}
        host = {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"]}
        config["mounts"] = [*(one for one in config["mounts"] if one["destination"] != "/sys/fs/cgroup"), host]
        (bundle / "config.json").write_text(json.dumps(config))
        made[f"runc, {name}"] = ("runc", "run", "--bundle", str(bundle), f"hekla-bench-{os.getpid()}")
    return made


def beside(report: Report, folder: Path) -> None:
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    ways = {"plain python3 -c": (python, "-c", HELLO), "plain python3 -I -S -c": (python, "-I", "-S", "-c", HELLO)}
    if shutil.which("bwrap"):
        ways["bubblewrap, all namespaces, true"] = (*BUBBLEWRAP, "/usr/bin/true")
        ways["bubblewrap, all namespaces, python3"] = (*BUBBLEWRAP, python, "-c", HELLO)
    else:
        print("  bubblewrap is not here")
    if shutil.which("runc") and os.geteuid() == 0:
        ways |= bundles(folder, python)
    else:
        print("  runc is not here, or is not ours to run")
    for name, argv in ways.items():
        taken = []
        for _ in range(report.scaled(ROUNDS)):
            began = time.perf_counter()
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            taken.append((time.perf_counter() - began) * 1e3)
        told(report, name, taken)


def run(report: Report) -> None:
    """What a sandbox costs on the node."""
    with report.folder() as folder:
        beside(report, folder / "beside")
        asyncio.run(on_the_node(report, folder, warm=0, preload=()))
        asyncio.run(on_the_node(report, folder, warm=0, preload=("numpy",)))
        asyncio.run(on_the_node(report, folder, warm=4, preload=("numpy",)))


if __name__ == "__main__":
    run_alone("agents_runtime", run)
