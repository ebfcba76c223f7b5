"""Memory without control groups: who must go, and that it goes with a sentence."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
import structlog

from hekla.node.runtimes import ContainerKey, ContainerSpec, Limits
from hekla.node.runtimes.sandbox import room
from hekla.node.runtimes.sandbox import runtime as runtime_module
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.room import Held, look_after_s, who_must_go
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.testing import virtual_time

GIB, MIB = 1 << 30, 1 << 20
PATIENCE_S = 60.0

MANY = "import os, time\nfor _ in range(3):\n    if not os.fork():\n        break\nkept = b'x' * (60 << 20)\ntime.sleep(600)"
"""Four processes, each below the limit."""
MEMFD = "import os, time\nfile = os.memfd_create('x')\nfor _ in range(200):\n    os.write(file, bytes(1 << 20))\ntime.sleep(600)"
"""Written and not mapped: no process has it in its memory."""
GUARDED = f"import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{MEMFD}"
"""And the program is not dumpable: its files are seen by whoever owns the namespace in which it began."""


def test_who_is_over_a_limit_goes_and_where_little_is_left_the_largest():
    small, large, limited = Held("a", GIB), Held("b", 3 * GIB), Held("c", 2 * GIB, GIB)
    assert who_must_go(8 * GIB, 16 * GIB, [small, large]) == []
    [(name, why)] = who_must_go(8 * GIB, 16 * GIB, [small, large, limited])
    assert (name, why) == ("c", "it held 2048 MiB of memory, its limit is 1024 MiB")
    [(name, why)] = who_must_go(GIB // 2, 16 * GIB, [small, large])
    assert name == "b"
    assert why.startswith(
        "the machine had 512 MiB of memory left, and of its sandboxes this one held the most, 3072 MiB"
    )
    assert who_must_go(0, 16 * GIB, [Held("d", GIB - 1)]) == ()  # somebody else took it
    assert who_must_go(0, 16 * GIB, []) == ()
    many = [Held(f"s{number}", GIB - 1) for number in range(20)]
    assert [name for name, _ in who_must_go(0, 16 * GIB, many)] == ["s0"], (
        "each alone is small, and together they fill it"
    )


def test_the_less_is_left_the_sooner_it_is_looked_at_again():
    assert look_after_s(12 * GIB, 16 * GIB) == room.LATEST_S
    assert look_after_s(3 * GIB, 16 * GIB) == 0.5
    assert look_after_s(0, 16 * GIB) == room.SOONEST_S


def looked(monkeypatch, free_bytes, held, end, lasts_s):
    """When it looked, while the machine has so much left."""
    times = []

    def seen(cells, *, is_short):
        times.append(asyncio.get_running_loop().time())
        return held()

    async def here(work, *given, **more):
        return work(*given, **more)

    monkeypatch.setattr(room, "_held", seen)
    monkeypatch.setattr(room.asyncio, "to_thread", here)

    async def told():
        cells = [(SimpleNamespace(name="s"), GIB)]
        watching = asyncio.create_task(room.keep_room(lambda: cells, end, free=lambda: (free_bytes, 16 * GIB)))
        await asyncio.sleep(lasts_s)
        assert not watching.done()
        watching.cancel()

    virtual_time.run(told())
    return times


def test_while_others_keep_the_machine_short_it_is_looked_at_less_and_less_often(monkeypatch):
    async def nobody(name, why):
        pytest.fail(name)

    times = looked(monkeypatch, 0, lambda: [Held("s", MIB)], nobody, 60.0)
    assert 20 < len(times) < 45
    assert times[1] - times[0] < 0.1
    assert times[-1] - times[-2] == pytest.approx(room.LATEST_S)


def test_a_round_that_fails_is_not_the_last_one_and_keeps_nobody_else_alive(monkeypatch):
    ended = []

    async def end(name, why):
        ended.append(name)
        raise OSError("the zygote is gone")

    def held():
        if not ended:
            ended.append("nobody")
            raise RuntimeError("a process that cannot be read")
        return [Held("a", 2 * GIB, GIB), Held("b", 2 * GIB, GIB)]

    with structlog.testing.capture_logs() as told:
        looked(monkeypatch, 8 * GIB, held, end, 5.0)
    assert ended == ["nobody", "a", "b", "a", "b"]
    failed = [one["sandbox"] for one in told if one["event"] == "sandbox could not be ended"]
    assert failed == ["a", "b", "a", "b"], "each one is told of, not the first of a round alone"


def live(tmp_path, story):
    async def told():
        ended = asyncio.get_running_loop().create_future()
        runtime = ZygoteSandboxes(tmp_path / "state", warm=0, preload=(), groups=SandboxGroups(why_none="none here"))
        await runtime.open(lambda key, end: ended.set_result(end))
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            await story(runtime, ended)
        finally:
            await runtime.close()

    asyncio.run(told())


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [MANY, MEMFD, GUARDED], ids=["many processes", "a file that nobody mapped", "a guarded one"]
)
def test_a_sandbox_without_a_group_is_held_to_its_limit_as_a_whole(tmp_path, monkeypatch, program):
    monkeypatch.setattr(room, "LATEST_S", 0.05)

    async def story(runtime, ended):
        argv = ("python3", "-c", program)
        key = ContainerKey("u1", "main", 0)
        await runtime.start(ContainerSpec(key=key, argv=argv, hostname="box", limits=Limits(memory_bytes=150 * MIB)))
        async with asyncio.timeout(PATIENCE_S):
            end = await ended
        assert (end.reason, end.code) == ("OOMKilled", 137)
        assert end.message.endswith("its limit is 150 MiB")

    live(tmp_path, story)


@pytest.mark.slow
def test_where_the_machine_has_nothing_left_the_largest_sandbox_is_ended_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime_module, "keep_room", partial(room.keep_room, free=lambda: (1 * MIB, 512 * MIB)))

    async def story(runtime, ended):
        small = ContainerKey("u1", "main", 0)
        await runtime.start(ContainerSpec(key=small, argv=(), hostname="box"))
        program = ("python3", "-c", "import time\nkept = b'x' * (60 << 20)\ntime.sleep(600)")
        await runtime.start(ContainerSpec(key=ContainerKey("u2", "main", 0), argv=program, hostname="box"))
        async with asyncio.timeout(PATIENCE_S):
            end = await ended
        assert end.reason == "OOMKilled"
        assert end.message.startswith(
            "the machine had 1 MiB of memory left, and of its sandboxes this one held the most, "
        )
        assert runtime.has(small)

    live(tmp_path, story)
