"""Properties of topology over generated trees, against a plain oracle that tries every domain by hand."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hekla.placement import kernels
from hekla.placement.constraint import Operator, Requirement
from hekla.placement.kernels import twin
from hekla.placement.model import JobSpec, SubGroupPolicy, TaskStatus
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.tree import ROOT_NAME
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import World, check

BY_CPU = ("network-topology-aware", {"hypernode.binpack.memory": 0})
PLUGINS = (("priority", "gang"), ("predicates", "nodeorder", "binpack", BY_CPU))
PARTS = SubGroupPolicy(name="part", match_label_keys=("part",), size=2, closeness=Closeness(highest_tier=1))


@pytest.fixture(autouse=True, params=["plain", "compiled"])
def forms(request: pytest.FixtureRequest) -> None:
    if request.param == "plain":
        kernels.use(twin)
    elif not kernels.use_compiled():
        pytest.skip("numba is not installed")


@dataclass(frozen=True)
class Plan:
    """Racks of nodes with so many cpus each, racks per row, and gangs."""

    rows: tuple[tuple[tuple[int, ...], ...], ...]
    loose: tuple[int, ...]
    gangs: tuple[tuple[int, int, int, int | None, bool], ...]  # tasks, minimum, cpu, highest tier, hard

    def nodes(self) -> dict[str, int]:
        found = {f"loose-{number}": cpu for number, cpu in enumerate(self.loose)}
        for row, racks in enumerate(self.rows):
            for rack, nodes in enumerate(racks):
                found |= {f"n-{row}-{rack}-{number}": cpu for number, cpu in enumerate(nodes)}
        return found

    def domains(self) -> dict[str, tuple[int, set[str]]]:
        """By name, the tier and the nodes, plainly; the virtual root included."""
        found: dict[str, tuple[int, set[str]]] = {}
        for row, racks in enumerate(self.rows):
            for rack, nodes in enumerate(racks):
                found[f"rack-{row}-{rack}"] = 1, {f"n-{row}-{rack}-{number}" for number in range(len(nodes))}
            found[f"row-{row}"] = 2, {name for name in self.nodes() if name.startswith(f"n-{row}-")}
        found[ROOT_NAME] = (3 if self.rows else 1), set(self.nodes())
        return found

    def specs(self) -> list[DomainSpec]:
        specs: list[DomainSpec] = []
        for row, racks in enumerate(self.rows):
            for rack, nodes in enumerate(racks):
                by_name = tuple(Members(name=f"n-{row}-{rack}-{number}") for number in range(len(nodes)))
                by_pattern = (Members(pattern=f"^n-{row}-{rack}-"),)
                specs.append(DomainSpec(name=f"rack-{row}-{rack}", tier=1, members=by_pattern if rack % 2 else by_name))
            children = tuple(Members(name=f"rack-{row}-{rack}", are_domains=True) for rack in range(len(racks)))
            by_label = (Members(labels=(Requirement("row", Operator.IN, (str(row),)),)),)
            specs.append(DomainSpec(name=f"row-{row}", tier=2, members=children + (by_label if row % 2 else ())))
        return specs


sizes = st.integers(0, 4)
plans = st.builds(
    Plan,
    st.lists(st.lists(st.lists(sizes, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple), max_size=3).map(
        tuple
    ),
    st.lists(sizes, max_size=2).map(tuple),
    st.lists(
        st.tuples(
            st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.sampled_from([0, 1, 2, 3, None]), st.booleans()
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


def build(plan: Plan, *, backwards: bool = False) -> World:
    world = World(plugins=PLUGINS)
    steps = [lambda spec=spec: world.cluster.put_domain(spec) for spec in plan.specs()]
    for name, cpu in plan.nodes().items():
        labels = {"row": name.split("-")[1]} if name.startswith("n-") else {}
        steps.append(lambda name=name, cpu=cpu, labels=labels: world.node(name, cpu=cpu, memory=64, labels=labels))
    for step in reversed(steps) if backwards else steps:
        step()
    for number, (tasks, minimum, cpu, tier, hard) in enumerate(plan.gangs):
        wish = Closeness(is_hard=hard, highest_tier=tier)
        world.job(
            f"g{number}", tasks=tasks, min_available=min(tasks, minimum), more={"closeness": wish}, cpu=cpu, memory=1
        )
    return world


def ceiling(plan: Plan, tier: int | None, *, hard: bool) -> int:
    return plan.domains()[ROOT_NAME][0] if tier is None or not hard else tier


@given(plan=plans)
def test_a_gang_is_whole_inside_an_allowed_domain_or_takes_nothing(plan: Plan) -> None:
    world = build(plan)
    binds = world.schedule()
    for number, (tasks, minimum, _, tier, hard) in enumerate(plan.gangs):
        where = {node for task, node in binds.items() if task.startswith(f"g{number}-")}
        placed = sum(1 for task in binds if task.startswith(f"g{number}-"))
        assert placed == 0 or placed >= min(tasks, minimum)
        allowed = [nodes for at, nodes in plan.domains().values() if at <= ceiling(plan, tier, hard=hard)]
        assert not where or any(where <= nodes for nodes in allowed)


@given(plan=plans)
def test_the_first_gang_takes_a_tightest_domain_that_fits(plan: Plan) -> None:
    tasks, _, cpu, tier, hard = plan.gangs[0]
    plan = replace(plan, gangs=((tasks, tasks, cpu, tier, hard),))
    binds = build(plan).schedule()
    cpus = plan.nodes()
    fitting = [
        (at, nodes)
        for at, nodes in plan.domains().values()
        if at <= ceiling(plan, tier, hard=hard) and sum(cpus[node] // cpu for node in nodes) >= tasks
    ]
    assert bool(binds) == bool(fitting)
    if fitting:
        lowest = min(at for at, _ in fitting)
        smallest = min(sum(cpus[node] for node in nodes) for at, nodes in fitting if at == lowest)
        assert any(
            set(binds.values()) <= nodes and sum(cpus[node] for node in nodes) == smallest
            for at, nodes in fitting
            if at == lowest
        )


@given(plan=plans)
def test_the_same_world_is_decided_the_same_way_in_whatever_order_it_came(plan: Plan) -> None:
    binds = build(plan).schedule()
    assert build(plan).schedule() == binds
    assert build(plan, backwards=True).schedule() == binds


@given(plan=plans, data=st.data())
def test_a_gang_that_lost_pods_stays_within_its_tier(plan: Plan, data: st.DataObject) -> None:
    world = build(plan)
    world.schedule()
    for number in range(len(plan.gangs)):
        job = world.cluster.jobs[f"g{number}"]
        running = [task for task in job.tasks.values() if task.row >= 0]
        for task in running:
            node = world.cluster.nodes.name(task.row)
            world.cluster.put_task(structs.replace(task.spec, node=node, status=TaskStatus.RUNNING), job)
        if running:
            lost = data.draw(st.sampled_from(running))
            spec = lost.spec
            world.cluster.remove_task(lost.uid)
            world.cluster.put_task(
                structs.replace(spec, uid=f"{spec.uid}-new", node="", status=TaskStatus.PENDING), job
            )
    world.schedule()
    for number, (_, _, _, tier, hard) in enumerate(plan.gangs):
        tasks = world.cluster.jobs[f"g{number}"].tasks.values()
        where = {world.cluster.nodes.name(task.row) for task in tasks if task.row >= 0}
        allowed = [nodes for at, nodes in plan.domains().values() if at <= ceiling(plan, tier, hard=hard)]
        assert not where or any(where <= nodes for nodes in allowed)


@given(plan=plans, parts=st.integers(1, 4), cpu=st.integers(1, 2))
def test_sub_gangs_are_each_whole_in_a_rack(plan: Plan, parts: int, cpu: int) -> None:
    world = build(replace(plan, gangs=()))
    spec = JobSpec(uid="g", name="g", min_available=2 * parts, subgroups=(PARTS,), closeness=Closeness(highest_tier=2))
    job = world.cluster.put_job(spec)
    for part in range(parts):
        world.tasks(job, 2, labels={"part": str(part)}, cpu=cpu, memory=1)
    binds = world.schedule()
    assert len(binds) in {0, 2 * parts}
    racks = [nodes for at, nodes in plan.domains().values() if at <= 1]
    rows = [nodes for at, nodes in plan.domains().values() if at <= 2]
    assert not binds or any(set(binds.values()) <= nodes for nodes in rows)
    for part in range(parts if binds else 0):
        pair = {binds[f"g-{2 * part}"], binds[f"g-{2 * part + 1}"]}
        assert any(pair <= nodes for nodes in racks)


@given(plan=plans, gone=st.sets(st.integers(0, 12)))
def test_a_tree_that_was_changed_is_the_tree_that_was_made_so(plan: Plan, gone: set[int]) -> None:
    changed, made = build(replace(plan, gangs=())), World(plugins=PLUGINS)
    changed.cluster.topology.tree()
    left = [spec for number, spec in enumerate(plan.specs()) if number not in gone]
    for number, spec in enumerate(plan.specs()):
        if number in gone:
            changed.cluster.remove_domain(spec.name)
        made.cluster.put_domain(spec)
    for name in {spec.name for spec in plan.specs()} - {spec.name for spec in left}:
        made.cluster.remove_domain(name)
    for number, name in enumerate(plan.nodes()):
        if number in gone:
            changed.cluster.remove_node(name)
        else:
            made.node(name, labels={"row": name.split("-")[1]} if name.startswith("n-") else {}, cpu=1)
    assert told(changed) == told(made)


def told(world: World) -> dict[str, tuple[int, set[str]]]:
    tree = world.cluster.topology.tree()
    name = world.cluster.nodes.name
    return {
        tree.names[domain]: (tree.tiers[domain], {name(row) for row in tree.rows(domain).tolist()})
        for domain in range(len(tree.names))
    }


@st.composite
def wild_specs(draw: st.DrawFn) -> list[DomainSpec]:
    """HyperNodes as nobody should write them: rings, several parents, members that are not there."""
    names = st.sampled_from(["a", "b", "c", "d", "ghost"])
    nodes = st.sampled_from(["n1", "n2", "n3", "ghost"])
    broken = st.sampled_from([Members(pattern="("), Members(pattern="n"), Members(labels=())])
    member = (
        names.map(lambda name: Members(name=name, are_domains=True)) | nodes.map(lambda n: Members(name=n)) | broken
    )
    return [
        DomainSpec(name=name, tier=draw(st.integers(0, 3)), members=tuple(draw(st.lists(member, max_size=4))))
        for name in ("a", "b", "c", "d")
    ]


@given(specs=wild_specs())
def test_whatever_hypernodes_say_the_tree_is_a_tree(specs: list[DomainSpec]) -> None:
    trees = []
    for order in (specs, specs[::-1]):
        world = World(plugins=PLUGINS)
        for spec in order:
            world.cluster.put_domain(spec)
        for name in ("n1", "n2", "n3"):
            world.node(name, cpu=4, memory=4)
        tree = world.cluster.topology.tree()
        for domain in range(len(tree.names)):
            line = list(tree.chain(domain))
            assert line[-1] == tree.root
            assert all(tree.tiers[low] < tree.tiers[high] for low, high in pairwise(line))
            assert set(tree.rows(domain).tolist()) <= set(tree.rows(line[1] if len(line) > 1 else domain).tolist())
        assert sorted(tree.order.tolist()) == sorted(world.cluster.nodes.row_of.values())
        world.job("g", tasks=2, more={"closeness": Closeness(highest_tier=9)}, cpu=2)
        assert len(world.schedule()) == 2
        trees.append((told(world), world.cluster.topology.faults))
    assert trees[0] == trees[1]


@settings(deadline=None)
@given(plan=plans)
def test_a_gang_that_waits_leaves_no_trace(plan: Plan) -> None:
    world = build(replace(plan, gangs=((6, 6, 4, 0, True),)))
    before = world.cluster.nodes.used.tobytes()
    assert world.schedule() == {}
    assert world.cluster.nodes.used.tobytes() == before
    check(world.cluster)
    assert "hypernodes up to tier 0" in world.why("g0")
