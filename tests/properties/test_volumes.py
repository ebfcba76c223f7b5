"""Volumes in generated worlds: no node attaches more than it can, no free volume is given to two, zones are kept."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.placement.bookkeeping.tallies import Attached
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints, FreeVolume, NodeTerm, Operator, Requirement, UnboundClaim
from hekla.placement.model import Task, TaskStatus
from hekla.testing.cluster import World, check

ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class Plan:
    """A world: of nodes the zone and how many volumes they attach; of pods what they mount; who has attached what besides."""

    nodes: tuple[tuple[str, int | None], ...]
    pods: tuple[tuple[tuple[int, ...], str, int], ...]
    """Volumes by number (shared where they are equal), the zone of the first, and how large a free volume it wants (0: none)."""

    free: tuple[tuple[int, int], ...]
    """Of free volumes the size, and the node that has it."""

    attached: tuple[tuple[int, int], ...]
    gone: tuple[int, ...]
    """Pods that leave after the first cycle."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nodes = tuple(
        draw(
            st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.none() | st.integers(0, 3)), min_size=1, max_size=4)
        )
    )
    some_node, volume = st.integers(0, len(nodes) - 1), st.integers(0, 5)
    mounted = st.lists(volume, max_size=3, unique=True).map(tuple)
    pod = st.tuples(mounted, st.sampled_from(["a", "b", ""]), st.integers(0, 3))
    pods = tuple(draw(st.lists(pod, min_size=1, max_size=7)))
    return Plan(
        nodes,
        pods,
        tuple(draw(st.lists(st.tuples(st.integers(1, 4), some_node), max_size=5))),
        tuple(draw(st.lists(st.tuples(volume, some_node), max_size=3))),
        tuple(draw(st.lists(st.integers(0, len(pods) - 1), max_size=3, unique=True))),
    )


def world_of(plan: Plan) -> World:
    world = World(plugins=[["gang"], ["predicates", "nodeorder"]])
    for number, (zone, limit) in enumerate(plan.nodes):
        labels = {"kubernetes.io/hostname": f"n{number}", **({ZONE: zone} if zone else {})}
        limits = {"d": limit} if limit is not None else {}
        has = {"cpu": 3000, "pods": 10}
        world.cluster.put_node(NodeSpec(name=f"n{number}", allocatable=has, labels=labels, volume_limits=limits))
    for number, (volume, node) in enumerate(plan.attached):
        world.cluster.put_attachment(f"a{number}", f"n{node}", "d", f"v{volume}")
    for number, (volumes, zone, size) in enumerate(plan.pods):
        job = world.job(f"p{number}", tasks=0, min_available=1)
        constraints = Constraints(
            attaches=(("d", len(volumes)),) if volumes else (),
            volume_zones=((ZONE, (zone,)),) if zone and volumes else (),
            unbound_claims=(UnboundClaim("local", size, choices(plan, size)),) if size else (),
        )
        (task,) = world.tasks(job, 1, cpu=1, constraints=constraints)
        told = tuple(sorted(("d", f"v{volume}") for volume in volumes))
        world.cluster.put_task(replace(task.spec, volumes=told), job)
    return world


def choices(plan: Plan, size: int) -> tuple[FreeVolume, ...]:
    found = sorted((capacity, number, node) for number, (capacity, node) in enumerate(plan.free) if capacity >= size)
    return tuple(FreeVolume(f"free{number}", capacity, (on(node),)) for capacity, number, node in found)


def on(node: int) -> NodeTerm:
    return NodeTerm(labels=(Requirement("kubernetes.io/hostname", Operator.IN, (f"n{node}",)),))


def node_of(world: World, task: Task) -> int:
    return int(world.cluster.nodes.name(task.row)[1:])


def judge(plan: Plan, world: World) -> None:
    """What must be true of all that is placed."""
    placed = [task for task in world.cluster.tasks.values() if task.row >= 0]
    there: dict[int, set[str]] = {node: set() for node in range(len(plan.nodes))}
    for volume, node in plan.attached:
        there[node].add(f"v{volume}")
    before = {node: len(volumes) for node, volumes in there.items()}
    for task in placed:
        there[node_of(world, task)] |= {volume for _, volume in task.spec.volumes}
        for _, zones in task.spec.constraints.volume_zones:
            assert plan.nodes[node_of(world, task)][0] in {*zones, ""}, "a volume is used outside its zone"
    for node, (_, limit) in enumerate(plan.nodes):
        assert limit is None or len(there[node]) <= max(limit, before[node]), "more is attached than can be"
    given = Counter(volume for task in placed for volume in task.taken)
    assert not given or max(given.values()) == 1, "a free volume is given to two"
    assert dict(given) == {name: count for name, count in world.cluster.tallies.given.items() if count}
    for task in placed:
        for claim, name in zip(task.spec.constraints.unbound_claims, task.taken, strict=True):
            capacity, node = plan.free[int(name.removeprefix("free"))]
            assert capacity >= claim.requested, "a volume is too small for its claim"
            assert node == node_of(world, task), "a volume is used from where it is not reached"
    tally = world.cluster.tallies.find(Attached("d"))
    assert tally is None or world.cluster.tallies.total(tally) == sum(map(len, there.values()))


@given(plans())
@settings(max_examples=120, deadline=None)
def test_volumes_are_attached_within_limits_in_their_zones_and_given_to_one(plan: Plan) -> None:
    world = world_of(plan)
    world.schedule()
    judge(plan, world)
    for number in plan.gone:
        world.cluster.remove_job(f"p{number}")
    world.schedule()
    judge(plan, world)
    check(world.cluster)


@given(plans())
@settings(max_examples=60, deadline=None)
def test_who_waits_fits_nowhere(plan: Plan) -> None:
    """One by one: a pod that waits would break a rule, or find no room, on every node."""
    world = world_of(plan)
    world.schedule()
    for task in world.cluster.tasks.values():
        if task.status is TaskStatus.PENDING:
            assert all(reasons(plan, world, task, node) for node in range(len(plan.nodes))), f"{task} fits"


def reasons(plan: Plan, world: World, task: Task, node: int) -> set[str]:
    """Why a pod does not fit on a node, counted over all pods there."""
    here = [other for other in world.cluster.tasks.values() if other.row >= 0 and node_of(world, other) == node]
    found = {"cpu"} if len(here) >= 3 else set()
    zone, limit = plan.nodes[node]
    if zone and any(zone not in zones for _, zones in task.spec.constraints.volume_zones):
        found.add("zone")
    there = {volume for other in here for _, volume in other.spec.volumes}
    there |= {f"v{volume}" for volume, at in plan.attached if at == node}
    own = {volume for _, volume in task.spec.volumes}
    if limit is not None and own - there and len(there | own) > limit:
        found.add("limit")
    for claim in task.spec.constraints.unbound_claims:
        taken = {volume for other in here for volume in other.taken}
        free = [v for v in claim.choices if v.name not in taken and v.terms == (on(node),)]
        if not free:
            found.add("no volume")
    return found
