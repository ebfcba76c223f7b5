"""A lone engine that restarts: its requests wait for it, in bounds, and a client that gets nothing is told when to ask again."""

import asyncio
from pathlib import Path

import pytest

from hekla.serving.router.patience import RESTART_S
from hekla.serving.router.plan import Refusal, Waiting
from serving.router import proxykit as kit
from serving.router.test_holding import Door
from serving.router.test_running import READY, Routed, eventually, routed
from serving.router.worldkit import pod

pytestmark = pytest.mark.usefixtures("lane")

UNREADY = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}


def restarting(*, uid="a-1"):
    door = Door(policies=[])
    door.desk.world.note(None, pod("a", {"app": "llama"}, ready=False, uid=uid))
    return door


def engine_is_back(door):
    old = door.desk.world._pods["ml/a"]
    door.desk.world.note(old, pod("a", {"app": "llama"}, uid="a-1", restarts=1))


def engine_goes(door):
    old = door.desk.world._pods["ml/a"]
    door.desk.world.note(old, pod("a", {"app": "llama"}, uid="a-1", restarts=1, ready=False))


def test_a_request_waits_for_the_lone_engine_that_restarts():
    door = restarting()
    assert isinstance(door.ask(), Waiting)
    door.now = RESTART_S - 1
    door.holding.tick()
    assert door.told == []
    engine_is_back(door)
    assert door.told == [None]


def test_half_a_minute_after_the_first_request_met_nobody_all_are_refused_until_an_engine_is_back():
    door = restarting()
    door.ask()
    door.now = RESTART_S
    door.holding.tick()
    (refusal,) = door.told
    assert (refusal.status, refusal.retry_after_s) == (503, 5.0)
    assert isinstance(door.ask().next(door.now), Refusal)
    engine_is_back(door)
    door.now += 4 * RESTART_S
    engine_goes(door)
    assert isinstance(door.ask(), Waiting)


def test_an_engine_that_takes_no_connection_is_tried_again_when_it_has_sat_out():
    door = restarting()
    engine_is_back(door)
    backend = door.desk.world.servers["ml/llama"]
    (engine,) = backend.decode.members
    backend.decode.fault(engine, door.now)
    held = door.holding.hold(backend)
    held.when_ready(door.told.append)
    door.holding.tick()
    assert door.told == []
    door.now = engine.benched_until
    door.holding.tick()
    assert door.told == [None]
    engine.answered(door.now)
    door.holding.tick()
    door.now += 4 * RESTART_S
    assert door.holding.hold(backend).until == door.now + RESTART_S


async def readiness(it: Routed, status):
    path = "/api/v1/namespaces/ml/pods/m-0-pod/status"
    await it.client.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


def test_on_the_wire_a_client_sees_a_late_answer_and_no_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with routed(tmp_path, kit.whole(b'{"id":"1"}')) as it:
            await readiness(it, UNREADY)
            await eventually(lambda: not it.router.fleet.by_name)
            asking = asyncio.create_task(it.ask(kit.chat()))
            await eventually(lambda: bool(it.router.holding.held()))
            assert 'hekla_router_held_requests{pool="ml/m-0"} 1' in it.router.metrics.text(it.router.house).decode()
            await readiness(it, READY)
            assert (await asking).status == 200

    kit.run(story())


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_request_that_was_cut_off_is_tried_once_more_when_the_engine_is_back(tmp_path: Path, deaths: int) -> None:
    """Once: what cuts every engine off may be what kills them."""

    async def story() -> None:
        async with routed(tmp_path, kit.whole(b'{"id":"1"}')) as it:
            (engine,) = it.engines
            answers, left = engine.script, [deaths]

            async def dies(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                if asked.line.startswith("POST") and left[0]:
                    left[0] -= 1
                    writer.close()
                else:
                    await answers(asked, writer)

            engine.script = dies
            answer = await it.ask(kit.chat())
            assert answer.status == (200 if deaths == 1 else 503)
            assert deaths == 1 or answer.headers["retry-after"]

    kit.run(story())
