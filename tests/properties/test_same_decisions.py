"""Decisions follow from what there is, not from how it came: the same objects in any order, after any history."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.meta import Document
from hekla.dialects.feed import ClusterFeed
from hekla.placement.cluster import Cluster
from hekla.placement.model import JobPhase
from hekla.placement.policy import Policy
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.scheduler.configuration import DEFAULT_TEXT, parse_configuration
from hekla.scheduler.decisions import Decisions, decisions_of, difference
from hekla.scheduler.engine_state import saved
from hekla.scheduler.replay import Replay, fed
from hekla.scheduler.snapshot import Snapshot, packed, typed, unpacked

EVERYTHING = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: drf
    enableHierarchy: true
- plugins:
  - name: overcommit
  - name: predicates
  - name: proportion
  - name: nodeorder
    arguments:
      nodeaffinity.weight: 3
      podaffinity.weight: 2
  - name: binpack
    arguments:
      binpack.weight: 3
      binpack.cpu: 2
      binpack.memory: 3
      binpack.resources: nvidia.com/gpu, example.com/fpga
      binpack.resources.nvidia.com/gpu: 7
      binpack.resources.example.com/fpga: 5
  - name: network-topology-aware
"""
EVICTING = """\
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
SCHEDULING, TOPOLOGY = "scheduling.volcano.sh/v1beta1", "topology.volcano.sh/v1alpha1"
NODES = ("n1", "n01", "n2", "n10", "m")
"""Two that are alike but for a leading zero: only their names tell them apart."""

QUEUES, GROUPS = ("default", "team", "other"), ("g1", "g2", "g3", "g4")
RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "example.com/fpga")


def obj(api_version: str, kind: str, name: str, namespace: str = "", **rest: Any) -> Document:
    metadata = {
        "name": name, "uid": f"{kind}-{name}", "creationTimestamp": f"2026-01-01T00:00:0{rest.pop('age', 0)}Z",
        "labels": rest.pop("labels", {}), "annotations": rest.pop("annotations", {}),
    }  # fmt: skip
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


@st.composite
def a_node(draw: st.DrawFn, name: str) -> Document:
    amounts = {"cpu": "8", "memory": f"{draw(st.sampled_from([7, 13, 16]))}Gi", "pods": "20"}
    amounts |= {name: str(draw(st.integers(1, 8))) for name in draw(st.permutations(RESOURCES[2:]))}
    names = draw(st.permutations(list(amounts)))
    taints = [
        {"key": key, "value": "x", "effect": "NoSchedule"} for key in draw(st.permutations(["a", "b"]))
        if draw(st.integers(0, 3)) == 0
    ]  # fmt: skip
    zone = draw(st.sampled_from(["x", "y", "z"]))
    labels = {"zone": zone, "kubernetes.io/hostname": name}
    return obj(
        "v1",
        "Node",
        name,
        labels=labels,
        spec={"taints": taints},
        status={"allocatable": {n: amounts[n] for n in names}},
    )


@st.composite
def a_pod(draw: st.DrawFn, number: int) -> Document:
    group = draw(st.sampled_from(["", *GROUPS]))
    asked = {name: str(draw(st.integers(0, 3))) for name in draw(st.permutations(RESOURCES))}
    asked["memory"] += "Gi"
    near = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    affinity: dict[str, Any] = draw(st.sampled_from([
        {}, {}, {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}},
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": near}]}},
    ]))  # fmt: skip
    spread = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    spec: dict[str, Any] = {
        "schedulerName": "volcano", "containers": [{"resources": {"requests": asked}}], "affinity": affinity,
        "topologySpreadConstraints": [spread] if draw(st.integers(0, 5)) == 0 else [],
        "tolerations": draw(st.sampled_from([[], [{"operator": "Exists"}], [{"key": "a", "operator": "Exists"}]])),
        "priority": draw(st.integers(0, 2)),
    }  # fmt: skip
    phase = "Pending"
    if draw(st.integers(0, 3)) == 0:
        spec["nodeName"], phase = draw(st.sampled_from(NODES)), draw(st.sampled_from(["Running", "Succeeded"]))
    annotations = {"scheduling.k8s.io/group-name": group} if group else {}
    return obj(
        "v1", "Pod", f"p-{number}", "default", labels={"app": draw(st.sampled_from(["a", "b"]))},
        annotations=annotations, spec=spec, status={"phase": phase}, age=draw(st.integers(0, 2)),
    )  # fmt: skip


@st.composite
def a_group(draw: st.DrawFn, name: str) -> Document:
    spec: dict[str, Any] = {"minMember": draw(st.integers(1, 3)), "queue": draw(st.sampled_from(QUEUES))}
    if draw(st.booleans()):
        spec["minResources"] = {"cpu": str(draw(st.integers(0, 9)))}
    if draw(st.integers(0, 2)) == 0:
        spec["networkTopology"] = {"mode": draw(st.sampled_from(["hard", "soft"])), "highestTierAllowed": 1}
    phase = draw(st.sampled_from(["Pending", "Inqueue"]))
    return obj(SCHEDULING, "PodGroup", name, "default", spec=spec, status={"phase": phase}, age=draw(st.integers(0, 1)))


@st.composite
def a_queue(draw: st.DrawFn, name: str) -> Document:
    place = {
        "volcano.sh/hierarchy": f"root/{draw(st.sampled_from('ab'))}/{name}",
        "volcano.sh/hierarchy-weights": "1/2/3",
    }
    return obj(SCHEDULING, "Queue", name, annotations=place, spec={"weight": draw(st.integers(1, 3))})


@st.composite
def worlds(draw: st.DrawFn) -> list[Document]:
    world = [draw(a_queue(name)) for name in QUEUES]
    world += [draw(a_node(name)) for name in NODES if draw(st.integers(0, 4))]
    world += [draw(a_group(name)) for name in GROUPS]
    world += [draw(a_pod(number)) for number in range(draw(st.integers(1, 12)))]
    for number, names in enumerate([("n1", "n2"), ("n01", "n10", "m")]):
        members = [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in names]
        world.append(obj(TOPOLOGY, "HyperNode", f"s{number}", spec={"tier": 1, "members": members}))
    return world


def decisions_after(world: Sequence[Document], strangers: Sequence[Document], seed: int) -> Decisions:
    """What is decided by a feed that heard of the world in some order, of strangers that went again, and of old versions."""
    dice = random.Random(seed)
    snapshot = Snapshot(objects=(), configuration=EVERYTHING)
    configuration, cluster = parse_configuration(EVERYTHING), Cluster()
    policy = Policy(cluster, configuration.tiers, configuration.arguments)
    feed = fed(cluster, snapshot, ())
    known, olds = by_name(world), by_name(strangers)
    for key in dice.sample(sorted(olds), len(olds)):
        put(feed, None, olds[key])
    for bind in list(action_named("allocate")(Session(policy))):  # an attempt of which nothing comes true
        feed.cluster.take_back(bind.task)
    for key in dice.sample(sorted(olds), len(olds)):
        if key not in known or dice.random() < 0.5:
            put(feed, olds.pop(key), None)
    for key in dice.sample(sorted(known), len(known)):
        put(feed, olds.get(key), known[key])
    for one in world:
        if one["kind"] == "PodGroup":  # phases are the engine's own, and a snapshot carries them
            feed.cluster.jobs[one["metadata"]["uid"]].phase = JobPhase(one["status"]["phase"])
    feed.cluster.gains += 1
    return decide(policy, configuration.actions, now=0.0, wall_s=100.0)


def by_name(world: Sequence[Document]) -> dict[tuple[str, str], Document]:
    return {(one["kind"], one["metadata"]["name"]): one for one in world}


def put(feed: ClusterFeed, old: Document | None, new: Document | None) -> None:
    before, after = (typed(one) if one is not None else None for one in (old, new))
    feed.followed[type(after or before)](before, after)


@given(worlds(), worlds(), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_the_order_of_arrival_and_what_was_before_decide_nothing(
    world: list[Document], strangers: list[Document], one: int, other: int
) -> None:
    first, second = decisions_after(world, strangers, one), decisions_after(world, [], other)
    assert [found.sentence() for found in difference(first, second)] == []
    assert first.encoded() == second.encoded()


@given(worlds())
@settings(max_examples=30, deadline=None)
def test_a_file_gives_the_same_decisions_again(world: list[Document]) -> None:
    snapshot = Snapshot(objects=tuple(typed(one) for one in world), configuration=EVERYTHING, wall_s=100.0)
    again = unpacked(packed(snapshot))
    assert packed(again) == packed(snapshot)
    assert Replay(again).cycle().encoded() == Replay(snapshot).cycle().encoded()


@given(worlds(), st.lists(st.integers(0, 11), max_size=6), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_what_is_under_way_is_remembered(world: list[Document], gone: list[int], cycles: int) -> None:
    """After cycles of which no object tells yet, a replay decides what the engine that went through them decides."""
    configuration, cluster = parse_configuration(EVICTING), Cluster()
    policy = Policy(cluster, configuration.tiers, configuration.arguments)
    policy.actions = configuration.actions
    feed = fed(cluster, Snapshot(objects=(), configuration=EVICTING, wall_s=100.0), ())
    for one in world:
        put(feed, None, one)
    for cycle in range(cycles):
        decide(policy, configuration.actions, now=10.0 * (cycle + 1), wall_s=100.0 + cycle)
        for number in gone[cycle::cycles]:
            left = [one for one in world if one["kind"] == "Pod" and one["metadata"]["name"] == f"p-{number}"]
            for one in left:
                put(feed, one, None)
                world = [other for other in world if other is not one]
    objects = tuple(typed(one) for one in world)
    taken = Snapshot(objects=objects, configuration=EVICTING, state=saved(feed), now=50.0, wall_s=150.0)
    again = unpacked(packed(taken))
    cluster.gains += 1
    expected = decide(policy, configuration.actions, now=50.0, wall_s=150.0)
    found = Replay(again).cycle()
    assert [one.sentence() for one in difference(expected, found)] == []
    assert found.encoded() == expected.encoded()


def decide(policy: Policy, actions: Sequence[str], *, now: float, wall_s: float) -> Decisions:
    session = Session(policy, now=now, wall_s=wall_s)
    choices = [choice for name in actions for choice in action_named(name)(session)]
    return decisions_of(session, choices)


@pytest.mark.parametrize("text", [DEFAULT_TEXT, EVERYTHING, EVICTING], ids=["default", "everything", "evicting"])
def test_the_configurations_used_here_can_be_used(text: str) -> None:
    assert not [found for found in parse_configuration(text).findings if found.severity.value == "error"]
