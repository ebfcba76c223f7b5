"""A model that was scaled to nothing: its requests are held, it is woken, and whoever waits too long or too many is told."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from hekla.api.foreign import InferencePool
from hekla.api.kthena import AutoscalingPolicy, ModelServing, labels
from hekla.kube.errors import NotFoundError
from hekla.serving.router import holding as holding_module
from hekla.serving.router.holding import HOLD_S, LOOK_S, Holding
from hekla.serving.router.patience import RESTART_S
from hekla.serving.router.plan import Refusal, Waiting
from hekla.serving.router.waking import AGAIN_S, KEEP_S, Waking
from serving.router.worldkit import director, plan_of, pod, question, route, server, to


def serving(name="llama", replicas=0, pod_labels=None, namespace="ml"):
    role = {"name": "leader", "entryTemplate": {"metadata": {"labels": pod_labels or {"app": "llama"}}, "spec": {}}}
    spec = {"replicas": replicas, "template": {"roles": [role]}}
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, ModelServing)


def policy(name="llama", least=0, namespace="ml"):
    target = {"target": {"targetRef": {"kind": "ModelServing", "name": name}}, "minReplicas": least, "maxReplicas": 4}
    document = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"metrics": [], "homogeneousTarget": target},
    }
    return msgspec.convert(document, AutoscalingPolicy)


class Door:
    """A desk whose world holds requests."""

    def __init__(self, *, servings=None, policies=None):
        self.now, self.version = 0.0, 0
        self.desk = director(route("r", to("llama"), model="m"), server("llama"))
        self.servings = [serving()] if servings is None else servings
        self.holding = Holding(
            lambda: self.servings, lambda: [policy()] if policies is None else policies, lambda: self.now,
            version=lambda: self.version,
        )  # fmt: skip
        world = self.desk.world
        world.on_empty = self.holding.hold
        world.on_join = lambda backend, endpoint: self.holding.joined(backend)
        self.told = []

    def ask(self):
        found = self.desk.plan(question("m"), self.now)
        if isinstance(found, Waiting):
            found.when_ready(self.told.append)
        return found


def test_a_request_for_a_sleeping_model_goes_on_when_its_first_engine_is_ready():
    door = Door()
    assert isinstance(door.ask(), Waiting)
    assert door.told == []
    door.desk.world.note(None, pod("a", {"app": "llama"}))
    assert door.told == [None]
    assert plan_of(door.desk, question("m")).next(0.0).target.name == "a"
    assert door.holding.held() == {}


@pytest.mark.parametrize(
    ("servings", "policies"),
    [
        ([], None),
        ([serving(pod_labels={"app": "other"})], None),
        ([serving(namespace="elsewhere")], None),
        (None, []),
        (None, [policy(least=1)]),
        (None, [policy("other")]),
        (None, [policy(namespace="elsewhere")]),
    ],
)
def test_a_model_that_nobody_wakes_is_not_waited_for(servings, policies):
    plan = Door(servings=servings, policies=policies).ask()
    refusal = plan.next(0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 503


def test_of_a_model_that_was_scaled_to_nothing_by_hand_it_is_said_that_nobody_wakes_it():
    door = Door(policies=[])
    said = door.ask().next(0.0).for_operators
    why = "ModelServing ml/llama has 0 replicas, and no AutoscalingPolicy wakes it: scale it up"
    assert said == f"no available pods for model server: ml/llama; {why}"
    door.servings = [serving(replicas=1)]
    assert door.ask().next(0.0).for_operators == "no available pods for model server: ml/llama"


def test_a_model_that_was_scaled_up_again_has_no_0_replicas_though_its_engines_do_not_come():
    door = Door(policies=[])
    assert "has 0 replicas" in door.ask().next(0.0).for_operators
    door.servings = [serving(replicas=1)]
    door.desk.world.note(None, pod("a", {"app": "llama"}, ready=False))
    assert isinstance(door.ask(), Waiting)
    door.now = RESTART_S
    assert door.ask().next(door.now).for_operators == "no available pods for model server: ml/llama"


def test_roles_that_may_have_no_instances_are_woken_too():
    roles = {"leader": {"minReplicas": 0, "maxReplicas": 4}}
    document = {"metadata": {"name": "p", "namespace": "ml"},
                "spec": {"metrics": [], "disaggregatedTarget": {"targetRef": {"name": "llama"}, "roles": roles}}}  # fmt: skip
    door = Door(servings=[serving(replicas=1)], policies=[msgspec.convert(document, AutoscalingPolicy)])
    assert isinstance(door.ask(), Waiting)
    assert [one.metadata.name for one in door.holding.wanted()] == ["llama"]


def test_labels_that_the_controller_adds_count():
    door = Door(servings=[serving(pod_labels={"x": "y"})])
    door.desk = director(
        route("r", to("llama"), model="m"), server("llama", {labels.NAME: "llama", labels.ENTRY: "true"})
    )
    door.desk.world.on_empty = door.holding.hold
    assert isinstance(door.ask(), Waiting)


def test_a_model_that_is_starting_is_waited_for():
    door = Door(servings=[serving(replicas=1)])
    assert isinstance(door.ask(), Waiting)


@pytest.mark.parametrize("gone", ["policy", "serving", "server", "model"])
def test_whose_model_is_deleted_meanwhile_waits_no_longer(gone):
    """Five minutes, it was."""
    policies = [policy()]
    door = Door(policies=policies)
    world = door.desk.world
    door.holding._is_there = lambda backend: backend in world.backends()
    door.ask()
    door.holding.tick()
    assert door.told == []
    if gone in ("policy", "model"):
        policies.clear()
    if gone in ("serving", "model"):
        door.servings.clear()
    if gone in ("server", "model"):
        world.note(server("llama"), None)
    door.now = LOOK_S
    door.holding.tick()
    assert door.told == [None]
    answer = door.ask()
    assert isinstance(answer if isinstance(answer, Refusal) else answer.next(door.now), Refusal)


def test_whose_route_is_deleted_meanwhile_is_told_so_and_the_others_wait_on_no_longer_than_before():
    """A route alone that was deleted kept its requests for five minutes."""
    door = Door()
    world = door.desk.world
    door.holding = Holding(
        lambda: door.servings, lambda: [policy()], lambda: door.now, version=lambda: door.desk.world.version
    )
    world.on_empty = door.holding.hold
    answers = []

    def ask():
        found = door.desk.plan(question("m"), door.now)
        found.when_ready(lambda refusal: answers.append(refusal) if refusal else ask()) if isinstance(
            found, Waiting
        ) else answers.append(found)

    ask()
    door.now = HOLD_S - 1
    world.note(None, route("beside", to("llama"), model="other"))
    door.holding.tick()
    assert answers == []
    assert door.holding.held() == {"ml/llama": 1}
    door.now = HOLD_S
    door.holding.tick()
    assert [one.status for one in answers] == [504]
    ask()
    world.note(route("r", to("llama"), model="m"), None)
    door.now += LOOK_S
    door.holding.tick()
    assert [one.status for one in answers] == [504, 404]
    door.now += LOOK_S
    door.holding.tick()
    assert door.holding.is_empty


def test_a_server_and_a_pool_of_one_name_are_two():
    """They had one place in the router's books: an engine of the pool let go who waited for the server."""
    door = Door()
    door.ask()
    spec = {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}]}
    beside = msgspec.convert({"metadata": {"name": "llama", "namespace": "ml"}, "spec": spec}, InferencePool)
    door.desk.world.note(None, beside)
    of_pool = door.desk.world.inference_pools["ml/llama"]
    assert len({one.name for one in door.desk.world.pools()}) == len(list(door.desk.world.pools()))
    door.holding.joined(of_pool)
    assert door.told == []
    assert door.holding.held() == {"ml/llama": 1}


def test_whose_policy_is_given_a_higher_minimum_meanwhile_stays_held():
    """They were refused within a second, while their engine came."""
    policies = [policy()]
    door = Door(policies=policies)
    door.ask()
    policies[:] = [policy(least=1)]
    door.now = LOOK_S
    door.holding.tick()
    assert door.told == []
    assert isinstance(door.ask(), Waiting)
    door.desk.world.note(None, starting := pod("a", {"app": "llama"}, ready=False))
    door.now = HOLD_S - 1
    door.holding.tick()
    assert door.told == []
    door.desk.world.note(starting, pod("a", {"app": "llama"}))
    assert door.told == [None, None]


def test_who_waits_too_long_is_told():
    door = Door()
    door.ask()
    door.now = HOLD_S - 1
    door.holding.tick()
    assert door.told == []
    door.now = HOLD_S
    door.holding.tick()
    (refusal,) = door.told
    assert (refusal.status, refusal.message) == (504, "no engine of the model became ready within 300 s")
    assert door.holding.wanted() == []


def test_who_waited_for_an_engine_that_found_no_node_is_told_so():
    door = Door()
    door.ask()
    starting = pod("a", {"app": "llama"}, ready=False)
    waiting = msgspec.structs.replace(starting, status=msgspec.structs.replace(starting.status, phase="Pending"))
    door.desk.world.note(None, waiting)
    door.now = HOLD_S
    door.holding.tick()
    assert door.told[-1].message.endswith("within 300 s; its engines wait for room in the cluster")
    door.ask()
    door.desk.world.note(waiting, starting)
    door.now = 2 * HOLD_S
    door.holding.tick()
    assert door.told[-1].message.endswith("within 300 s")


def test_who_leaves_makes_room(monkeypatch):
    monkeypatch.setattr(holding_module, "MOST_HELD", 2)
    door = Door()
    first = door.ask()
    door.ask()
    assert door.ask().status == 503
    first.abandon()
    assert isinstance(door.ask(), Waiting)
    door.desk.world.note(None, pod("a", {"app": "llama"}))
    assert door.told == [None, None]


@pytest.mark.parametrize("is_raised", [False, True])
def test_who_asks_anew_is_looked_at_once_however_many_are_held(monkeypatch, is_raised):
    """A thousand were each looked at for each of the thousand, on the router's loop."""
    looks = []

    class Counted(holding_module._Held):
        __slots__ = ()

        @property
        def is_abandoned(self):
            looks.append(self)
            return super().is_abandoned

    monkeypatch.setattr(holding_module, "_Held", Counted)
    policies = [policy()]
    door = Door(policies=policies)
    again = []
    for _ in range(50):
        door.ask().when_ready(lambda refusal: again.append(door.ask()))
    if is_raised:
        policies[:] = [policy(least=1)]
    looks.clear()
    door.version += 1
    door.holding._ask_anew()
    assert len(again) == 50
    assert all(isinstance(one, Waiting) for one in again)
    assert len(looks) <= 50


def two_models():
    """A desk with two models that are asleep."""
    door = Door(
        servings=[serving(), serving("other", pod_labels={"app": "other"})], policies=[policy(), policy("other")]
    )
    door.desk = director(
        route("r", to("llama"), model="m"), route("s", to("other"), model="n"), server("llama"), server("other")
    )
    world = door.desk.world
    world.on_empty, world.on_join = door.holding.hold, lambda backend, endpoint: door.holding.joined(backend)

    def ask(model, resume):
        found = door.desk.plan(question(model), door.now)
        found.when_ready(resume)
        return found

    return door, ask


@pytest.mark.parametrize("is_by_a_route", [True, False])
def test_who_goes_to_another_model_that_is_full_of_leavers_is_held_and_answered(monkeypatch, is_by_a_route):
    """It was put into a list that the look under way then overwrote with the one of before: nobody ever answered it."""
    monkeypatch.setattr(holding_module, "MOST_HELD", 2)
    door, ask = two_models()
    moved, stays = [], []
    ask("m", lambda refusal: ask("n", moved.append))
    ask("n", stays.append)
    ask("n", stays.append).abandon()
    if is_by_a_route:
        door.version += 1
    else:
        door.holding._is_there = lambda backend: backend.traits.books != "ml/llama"
    door.now = LOOK_S
    door.holding.tick()
    door.desk.world.note(None, pod("a", {"app": "other"}))
    assert (moved, stays) == ([None], [None])


def test_routes_that_change_all_the_time_keep_no_model_from_asking_anew():
    """All the room went to the model that came first."""
    door, ask = two_models()
    again = []
    for _ in range(2 * holding_module.MOST_ASKED):
        ask("m", lambda refusal: ask("m", again.append))
    ask("n", again.append)
    for _ in range(2):
        door.version += 1
        door.now += LOOK_S
        door.holding.tick()
    assert again == [None]


def test_many_who_ask_anew_do_so_a_bounded_number_at_a_look():
    """A change of any route had a thousand held requests planned anew in one turn of the router's loop: 20 ms."""
    door = Door()
    again = []
    most = holding_module.MOST_ASKED
    for _ in range(2 * most + 1):
        door.ask().when_ready(lambda refusal: again.append(door.ask()))
    door.version += 1
    door.now = LOOK_S
    asked = []
    for _ in range(4):
        door.holding.tick()
        asked.append(len(again))
    assert asked == [most, 2 * most, 2 * most + 1, 2 * most + 1]
    assert all(isinstance(one, Waiting) for one in again)
    assert door.holding.held() == {"ml/llama": 2 * most + 1}


class Server:
    """Notes what is written; fails as often as told."""

    def __init__(self, faults=0):
        self.faults = faults
        self.written = []

    async def patch(self, kind, name, patch, namespace):
        if self.faults:
            self.faults -= 1
            raise NotFoundError(404, "NotFound", f"{name} not found")
        self.written.append((kind.__name__, namespace, name, patch["metadata"]["annotations"]))


def test_the_wish_is_written_once_and_again_while_somebody_waits():
    async def story():
        door, server = Door(), Server(faults=1)
        waking = Waking(server, door.holding, now=lambda: door.now, wall=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        await waking.look()
        assert server.written == []
        door.ask()
        for now in (0.0, 0.1, 0.2, AGAIN_S, AGAIN_S + 0.15):
            door.now = now
            await waking.look()
        assert server.written == [("ModelServing", "ml", "llama", {labels.WANTED_AT: "2026-01-01T00:00:00Z"})] * 2
        door.servings = [serving(replicas=1)]
        for now in (AGAIN_S + KEEP_S, AGAIN_S + KEEP_S + 0.2, AGAIN_S + 2 * KEEP_S):
            door.now = now
            await waking.look()
        assert len(server.written) == 3, "while it starts the wish is kept, at a slower pace"

    asyncio.run(story())
