"""Where the fast lane cannot be had, a router goes on in Python and says why; it never takes the process along."""

import asyncio
import os
import select
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from hekla.serving.router.kernel import keeping, loading
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import lane as lane_module
from hekla.serving.router.lane.compiled_for import why_unknown
from hekla.serving.router.lane.layout import Call
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.test_running import Routed, engine_script

ANSWERS = engine_script(kit.whole())


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


class Altered:
    """The kernel with another lane; everything else is its own."""

    def __init__(self, kernel: Kernel, lane: Any) -> None:
        self._kernel, self.lane = kernel, lane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (("linux", "x86_64", 64, "little"), None),
        (("linux", "aarch64", 64, "little"), None),
        (("darwin", "x86_64", 64, "little"), "it calls Linux, and this is darwin"),
        (("darwin", "arm64", 64, "little"), "it calls Linux, and this is darwin"),
        (("freebsd14", "x86_64", 64, "little"), "it calls Linux, and this is freebsd14"),
        (("linux", "riscv64", 64, "little"), "it knows the processors x86_64 and aarch64, and this is riscv64"),
        (("linux", "aarch64_be", 64, "big"), "it knows the processors x86_64 and aarch64, and this is aarch64_be"),
        (("linux", "x86_64", 32, "little"), "it takes words of 64 bits, little end first, and this Python's have 32, little"),
    ],
)  # fmt: skip
def test_the_lane_is_for_linux_on_two_processors_and_for_nothing_that_is_only_called_like_one(machine, why):
    assert why_unknown(*machine) == why


FOREIGN = """
import pathlib, sys
from hekla.serving.router.kernel.loading import kernel_of
try:
    kernel_of(pathlib.Path(sys.argv[1]).read_bytes())
except ValueError as error:
    print(error)
"""


def foreign(code: bytes) -> bytes:
    """The same object, that says it is for another processor."""
    names, _, whole = code.partition(b"\n\n")
    (processor,) = struct.unpack_from("<H", whole, 18)
    return names + b"\n\n" + whole[:18] + struct.pack("<H", 183 if processor == 62 else 62) + whole[20:]


@pytest.fixture(scope="module")
def code(kernel: Kernel) -> bytes:
    kept = keeping.kept_at()
    found = (kept and keeping.read(kept)) or asyncio.run(loading.compiled_in_child(0))
    if not found.partition(b"\n\n")[2].startswith(b"\x7fELF"):
        pytest.skip("object code has another form here")
    return found


def test_code_for_another_processor_is_refused_before_llvm_ends_the_process(code: bytes, tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(foreign(code))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", FOREIGN, tmp_path / "code"], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "the object code is for another machine\n"), ran.stderr


def test_a_home_shared_with_another_machine_keeps_one_file_for_each(kernel: Kernel, monkeypatch) -> None:
    here = keeping.kept_at()
    monkeypatch.setattr(keeping.platform, "machine", lambda: "another")
    assert keeping.kept_at() != here


def no_epoll() -> Any:
    raise OSError(24, "Too many open files")


def deaf(kernel: Kernel, which: Call, instead: int) -> Any:
    """The lane over a kernel that does not do one thing."""

    def enter(state: int, what: int, *rest: Any) -> int:
        assert kernel.lane is not None
        return instead if what == which else kernel.lane(state, what, *rest)

    return enter


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("not compiled", "it was not compiled"),
        ("no epoll", "[Errno 24] Too many open files"),
        ("cannot watch", "the kernel does not let the code watch a connection"),
        ("hears nothing", "the code does not hear what is said on a connection"),
        ("cannot close", "a connection that the code closed stays open"),
        ("no reader", "NotImplementedError"),
    ],
)
def test_a_lane_that_cannot_be_had_leaves_all_to_python_and_says_why(
    tmp_path: Path, kernel: Kernel, monkeypatch, trouble: str, why: str
) -> None:
    lanes = {
        "not compiled": None,
        "cannot watch": deaf(kernel, Call.ADOPT, -1),
        "hears nothing": deaf(kernel, Call.PUMP, 0),
        "cannot close": deaf(kernel, Call.CUT, 0),
    }

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, ANSWERS, has_lane=False) as it:
            with monkeypatch.context() as patch, structlog.testing.capture_logs() as told:
                if trouble == "no epoll":
                    patch.setattr(lane_module.select, "epoll", no_epoll)
                if trouble == "no reader":
                    patch.setattr(lane_module.Lane, "begin", _no_reader)
                it.router.open_lane(Altered(kernel, lanes.get(trouble, kernel.lane)))  # type: ignore[arg-type]
            assert [(one["event"], one["why"]) for one in told] == [("fast lane stays closed", why)]
            assert it.router.lane is None
            assert it.router.listener.doorway.lane is None
            await answers_and_ends(it)

    asyncio.run(story())


def _no_reader(lane: lane_module.Lane) -> None:
    raise NotImplementedError


async def answers_and_ends(it: Routed) -> None:
    client = await it.connect()
    for _ in range(5):
        assert (await client.ask(kit.chat())).status == 200
    it.router.stop()
    await it.running


def test_what_opened_nothing_leaves_no_descriptor_behind(tmp_path: Path, kernel: Kernel) -> None:
    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, ANSWERS, has_lane=False) as it:
            before = len(os.listdir("/proc/self/fd"))
            for which, instead in ((Call.ADOPT, -1), (Call.PUMP, 0)):
                it.router.open_lane(Altered(kernel, deaf(kernel, which, instead)))  # type: ignore[arg-type]
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(story())


@pytest.mark.parametrize("broken", ["once", "also while it closes"])
def test_a_lane_that_breaks_is_closed_once_and_the_router_goes_on_and_ends(
    tmp_path: Path, kernel: Kernel, monkeypatch, broken: str
) -> None:
    """Its descriptors' numbers are others' after that: closing them again took a stranger's connection."""

    def mistake(*_: Any) -> None:
        raise KeyError("our mistake")

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, ANSWERS) as it:
            await lanekit.entered(it, await it.connect())
            lane = it.router.lane
            assert lane is not None
            monkeypatch.setattr(lane, "_go_on", mistake)
            if broken != "once":
                monkeypatch.setattr(lane, "cut", mistake)
                monkeypatch.setattr(lane, "fold", mistake)
            lane._ready()
            assert it.router.listener.doorway.lane is None
            ends = [select.epoll() for _ in range(8)]  # who comes next gets the numbers
            monkeypatch.undo()
            await answers_and_ends(it)
            assert not any(_is_shut(one.fileno()) for one in ends)
            for one in ends:
                one.close()

    asyncio.run(story())


def test_a_lane_that_breaks_as_time_passes_leaves_everybody_else_their_time(
    tmp_path: Path, kernel: Kernel, monkeypatch
) -> None:
    """Nobody was ever too slow any more: it took the router's clock along."""

    def mistake(*_: Any) -> None:
        raise KeyError("our mistake")

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, ANSWERS) as it:
            await lanekit.entered(it, await it.connect())
            lane, listener = it.router.lane, it.router.listener
            assert lane is not None
            monkeypatch.setattr(lane, "_follow", mistake)
            listener.tick()
            assert listener.doorway.lane is None
            assert listener._ticker is not None
            assert not listener._ticker.cancelled()
            await answers_and_ends(it)

    asyncio.run(story())


def test_a_connection_that_was_about_to_enter_a_lane_that_breaks_goes_on_in_python(
    tmp_path: Path, kernel: Kernel, monkeypatch
) -> None:
    """It was put where nobody listens: into whatever had got the number of the lane's epoll meanwhile."""
    considered, ends = lane_module.Lane.consider, list[select.epoll]()

    def and_break(lane: lane_module.Lane, client: Any) -> None:
        considered(lane, client)
        lane.close()
        ends.extend(select.epoll() for _ in range(8))

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, ANSWERS) as it, asyncio.timeout(kit.PATIENCE_S):
            monkeypatch.setattr(lane_module.Lane, "consider", and_break)
            await answers_and_ends(it)
        assert ends, "it was considered"
        for one in ends:
            one.close()

    asyncio.run(story())


def _is_shut(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
