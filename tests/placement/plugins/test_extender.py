"""The plug-in extender: what it asks, when it does not, and what becomes of the answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hekla.placement.kernels import SCALE
from hekla.placement.plugins.extender import Address, Answers, Extender, ServiceError, SilenceError
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.testing.cluster import World

URL = {"extender.urlPrefix": "http://extender:8080/"}


class FakeService:
    """Answers by verb, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        self.asked += [(verb, json.loads(body)) for body in bodies]
        told = self.answers.get(verb, SilenceError("silent"))
        return [told if isinstance(told, ServiceError) else json.dumps(told).encode() for _ in bodies]


def world_with(service: FakeService, arguments: Mapping[str, Any]) -> tuple[World, Extender]:
    world = World(plugins=(("gang",), ("predicates", ("extender", {**URL, **arguments}))))
    for name in ("n1", "n2", "n3"):
        world.node(name, cpu=4, memory=8)
    plugin = world.policy.plugins[-1]
    assert isinstance(plugin, Extender)
    plugin.service.connect(service)
    return world, plugin


def test_every_node_with_room_is_asked_about_in_volcanos_words() -> None:
    service = FakeService(predicate={})
    world, _ = world_with(service, {"extender.predicateVerb": "predicate"})
    world.running("full", "n1", cpu=4)
    world.job("pg1", cpu=1, gpu=0)
    world.schedule()
    assert [question["node"]["Name"] for _, question in service.asked] == ["n2", "n3"]
    assert service.asked[0][1]["task"]["Resreq"] == {"MilliCPU": 1000, "Memory": 0, "ScalarResources": {"pods": 1000}}
    assert service.asked[0][1]["node"]["Idle"]["MilliCPU"] == 4000


def test_a_service_that_was_silent_is_not_asked_again_in_the_same_cycle() -> None:
    service = FakeService()
    world, _ = world_with(service, {"extender.predicateVerb": "predicate", "extender.ignorable": True})
    for name in ("a", "b", "c"):
        world.job(name, cpu=1)
    assert len(world.schedule()) == 3
    assert len(service.asked) == 3  # one pod's nodes, together; then no more
    world.job("d", cpu=1)
    world.schedule()
    assert len(service.asked) == 6


def test_points_are_worth_what_they_are_in_volcano() -> None:
    service = FakeService(prioritize={"nodeScore": {"n1": 50, "n2": -10, "n3": "many"}})
    world, _ = world_with(service, {"extender.prioritizeVerb": "prioritize"})
    (task,) = world.job("pg1", cpu=1).tasks.values()
    points = [round(float(score) / SCALE * 100) for score in world.policy.placer.scores(task)[:3]]
    assert points == [60, 0, 10]  # all lifted by 10, so that none is below 0


@pytest.mark.parametrize(
    ("answer", "ignorable", "expected"),
    [
        ({"status": 1, "victims": [{"UID": "b-0"}, {"UID": "unknown"}]}, False, ["b-0"]),
        ({"status": -1, "victims": None}, False, []),
        ({"status": 0}, False, None),
        (SilenceError("silent"), False, []),
        (SilenceError("silent"), True, None),
    ],
)
def test_victims_are_those_it_names(answer: Any, ignorable: bool, expected: list[str] | None) -> None:
    service = FakeService(preempt=answer, reclaim=answer)
    verbs = {"extender.preemptableVerb": "preempt", "extender.reclaimableVerb": "reclaim"}
    world, plugin = world_with(service, {**verbs, "extender.ignorable": ignorable})
    victims = [world.running(name, "n1", cpu=1) for name in ("a", "b")]
    (task,) = world.job("asks", cpu=1).tasks.values()
    for ask in (plugin.preemptable, plugin.reclaimable):
        world.cluster.nodes.notes.clear()
        found = ask(world.session, task, victims)
        assert (None if found is None else [victim.uid for victim in found]) == expected


def test_it_is_told_when_a_cycle_begins_and_ends_and_who_was_placed() -> None:
    verbs = {
        "extender.onSessionOpenVerb": "open", "extender.onSessionCloseVerb": "close",
        "extender.allocateFuncVerb": "placed", "extender.deallocateFuncVerb": "left",
        "extender.jobEnqueuedVerb": "entered",
    }  # fmt: skip
    service = FakeService(open={}, close={}, placed={}, left={}, entered={})
    world, plugin = world_with(service, verbs)
    job = world.job("pg1", cpu=1)
    (task,) = job.tasks.values()
    world.schedule()
    plugin.entered(job)
    plugin.decided(task, "n1", is_placed=True)
    plugin.decided(task, "n1", is_placed=False)
    plugin.end_session()
    assert [verb for verb, _ in service.asked] == ["open", "entered", "placed", "left", "close"]
    assert sorted(service.asked[0][1]["Nodes"]) == ["n1", "n2", "n3"]
    assert service.asked[1][1]["job"]["Name"] == "pg1"
    assert service.asked[2][1]["task"]["NodeName"] == "n1"


@pytest.mark.parametrize("answer", [b"", b"[1]", b"no json", b"{}"])
def test_an_answer_that_cannot_be_read_is_no_permission(answer: bytes) -> None:
    world, plugin = world_with(FakeService(), {"extender.jobReadyVerb": "ready"})
    plugin.service.connect(lambda address, verb, bodies: [answer for _ in bodies])
    world.job("pg1", cpu=1)
    assert world.schedule() == {}


def test_without_a_connection_it_says_no() -> None:
    world = World(plugins=(("gang",), ("predicates", ("extender", {**URL, "extender.predicateVerb": "p"}))))
    world.node("n1", cpu=4)
    world.job("pg1", cpu=1)
    world.schedule()
    assert world.why("pg1") == "0/1 nodes are available: 1 nobody carries out calls here."


def test_arguments_are_volcanos() -> None:
    arguments = {
        **URL,
        "extender.httpTimeout": "100ms",
        "extender.managedResources": "nvidia.com/gpu, nvidia.com/gpumem",
    }
    plugin = build_plugin("extender", arguments)
    assert isinstance(plugin, Extender)
    assert plugin.address == Address("http://extender:8080", 0.1, 10 << 20)
    assert plugin.managed == {"nvidia.com/gpu", "nvidia.com/gpumem"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "argument extender.urlPrefix is ''; a url like"),
        ({**URL, "extender.httpTimeout": "soon"}, "argument extender.httpTimeout is 'soon'"),
        (
            {**URL, "extender.httpTimeout": "0s"},
            "argument extender.httpTimeout is '0s'; a duration above 0 is expected",
        ),
        (
            {**URL, "extender.ignorable": "perhaps"},
            "argument extender.ignorable is 'perhaps'; true or false is expected",
        ),
    ],
)
def test_bad_arguments_are_told(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        build_plugin("extender", arguments)
