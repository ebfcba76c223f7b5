"""What queues have claimed, kept up claim by claim, is what a count of all claims says, whatever changes in whatever order."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.placement.cluster import Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints
from hekla.placement.devices import inventory
from hekla.placement.devices.claimed import PREFIX
from hekla.placement.devices.claims import Choice, ClaimRequest, Device, DeviceClaim, DeviceId, DevicePool, Grant
from hekla.testing.cluster import World

DRIVER, JOBS, PODS = "d", 4, 2
QUEUES = ("a", "b", "c")
Above = Callable[[str], Iterable[str]]


class AnyDevice:
    def picks(self, device: Device) -> bool:
        return True


def claim(number: int) -> DeviceClaim:
    """The claim of this number: one device or two of a class, the last for whoever administers it."""
    choice = Choice(
        label="r", device_class=f"k{number % 2}", selector=ANY, count=1 + number % 2, is_admin=number == CLAIMS - 1
    )
    return DeviceClaim(requests=(ClaimRequest(name="r", choices=(choice,)),))


ANY, CLAIMS = AnyDevice(), 5


def world_of(named: list[list[int]]) -> World:
    world = World(plugins=[["predicates"]])
    for name in QUEUES:
        world.queue(name)
    devices = tuple(Device(id=DeviceId(DRIVER, "n", f"g{place}"), node="n") for place in range(40))
    world.cluster.put_node(NodeSpec(name="n", allocatable={"cpu": 100_000, "pods": 100}, labels={}))
    world.cluster.put_devices(DRIVER, "n", DevicePool(devices=devices))
    for number in range(JOBS):
        job = world.job(f"j{number}", tasks=0, more={"queue": "a"})
        claims = sorted(set(named[number]))
        constraints = Constraints(device_claims=tuple(map(claim, claims)))
        for task in world.tasks(job, PODS, cpu=1, constraints=constraints):
            names = tuple(f"default/c{each}" for each in claims)
            world.cluster.put_task(replace(task.spec, device_claims=names), job)
    return world


def tree(parents: tuple[int, ...]) -> Above:
    """Each queue below the one of this number, if that is an earlier one."""

    def above(name: str) -> Iterator[str]:
        yield name
        number = QUEUES.index(name)
        if parents[number] < number:
            yield from above(QUEUES[parents[number]])

    return above


def counted(cluster: Cluster, above: Above) -> dict[str, tuple[set[str], Counter[str]]]:
    """The same plainly."""
    found: dict[str, tuple[set[str], Counter[str]]] = {}
    for name, hold in cluster.tallies.inventory.holds.items():
        users = [cluster.tasks[uid] for uid in sorted(hold.users)]
        queues = {task.job.spec.queue for task in users if task.job is not None}
        kind = f"{PREFIX}k{int(name[-1]) % 2}"
        for queue in {one for each in queues for one in above(each)}:
            names, devices = found.setdefault(queue, (set(), Counter()))
            names.add(name)
            devices.update({kind: sum(not grant.is_admin for grant in hold.grants)})
    return found


def compare(cluster: Cluster, above: Above) -> None:
    told = cluster.tallies.inventory.claimed(cluster.tasks, above)
    assert {queue: (one.names, +one.devices) for queue, one in told.items()} == {
        queue: (names, +devices) for queue, (names, devices) in counted(cluster, above).items()
    }


def change(world: World, what: str, which: int, other: int) -> None:
    cluster = world.cluster
    job = cluster.jobs.get(f"j{which % JOBS}")
    if what == "recount":
        cluster.tallies.recount(cluster.placed())
    elif what == "write":
        grants = tuple(Grant("r", DeviceId(DRIVER, "n", f"g{30 + place}")) for place in range(other % 3))
        cluster.put_allocation(f"default/c{which % CLAIMS}", grants, None)
    elif what == "unwrite":
        cluster.remove_allocation(f"default/c{which % CLAIMS}")
    elif job is None:
        return
    elif what == "requeue":
        cluster.put_job(replace(job.spec, queue=QUEUES[other % len(QUEUES)]))
    elif what == "gone":
        cluster.remove_job(job.uid)
    else:
        task = list(job.tasks.values())[other % PODS]
        cluster.place(task, 0) if task.row < 0 else cluster.displace(task)


STEPS = st.tuples(
    st.sampled_from(["move", "move", "move", "requeue", "gone", "recount", "write", "unwrite", "tree"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([True, True, False]),
)


@given(
    st.lists(st.lists(st.integers(0, CLAIMS - 1), min_size=1, max_size=2), min_size=JOBS, max_size=JOBS),
    st.lists(STEPS, min_size=6, max_size=30),
    st.sampled_from([2, 100_000]),
)
@settings(max_examples=150, deadline=None)
def test_the_accounts_of_claims_are_what_a_count_of_all_says(
    named: list[list[int]], steps: list[tuple[str, int, int, bool]], most_changed: int
) -> None:
    world, above, kept = world_of(named), tree((0, 0, 1)), inventory.MOST_CHANGED
    inventory.MOST_CHANGED = most_changed
    try:
        for what, which, other, looks in [*steps, ("recount", 0, 0, True)]:
            if what == "tree":
                above = tree((0, which % 2, other % 3))
            else:
                change(world, what, which, other)
            if looks:  # else what changed is made good at a later look
                compare(world.cluster, above)
    finally:
        inventory.MOST_CHANGED = kept


def test_a_job_that_goes_to_another_queue_takes_its_claims_along() -> None:
    world, above = world_of([[0], [0], [2], [3]]), tree((0, 0, 1))
    for number in range(JOBS):
        change(world, "move", number, 0)
    compare(world.cluster, above)
    for number, queue in ((0, 2), (1, 1), (2, 2)):
        change(world, "requeue", number, queue)
        compare(world.cluster, above)


def test_a_queue_that_goes_below_another_takes_its_claims_along() -> None:
    world = world_of([[0], [1], [2], [3]])
    change(world, "requeue", 0, 2)
    change(world, "move", 0, 0)
    for parents in ((0, 0, 1), (0, 1, 1), (0, 1, 2), (0, 1, 0)):
        compare(world.cluster, tree(parents))


def test_one_pod_more_looks_at_its_own_claims_alone() -> None:
    """Counting all for each pod took the square of their number."""

    class Watched(dict[str, object]):
        looked_up = 0

        def get(self, *key: object) -> object:
            self.looked_up += 1
            return super().get(*key)

    world, above = world_of([[0], [1], [2], [3]]), tree((0, 0, 0))
    tasks, there = Watched(world.cluster.tasks), world.cluster.tallies.inventory
    placed = [job.tasks[next(iter(job.tasks))] for job in world.cluster.jobs.values()]
    for task in placed[:-1]:
        world.cluster.place(task, 0)
    there.claimed(tasks, above)
    before = tasks.looked_up
    world.cluster.place(placed[-1], 0)
    assert there.claimed(tasks, above)["a"].names == {f"default/c{number}" for number in range(4)}
    assert tasks.looked_up - before == 1
