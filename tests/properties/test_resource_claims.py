"""Claims to devices in generated worlds: each device to one claim, gangs whole, counters never overdrawn, any order the same."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints
from hekla.placement.devices.claims import (
    Choice,
    ClaimRequest,
    CounterId,
    Device,
    DeviceClaim,
    DeviceId,
    DevicePool,
    Grant,
    Match,
)
from hekla.placement.model import Job, Task, TaskStatus
from hekla.testing.cluster import World, check

DRIVER, MODEL = "d", "d/model"
NETWORK = "net"
"""A pool whose devices every node reaches."""


@dataclass(frozen=True)
class OfModel:
    """Devices of one model; of all, where it is empty."""

    model: str

    def picks(self, device: Device) -> bool:
        return self.model in {"", device.attributes.get(MODEL)}


@dataclass(frozen=True)
class Wish:
    """What each claim of a job asks for."""

    models: tuple[tuple[str, ...], ...]
    """Of each request, the models that will do, the best first."""

    counts: tuple[int, ...]
    match: str
    """Whether all devices are of one model ("same"), each of another ("other"), or neither."""

    is_admin: bool
    takes_all: bool


@dataclass(frozen=True)
class Plan:
    """A world: of nodes their devices and how much these share; of jobs their pods, and what they wish for."""

    nodes: tuple[tuple[tuple[tuple[str, int], ...], int], ...]
    """Of each device the model and how much it takes of what its node has, and how much that is."""

    network: tuple[str, ...]
    jobs: tuple[tuple[int, bool, Wish], ...]
    """(Pods, whether they use one claim together, what a claim asks for)."""

    written: tuple[tuple[int, int], ...]
    """Devices that claims of others have by their status: node and place."""

    gone: tuple[int, ...]
    """Jobs that leave after the first cycle."""


WISHES = st.builds(
    Wish,
    models=st.lists(st.sampled_from([("",), ("a",), ("b",), ("a", "b")]), min_size=2, max_size=2).map(tuple),
    counts=st.lists(st.integers(1, 2), min_size=1, max_size=2).map(tuple),
    match=st.sampled_from(["", "", "same", "other"]),
    is_admin=st.sampled_from([False, False, False, True]),
    takes_all=st.sampled_from([False, False, False, True]),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    device = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
    node = st.tuples(st.lists(device, max_size=4).map(tuple), st.integers(0, 5))
    nodes = tuple(draw(st.lists(node, min_size=1, max_size=3)))
    jobs = tuple(draw(st.lists(st.tuples(st.integers(1, 3), st.booleans(), WISHES), min_size=1, max_size=5)))
    places = [(at, place) for at, (devices, _) in enumerate(nodes) for place in range(len(devices))]
    taken = st.lists(st.sampled_from(places), max_size=2, unique=True) if places else st.just([])
    return Plan(
        nodes=nodes,
        network=tuple(draw(st.lists(st.sampled_from("ab"), max_size=2))),
        jobs=jobs,
        written=tuple(draw(taken)),
        gone=tuple(draw(st.lists(st.integers(0, len(jobs) - 1), max_size=3, unique=True))),
    )


# Making it


def pools(plan: Plan) -> Iterator[DevicePool]:
    for at, (devices, amount) in enumerate(plan.nodes):
        counter = CounterId(DRIVER, f"n{at}", "parts", "memory")
        yield DevicePool(
            devices=tuple(
                Device(
                    id=DeviceId(DRIVER, f"n{at}", f"g{place}"), node=f"n{at}", attributes={MODEL: model},
                    consumes=((counter, taken),) if taken else (),
                )
                for place, (model, taken) in enumerate(devices)
            ),
            counters={counter: amount},
        )  # fmt: skip
    yield DevicePool(
        devices=tuple(
            Device(id=DeviceId(DRIVER, NETWORK, f"g{place}"), attributes={MODEL: model})
            for place, model in enumerate(plan.network)
        )
    )


def devices_of(plan: Plan) -> Mapping[DeviceId, Device]:
    return {device.id: device for pool in pools(plan) for device in pool.devices}


def claim_of(wish: Wish) -> DeviceClaim:
    return DeviceClaim(
        requests=tuple(
            ClaimRequest(
                name=f"r{number}",
                choices=tuple(
                    Choice(
                        label=f"r{number}" if len(models) == 1 else f"r{number}/{model}", device_class=model,
                        selector=OfModel(model), count=count, takes_all=wish.takes_all and not number,
                        is_admin=wish.is_admin,
                    )
                    for model in models
                ),
            )
            for number, (models, count) in enumerate(zip(wish.models, wish.counts, strict=False))
        ),
        matches=(Match(attribute=MODEL, is_distinct=wish.match == "other"),) if wish.match else (),
    )  # fmt: skip


def world_of(plan: Plan, order: Sequence[int] = ()) -> World:
    """The world of a plan; `order` shuffles in which order its parts come."""
    world = World(plugins=[["gang"], ["predicates", "nodeorder"]])
    steps = [("node", at) for at in range(len(plan.nodes))] + [("pool", at) for at in range(len(plan.nodes) + 1)]
    steps += [("job", number) for number in range(len(plan.jobs))] + [
        ("written", at) for at in range(len(plan.written))
    ]
    offered = list(pools(plan))
    for kind, number in sorted(steps, key=lambda step: order[steps.index(step) % len(order)]) if order else steps:
        if kind == "node":
            has, labels = {"cpu": 4000, "pods": 10}, {"kubernetes.io/hostname": f"n{number}"}
            world.cluster.put_node(NodeSpec(name=f"n{number}", allocatable=has, labels=labels))
        elif kind == "pool":
            name = f"n{number}" if number < len(plan.nodes) else NETWORK
            world.cluster.put_devices(DRIVER, name, offered[number])
        elif kind == "job":
            add_job(world, number, *plan.jobs[number])
        else:
            node, place = plan.written[number]
            grant = Grant("r0", DeviceId(DRIVER, f"n{node}", f"g{place}"))
            world.cluster.put_allocation(f"other/{number}", (grant,), None)
    return world


def add_job(world: World, number: int, pods: int, is_shared: bool, wish: Wish) -> Job:
    constraints = Constraints(device_claims=(claim_of(wish),))
    job = world.job(f"j{number}", tasks=0, min_available=pods, more={"created": float(number)})
    for task in world.tasks(job, pods, cpu=1, constraints=constraints):
        name = f"default/{job.spec.name if is_shared else task.spec.name}"
        world.cluster.put_task(replace(task.spec, device_claims=(name,)), job)
    return job


# What must be true


def judge(plan: Plan, world: World) -> None:
    there, holds = devices_of(plan), world.cluster.tallies.inventory.holds
    placed = [task for task in world.cluster.tasks.values() if task.row >= 0]
    given = Counter(grant.device for hold in holds.values() for grant in hold.grants if not grant.is_admin)
    assert not given or max(given.values()) == 1, "a device is given to two claims"
    spent = Counter[CounterId]()
    for device in given:
        spent.update(dict(there[device].consumes))
    written = Counter[CounterId]()
    for node, place in plan.written:
        written.update(dict(there[DeviceId(DRIVER, f"n{node}", f"g{place}")].consumes))
    for pool in pools(plan):
        for counter, amount in pool.counters.items():
            # What the world had overdrawn before we came is not our doing.
            assert spent[counter] <= max(amount, written[counter]), "a counter is overdrawn"
    users: dict[str, set[str]] = {name: set() for name in holds}
    for task in placed:
        (name,), (claim,) = task.spec.device_claims, task.spec.constraints.device_claims
        assert name in holds, f"{task} runs without devices"
        users[name].add(task.uid)
        assert answers(claim, holds[name].grants, there, node_of(world, task)), (
            f"{task} has other devices than it claims"
        )
    for name, hold in holds.items():
        assert hold.users == users[name], "a claim is used by others than it says"
        assert hold.users or hold.is_written, "a claim that nobody uses has devices"
    for job in world.cluster.jobs.values():
        assert sum(task.row >= 0 for task in job.tasks.values()) in {0, len(job.tasks)}, f"{job} runs in part"
    check(world.cluster)


def node_of(world: World, task: Task) -> str:
    return world.cluster.nodes.name(task.row)


def answers(claim: DeviceClaim, grants: Sequence[Grant], there: Mapping[DeviceId, Device], node: str) -> bool:
    """Whether devices are what a claim asks for, and reached from a node."""
    found = [there[grant.device] for grant in grants]
    if any(device.node not in {"", node} for device in found):
        return False
    for match in claim.matches:
        models = [device.attributes[match.attribute] for device in found]
        if len(set(models)) != (len(models) if match.is_distinct else 1):
            return False
    count = 0
    for request in claim.requests:
        mine = [grant for grant in grants if grant.label.partition("/")[0] == request.name]
        labels = {grant.label for grant in mine}
        choice = next((one for one in request.choices if {one.label} == labels), None)
        if choice is None or any(not choice.selector.picks(there[grant.device]) for grant in mine):
            return False
        within = [d for d in there.values() if d.node in {"", node} and choice.selector.picks(d)]
        if len(mine) != (len(within) if choice.takes_all else choice.count):
            return False
        count += len(mine)
    return count == len(grants)


@given(plans())
@settings(max_examples=60, deadline=None)
def test_each_device_goes_to_one_claim_gangs_are_whole_and_counters_hold(plan: Plan) -> None:
    world = world_of(plan)
    world.schedule()
    judge(plan, world)
    for number in plan.gone:
        world.cluster.remove_job(f"j{number}")
    judge(plan, world)
    world.schedule()
    judge(plan, world)


@given(plans(), st.lists(st.integers(0, 20), min_size=3, max_size=9))
@settings(max_examples=30, deadline=None)
def test_the_order_in_which_nodes_pools_claims_and_jobs_come_decides_nothing(plan: Plan, order: list[int]) -> None:
    one, other = world_of(plan), world_of(plan, order)
    assert one.schedule() == other.schedule()
    told = [
        {name: hold.grants for name, hold in world.cluster.tallies.inventory.holds.items()} for world in (one, other)
    ]
    assert told[0] == told[1]


@given(plans())
@settings(max_examples=40, deadline=None)
def test_a_lone_pod_that_waits_can_have_its_devices_on_no_node(plan: Plan) -> None:
    """Every set of free devices is tried on every node, by other code than the search."""
    world = world_of(plan)
    world.schedule()
    for task in world.cluster.tasks.values():
        assert task.job is not None
        if task.status is TaskStatus.PENDING and len(task.job.tasks) == 1:
            (claim,) = task.spec.constraints.device_claims
            for at in range(len(plan.nodes)):
                assert not can_have(plan, world, claim, f"n{at}"), f"{task} fits on n{at}"


def can_have(plan: Plan, world: World, claim: DeviceClaim, node: str) -> bool:
    there, holds = devices_of(plan), world.cluster.tallies.inventory.holds
    if sum(task.row >= 0 and node_of(world, task) == node for task in world.cluster.tasks.values()) >= 4:
        return False  # no room for the pod itself
    taken = {grant.device for hold in holds.values() for grant in hold.grants if not grant.is_admin}
    is_admin = claim.requests[0].choices[0].is_admin
    within = [d for d in there.values() if d.node in {"", node} and (is_admin or d.id not in taken)]
    left = {counter: amount for pool in pools(plan) for counter, amount in pool.counters.items()}
    for device in taken:
        for counter, amount in there[device].consumes:
            left[counter] -= amount
    return any(
        answers(claim, grants, there, node) and (is_admin or not overdrawn(grants, there, left))
        for grants in grantings(claim.requests, within)
    )


def grantings(requests: Sequence[ClaimRequest], within: Sequence[Device]) -> Iterator[tuple[Grant, ...]]:
    """All ways to give devices to requests, each at most once, whatever they are."""
    if not requests:
        yield ()
        return
    for choice in requests[0].choices:
        for size in {choice.count} if not choice.takes_all else set(range(1, len(within) + 1)):
            for some in combinations(within, size):
                rest = within if choice.is_admin else [device for device in within if device not in some]
                for others in grantings(requests[1:], rest):
                    yield (*(Grant(choice.label, device.id, choice.is_admin) for device in some), *others)


def overdrawn(grants: Sequence[Grant], there: Mapping[DeviceId, Device], left: Mapping[CounterId, int]) -> bool:
    spent = Counter[CounterId]()
    for grant in grants:
        spent.update(dict(there[grant.device].consumes))
    return any(amount > left[counter] for counter, amount in spent.items())
