"""Accounts of a known load, and what forks share, in real sandboxes of this node; numbers as in docs/reference/abuse-cases.md."""

import asyncio
import contextlib
import json
import time

import pytest

from hekla.api.agents.node_contract import CheckpointKind, Claim
from hekla.node.runtimes import Limits, Mount
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.testing.conformance.sandboxes import PATIENCE_S, Sandboxes

pytestmark = pytest.mark.slow
WITHIN = 0.02

LOAD = """
import resource, sys, time
def used():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime
print(used(), flush=True)
sys.stdin.readline()
until = used() + 1.5
while used() < until: pass
print(used(), flush=True)
sys.stdin.readline()
kept = bytearray(200 << 20)
kept[::4096] = b"x" * (len(kept) // 4096)
print("kept", flush=True)
sys.stdin.readline()
with open("/tmp/file", "wb") as file: file.write(b"y" * (100 << 20))
del kept
print("written", flush=True)
sys.stdin.readline()
"""

NOISE = """
import os, sys
held = bytearray(100 << 20)
held[::4096] = b"x" * (len(held) // 4096)
with open("/tmp/file", "wb") as file: file.write(bytes(60 << 20))
def write():
    with open("/disk/file", "wb") as file: file.write(bytes(40 << 20))
write()
print("goes on", flush=True)
for _ in range(4):
    if os.fork() == 0:
        while True: pass
while True: write()
"""


def live(tmp_path, story):
    async def told():
        runtime = ZygoteSandboxes(tmp_path / "state of a node", warm=0, preload=())
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            await story(Sandboxes(runtime))
        finally:
            await runtime.close()

    asyncio.run(told())


class Load:
    """A program inside that takes one step when it is told to, and says when that is done."""

    def __init__(self, session):
        self._session = session

    async def step(self):
        await self._session.write(b"\n")
        return await self.said()

    async def said(self):
        said = b""
        async with asyncio.timeout(PATIENCE_S * 4):
            while not said.endswith(b"\n"):
                piece = (await self._session.read())[1]
                assert piece, said
                said += piece
        return said.decode().strip()


@contextlib.asynccontextmanager
async def noise(made, disk):
    """A sandbox that spins, holds memory and files, and floods a disk; it is charged for that."""
    disk.mkdir()
    disk.chmod(0o777)
    key = await made.claimed(
        "noise", limits=Limits(memory_bytes=512 << 20), mounts=(Mount(source=disk, target="/disk"),)
    )
    before = await made.runtime.usage(key)
    session = await made.runtime.exec(key, ["python3", "-c", NOISE])
    assert await Load(session).said() == "goes on"
    yield
    used = await made.runtime.usage(key)
    assert used.cpu_us > before.cpu_us
    assert used.memory_bytes - before.memory_bytes > 160 << 20
    assert used.storage_bytes - before.storage_bytes == pytest.approx(60 << 20, rel=WITHIN)
    if not made.runtime.groups.is_v2:  # there it is charged as it reaches the disk
        assert used.written_bytes - before.written_bytes >= 40 << 20
    await made.runtime.stop(key, grace_s=0)
    await session.close()


@pytest.mark.parametrize("beside", ["nobody", "noise"])
def test_44_the_account_of_a_known_load_is_right_within_two_percent(tmp_path, beside):
    """And nothing is in it of what somebody else does on the same node."""

    async def story(made):
        key = await made.claimed(limits=Limits(memory_bytes=1 << 30))
        if (await made.runtime.usage(key)).source != "cgroup":
            pytest.skip("without control groups usage is added up over processes, and says so")
        async with noise(made, tmp_path / "disk") if beside == "noise" else contextlib.nullcontext():
            await accounts_of_a_load(made, key)

    live(tmp_path, story)


async def accounts_of_a_load(made, key):
    load = Load(await made.runtime.exec(key, ["python3", "-c", LOAD], has_stdin=True))
    began, before = float(await load.said()), await made.runtime.usage(key)
    ended = float(await load.step())
    after = await made.runtime.usage(key)
    assert (after.cpu_us - before.cpu_us) / 1e6 == pytest.approx(ended - began, rel=WITHIN)

    assert await load.step() == "kept"
    grown = await made.runtime.usage(key)
    assert grown.memory_bytes - after.memory_bytes == pytest.approx(200 << 20, rel=WITHIN)

    assert await load.step() == "written"
    written = await made.runtime.usage(key)
    assert written.storage_bytes - grown.storage_bytes == pytest.approx(100 << 20, rel=WITHIN)
    assert written.memory_byte_s > grown.memory_byte_s
    assert written.written_bytes - before.written_bytes < 1 << 20, "its own files lie in memory"


def test_time_awake_and_frozen_are_counted_apart_within_two_percent(tmp_path):
    async def story(made):
        key = await made.claimed()
        before_first = time.monotonic()
        first, at_first = await made.runtime.usage(key), time.monotonic()
        asked = time.monotonic()
        await made.runtime.freeze(key)
        froze = time.monotonic()
        await asyncio.sleep(1.0)
        before_thaw = time.monotonic()
        await made.runtime.thaw(key)
        thawed = time.monotonic()
        last, at_last = await made.runtime.usage(key), time.monotonic()
        # it stood still for at least the time between the calls, and at most for that with the calls
        counted = last.frozen_s - first.frozen_s
        assert (before_thaw - froze) * (1 - WITHIN) <= counted <= (thawed - asked) * (1 + WITHIN)
        assert thawed - at_first <= last.wall_s - first.wall_s <= at_last - before_first
        assert last.wall_s - last.frozen_s >= first.wall_s - first.frozen_s

    live(tmp_path, story)


DICE = """
import json, os, random, ssl, uuid
print(json.dumps([random.random(), str(uuid.uuid4()), os.urandom(8).hex(), ssl.RAND_bytes(8).hex(), random.SystemRandom().random()]))
"""
STATE = """
import fcntl, random, socket, threading, time
began_wall, began = time.time(), time.monotonic()
listening = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listening.getsockname())
locked = open("/tmp/lock", "w"); fcntl.flock(locked, fcntl.LOCK_EX)
timer = threading.Timer(0.01, lambda: open("/tmp/fired", "a").write("x")); timer.start(); timer.join()
random.random()
"""


async def cell(made, key, code):
    status, body = await made.ask(key, "/execute", {"code": code})
    assert status == 200, body
    told = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
    assert not [one for one in told if one["type"] == "error"], told
    return "".join(one["text"] for one in told if one["type"] == "stdout")


def test_40_41_forks_have_dice_and_a_clock_of_their_own_and_no_connection_lock_or_timer_twice(tmp_path):
    async def story(made):
        parent = await made.claimed("parent")
        await cell(made, parent, STATE)
        with open(tmp_path / "packed", "w+b") as packed:
            left_out = await made.runtime.pack(parent, CheckpointKind.INTERPRETER, packed.fileno())
            children = [await made.start(f"child-{number}") for number in range(3)]
            for number, child in enumerate(children):
                packed.seek(0)
                await made.runtime.unpack(child, CheckpointKind.INTERPRETER, packed.fileno())
                await made.runtime.claim(child, Claim(session=f"s-{number}"))
        for name in ("listening", "connection", "locked", "timer"):
            assert any(f" {name}: " in one for one in left_out), (name, left_out)
        thrown = [json.loads(await cell(made, one, DICE)) for one in (parent, *children)]
        for column in zip(*thrown, strict=True):
            assert len(set(column)) == 4, column
        for child in children:
            said = await cell(
                made,
                child,
                "import time, fcntl\nprint(time.time() - began_wall >= 0, time.time() - began_wall < 3600, 'connection' in globals())\n"
                "fcntl.flock(open('/tmp/lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB); print(open('/tmp/fired').read())",
            )
            assert said == "True True False\nx\n", "its clock goes on, its lock is free, and the timer fired once"

    live(tmp_path, story)
