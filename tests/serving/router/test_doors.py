"""What stands before the desk, as one: routes' limits follow the routes, lines follow the engines, broken work begins anew."""

import asyncio
import random

import msgspec

from hekla.api.core import Pod
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.edge.shared_buckets import MemoryBuckets
from hekla.serving.router import doors
from hekla.serving.router.authentication import read_api_keys
from hekla.serving.router.doors import Doors, DoorSettings, EngineRoom, lasting
from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.fair_queue import Fairness
from hekla.serving.router.plan import Refusal
from hekla.serving.router.policies.round_robin import RoundRobin
from hekla.serving.router.pool import Pool
from hekla.serving.router.question import Question
from hekla.serving.router.world import World
from hekla.testing import virtual_time


def world_of(*objects):
    fleet = Fleet()
    world = World(fleet, lambda name: Pool(name, fleet, RoundRobin(), random.Random(1).random))
    for one in objects:
        world.note(None, one)
    return world


def route(limit=None):
    spec = {"modelName": "llama", "rules": [{"targetModels": [{"modelServerName": "llama"}]}]}
    return msgspec.convert(
        {"metadata": {"name": "r", "namespace": "ml"}, "spec": {**spec, **({"rateLimit": limit} if limit else {})}},
        ModelRoute,
    )


SERVER = msgspec.convert(
    {
        "metadata": {"name": "llama", "namespace": "ml"},
        "spec": {
            "inferenceEngine": "vLLM",
            "workloadSelector": {"matchLabels": {"app": "llama"}},
            "workloadPort": {"port": 8000},
        },
    },
    ModelServer,
)


def pod(number):
    status = {"phase": "Running", "podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": f"llama-{number}", "namespace": "ml", "labels": {"app": "llama"}, "uid": f"u{number}"}
    return msgspec.convert({"metadata": meta, "spec": {"containers": []}, "status": status}, Pod)


def doors_of(settings, world):
    return Doors(settings, world, now=lambda: 0.0, wall=lambda: 0.0, connect=lambda address: MemoryBuckets(lambda: 0.0))


def ask(**more):
    return Question(path="/v1/x", model="llama", prompt=b"", input_tokens=10, **more)


def first_refusal(doors, question):
    for guard in doors.guards:
        if isinstance(found := guard.admit(question, 0.0), Refusal):
            return found
    return None


def test_without_settings_everybody_is_let_in():
    assert first_refusal(doors_of(DoorSettings(), world_of()), ask()) is None


def test_with_keys_nobody_without_one_is():
    door = doors_of(DoorSettings(api_keys=read_api_keys({"ann": "sk-0123456789abcdef"})), world_of())
    assert first_refusal(door, ask()).status == 401
    question = ask(headers={"authorization": "Bearer sk-0123456789abcdef"})
    assert first_refusal(door, question) is None
    assert question.user == "ann"


def test_limits_follow_the_routes():
    limited = route({"inputTokensPerUnit": 5, "unit": "day"})
    world = world_of(limited)
    door = doors_of(DoorSettings(), world)
    door.look_at_routes()
    assert first_refusal(door, ask()).reason == "input_rate_limit"
    world.note(limited, route())
    door.look_at_routes()
    assert first_refusal(door, ask()) is None


def test_a_budget_in_a_server_is_asked_there():
    async def story():
        limit = {"inputTokensPerUnit": 15, "unit": "day", "global": {"redis": {"address": "redis:6379"}}}
        door = doors_of(DoorSettings(), world_of(route(limit)))
        door.look_at_routes()
        running = asyncio.create_task(door.run())
        answers = []
        for _ in range(2):
            told = asyncio.get_running_loop().create_future()
            door.shared.admit(ask(), 0.0).when_ready(told.set_result)
            answers.append(await told)
        assert answers[0] is None
        assert answers[1].reason == "input_rate_limit"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())


def test_lines_know_how_much_the_engines_can_take():
    world = world_of(route(), SERVER)
    room = EngineRoom(world, 2)
    assert room.knows("llama")
    assert not room.knows("other")
    assert [room.may_start("llama", under_way, 0.0) for under_way in (1, 2)] == [True, False], (
        "the desk may hold so many"
    )
    assert not room.has_engines("llama")
    world.note(None, pod(1))
    world.note(None, pod(2))
    assert room.has_engines("llama")
    assert [room.may_start("llama", under_way, 0.0) for under_way in (3, 4)] == [True, False]
    for one in world.servers["ml/llama"].decode.members:
        one.waiting = 1
    assert not room.may_start("llama", 0, 0.0)


def test_what_goes_to_a_provider_waits_for_no_engine():
    room = EngineRoom(world_of(route()), 2)  # of a ModelServer of that name there is none
    assert room.may_start("llama", 100, 0.0)
    assert room.has_engines("llama")


def test_fairness_puts_a_line_before_the_desk():
    world = world_of(route(), SERVER, pod(1))
    door = doors_of(DoorSettings(fairness=Fairness(max_concurrent=1)), world)
    assert door.lines.admit(ask(user="ann"), 0.0) is None
    assert door.lines.admit(ask(user="bob"), 0.0) is not None


def test_work_that_breaks_begins_anew(monkeypatch):
    monkeypatch.setattr(doors, "log", type("Log", (), {"exception": lambda self, *words, **more: None})())
    begun = []

    async def work():
        begun.append(1)
        raise KeyError("forgotten")

    async def story():
        running = asyncio.create_task(lasting(work, "test"))
        while len(begun) < 3:
            await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())
