"""Freezing without a freezer: it is over when everything stands still, and what does not lets all go on and says so."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from hekla.node.runtimes.sandbox import standstill
from hekla.node.runtimes.sandbox.standstill import send_all, stand_still, stand_still_whole, state_of
from hekla.sandbox.daemon import parked

BUSY = """
import threading
def spin():
    while True: pass
for _ in range(4): threading.Thread(target=spin, daemon=True).start()
print("spins", flush=True)
spin()
"""


@contextlib.contextmanager
def busy():
    """A program of five threads that never rest."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout.readline() == b"spins\n"
            yield program.pid
        finally:
            program.kill()


def states_of(pid):
    return {state_of(f"{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")}


def test_who_is_told_that_all_stand_still_finds_no_thread_that_moves():
    with busy() as first, busy() as second:
        for _ in range(20):
            asyncio.run(stand_still([first, second], "the sandbox"))
            assert states_of(first) | states_of(second) == {"T"}
            send_all([first, second], signal.SIGCONT)


def test_what_has_ended_stands_still():
    with busy() as pid:
        os.kill(pid, signal.SIGKILL)
        asyncio.run(stand_still([pid], "the sandbox"))
    asyncio.run(stand_still([pid, 0], "the sandbox"))


def test_what_cannot_be_stopped_goes_on_and_is_told(monkeypatch):
    """As what waits for a disk: it hears of no signal until it has what it waits for."""
    sent = []
    monkeypatch.setattr(standstill, "stands_still", lambda pid: False)
    monkeypatch.setattr(standstill.os, "kill", lambda pid, number: sent.append((pid, number)))
    with pytest.raises(TimeoutError, match="something in the sandbox waits for the kernel"):
        asyncio.run(stand_still([7], "the sandbox", patience_s=0))
    assert sent == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]


def test_what_is_born_while_the_others_are_stopped_is_stopped_too(monkeypatch):
    """It escaped: who was to be stopped was listed once."""
    sent, born = [], [[7, 8], [7, 8, 9], [7, 8, 9, 10], [7, 8, 9, 10]]
    monkeypatch.setattr(standstill, "stands_still", lambda pid: True)
    monkeypatch.setattr(standstill.os, "kill", lambda pid, number: sent.append((pid, number)))
    asyncio.run(stand_still_whole(lambda: born.pop(0), "the container"))
    assert sent == [(pid, signal.SIGSTOP) for pid in (7, 8, 9, 10)]


def test_where_one_that_was_born_late_cannot_be_stopped_all_go_on(monkeypatch):
    sent, born = [], [[7], [7, 8]]
    monkeypatch.setattr(standstill, "stands_still", lambda pid: pid == 7)
    monkeypatch.setattr(standstill.os, "kill", lambda pid, number: sent.append((pid, number)))
    with pytest.raises(TimeoutError, match="waits for the kernel"):
        asyncio.run(stand_still_whole(lambda: born.pop(0), "the container", patience_s=0))
    assert {pid for pid, number in sent if number == signal.SIGCONT} == {7, 8}


def test_a_freeze_that_is_given_up_lets_all_go_on(monkeypatch):
    """Nobody would know that they stand still, so nobody would let them go on."""
    monkeypatch.setattr(standstill, "stands_still", lambda pid: False)

    async def story(pid):
        freezing = asyncio.create_task(stand_still([pid], "the sandbox"))
        async with asyncio.timeout(60):
            while state_of(pid) != "T":
                await asyncio.sleep(0)
            freezing.cancel()
            await asyncio.gather(freezing, return_exceptions=True)
            while state_of(pid) == "T":
                await asyncio.sleep(0)

    with busy() as pid:
        asyncio.run(story(pid))


class Inside:
    """The daemon's side, with a namespace of processes that stop after so many looks."""

    def __init__(self, monkeypatch, looks):
        self.sent, self._looks = [], looks
        monkeypatch.setattr(parked, "_tell_everybody", self.sent.append)
        monkeypatch.setattr(parked, "_moving", self._is_moving)
        monkeypatch.setattr(parked, "LOOK_EVERY_S", 0)

    def _is_moving(self):
        self._looks -= 1
        return self._looks >= 0

    def halt(self):
        return asyncio.run(parked.Parked._halt(object(), {}, []))


def test_a_daemon_says_that_all_is_stopped_once_it_is_and_not_after_so_many_looks(monkeypatch):
    monkeypatch.setattr(parked, "HALT_PATIENCE_S", float("inf"))
    inside = Inside(monkeypatch, looks=1_000)
    assert inside.halt() == {}
    assert inside.sent == [signal.SIGSTOP] * 1_001, "what was being forked when the others were stopped is stopped too"


def test_a_daemon_that_cannot_stop_all_lets_all_go_on(monkeypatch):
    monkeypatch.setattr(parked, "HALT_PATIENCE_S", 0)
    inside = Inside(monkeypatch, looks=1_000)
    with pytest.raises(parked.RefusedError, match="waits for the kernel"):
        inside.halt()
    assert inside.sent == [signal.SIGSTOP, signal.SIGCONT]
