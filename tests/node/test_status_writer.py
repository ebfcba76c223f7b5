"""Statuses on their way to the API server: the newest only, and what is soon out of date not at once."""

import asyncio
from typing import Any

import pytest

from hekla.api.agents import names
from hekla.api.core import Pod
from hekla.api.meta import Document, ObjectMeta
from hekla.kube.client import Client
from hekla.kube.errors import KubeError, TransportError
from hekla.node.status_writer import PAUSE_S, SESSION_WAITS_S, WAITING_S, StatusWriter
from hekla.testing import virtual_time

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))


class Server(Client):
    """Notes what is patched, and when; answers once it is let."""

    def __init__(self) -> None:
        self.patches: list[tuple[float, Document]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.problem: KubeError | None = None

    async def patch(self, kind: Any, name: str, patch: Any, namespace: str = "", **_: Any) -> Any:
        self.patches.append((asyncio.get_running_loop().time(), patch["status"]))
        await self.answers.wait()
        if self.problem is not None:
            raise self.problem


@pytest.mark.parametrize(
    ("story", "written"),
    [
        ([(0.0, "Pending")], [(WAITING_S, "Pending")]),
        ([(0.0, "Running")], [(0.0, "Running")]),
        ([(0.0, "Pending"), (0.05, "Running")], [(0.05, "Running")]),
        ([(0.0, "Pending"), (0.5, "Running")], [(WAITING_S, "Pending"), (0.5, "Running")]),
        ([(0.0, "Running"), (1.0, "Succeeded")], [(0.0, "Running"), (1.0, "Succeeded")]),
        ([(0.0, "Running"), (0.001, "Failed")], [(0.0, "Failed")]),
    ],
)
def test_a_pod_that_is_being_started_is_written_when_it_runs_or_after_a_while(
    story: list[tuple[float, str]], written: list[tuple[float, str]]
) -> None:
    async def told() -> None:
        server = Server()
        writer = StatusWriter(server)
        running = asyncio.create_task(writer.run())
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, phase in story:
            loop.call_at(began + at, writer.put, POD, {"phase": phase})
        await asyncio.sleep(5)
        assert [status["phase"] for _, status in server.patches] == [phase for _, phase in written]
        for (at, _), (expected, _) in zip(server.patches, written, strict=True):
            assert expected <= at - began <= expected + PAUSE_S + 0.01
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(told())


SESSIONS = Pod(metadata=ObjectMeta(name="s", namespace="default", uid="v", labels={names.SESSION_ID: "s-1"}))


@pytest.mark.parametrize(
    ("pod", "phase", "hurried_s", "at"),
    [
        (SESSIONS, "Running", 0.0, 0.0),
        (SESSIONS, "Running", 0.35, 0.4),
        (SESSIONS, "Running", 9.0, SESSION_WAITS_S),
        (SESSIONS, "Failed", 9.0, 0.0),
        (POD, "Running", 9.0, 0.0),
    ],
    ids=["nobody waits", "until nobody waits", "never for long", "an end is told at once", "others' pods do not wait"],
)
def test_a_sessions_pod_tells_that_it_runs_when_nobody_waits_for_a_session(
    pod: Pod, phase: str, hurried_s: float, at: float
) -> None:
    async def told() -> None:
        server, loop = Server(), asyncio.get_running_loop()
        began = loop.time()
        writer = StatusWriter(server, lambda: loop.time() < began + hurried_s)
        running = asyncio.create_task(writer.run())
        writer.put(pod, {"phase": phase})
        await asyncio.sleep(5)
        ((when, status),) = server.patches
        assert status["phase"] == phase
        assert at <= when - began <= at + WAITING_S / 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(told())


def test_whoever_takes_a_pod_apart_does_not_wait_for_what_its_status_waits_for() -> None:
    async def told() -> None:
        server, loop = Server(), asyncio.get_running_loop()
        began = loop.time()
        writer = StatusWriter(server, lambda: True)
        running = asyncio.create_task(writer.run())
        writer.put(SESSIONS, {"phase": "Running"})
        await writer.written("v")
        assert loop.time() - began < WAITING_S
        assert [status["phase"] for _, status in server.patches] == ["Running"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(told())


@pytest.mark.parametrize("is_sent", [False, True], ids=["while it waits", "while it is sent"])
def test_whoever_waits_for_a_pod_that_is_forgotten_goes_on(is_sent: bool) -> None:
    async def told() -> None:
        server = Server()
        server.answers.clear()
        writer = StatusWriter(server)
        running = asyncio.create_task(writer.run())
        writer.put(POD, {"phase": "Running" if is_sent else "Pending"})
        if is_sent:
            await asyncio.sleep(1)
        waiting = asyncio.create_task(writer.written("u"))
        await asyncio.sleep(0)
        writer.forget("u")
        server.answers.set()
        async with asyncio.timeout(1):
            await waiting
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(told())


@pytest.mark.parametrize("problem", [None, TransportError("nobody answers")])
def test_what_is_forgotten_while_it_is_sent_is_neither_kept_nor_tried_again(problem: KubeError | None) -> None:
    async def told() -> None:
        server = Server()
        server.answers.clear()
        server.problem = problem
        writer = StatusWriter(server)
        running = asyncio.create_task(writer.run())
        writer.put(POD, {"phase": "Running"})
        await asyncio.sleep(1)
        writer.forget("u")
        server.answers.set()
        await asyncio.sleep(60)
        assert len(server.patches) == 1
        server.problem = None
        writer.put(POD, {"phase": "Running"})  # a pod of this uid that is there after all is told of as if it were new
        await asyncio.sleep(1)
        assert len(server.patches) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(told())


def test_what_is_told_of_a_pod_that_still_starts_is_put_into_words_once_it_is_sent() -> None:
    async def told() -> None:
        server, written = Server(), []
        writer = StatusWriter(server)
        running = asyncio.create_task(writer.run())

        def words(reason: str) -> Document:
            written.append(reason)
            return {"phase": "Pending", "reason": reason}

        writer.put_pending(POD, lambda: words("made"))
        writer.put_pending(POD, lambda: words("waits"))
        await asyncio.sleep(1)
        assert written == ["waits"]
        writer.put_pending(POD, lambda: words("waits"))
        await asyncio.sleep(1)
        writer.put_pending(POD, lambda: words("starts"))
        writer.put(POD, {"phase": "Running"})
        await asyncio.sleep(1)
        assert written == ["waits", "waits"]
        assert [status for _, status in server.patches] == [
            {"phase": "Pending", "reason": "waits"},
            {"phase": "Running"},
        ]
        running.cancel()

    virtual_time.run(told())
