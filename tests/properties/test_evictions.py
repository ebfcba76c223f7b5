"""Evictions in generated worlds: they come to an end, harm nobody whom they must not harm, and are the same twice."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.dialects.traits import ANY_ZONE, ZONE_KEY
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.constraint import NO_CONSTRAINTS, Constraints
from hekla.placement.eviction.termination_measure import Measure, measure
from hekla.placement.model import Job, JobSpec, SubGroupPolicy, Task, TaskSpec, TaskStatus
from hekla.placement.plugins.capacity import Capacity
from hekla.placement.plugins.proportion import Proportion
from hekla.placement.plugins.tdm import LABEL
from hekla.placement.queue import Queue
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Evict
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import World, amounts, check

ACTIONS = {
    "one by one": ("enqueue", "allocate", "preempt", "reclaim"),
    "whole gangs": ("enqueue", "allocate", "gangpreempt", "gangreclaim"),
    "both": ("enqueue", "allocate", "gangpreempt", "preempt", "reclaim", "gangreclaim"),
    "and shuffle": ("enqueue", "allocate", "preempt", "reclaim", "shuffle"),
}
WISHES = {
    "none": None,
    "rack": Closeness(highest_tier=1),
    "row": Closeness(highest_tier=2),
    "soft": Closeness(is_hard=False),
}
PAIRS = SubGroupPolicy(name="pair", match_label_keys=("pair",), size=2, closeness=Closeness(highest_tier=1))
MOST_CYCLES = 120
PLUGINS = {
    "proportion": (("priority", "gang", "conformance"), ("drf", "predicates", "proportion", "nodeorder")),
    "capacity": (("priority", "conformance"), ("capacity", "predicates", "binpack"), ("gang",)),
    "drf": (("gang", "conformance"), ("drf", "predicates", "capacity")),
    "priority": (("priority", "predicates"),),
}
EVENING = {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 60}}
MOVERS = (
    ("rescheduling", {"interval": "60s", "strategies": [{"name": "lowNodeUtilization", "params": EVENING}]}),
    ("tdm", {"tdm.revocable-zone.night": "00:00-00:01", "tdm.evict.period": "40s"}),
)
"""Plug-ins that have pods leave for nobody's sake; the story begins at midnight, and a minute later the night is over."""

CYCLE_S, NEWS_UNTIL = 20, 10
"""How long a cycle takes by the wall clock, and the cycle after which nothing new is measured."""


@dataclass(frozen=True)
class Drawn:
    """A job: its queue, priority, pods as (cpu, memory, own priority), and how many must run together."""

    queue: str
    priority: int
    pods: tuple[tuple[int, int, int], ...]
    least: int
    at_first: bool
    wish: str = "none"
    pairs: bool = False
    """Whether its pods form sub-gangs of two, each of which wants a rack."""


@dataclass(frozen=True)
class Plan:
    """A world: plug-ins, nodes as (cpu, memory), what queues deserve and are guaranteed, jobs."""

    plugins: str
    nodes: tuple[tuple[int, int], ...]
    deserved: tuple[tuple[int, int], ...]
    guaranteed: tuple[int, ...]
    jobs: tuple[Drawn, ...]
    actions: str = "one by one"
    racks: tuple[int, ...] = ()
    """The rack of each node, if they stand in any; all racks are in one row."""

    measured: tuple[tuple[int, int], ...] = ()
    """Of each node how busy it was measured to be, in percent, and in which cycle, if there are movers."""

    night: tuple[bool, ...] = ()
    """Which nodes are not always ours."""


@st.composite
def plans(draw: st.DrawFn, *, gangs: bool = False, movers: bool = False) -> Plan:
    small = st.integers(0, 6)
    queues = draw(st.integers(1, 3))
    jobs = []
    for _ in range(draw(st.integers(2, 7))):
        pod = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2))
        pods = tuple(draw(st.lists(pod, min_size=1, max_size=4)))
        jobs.append(
            Drawn(
                f"q{draw(st.integers(0, queues - 1))}",
                draw(st.integers(0, 2)),
                pods,
                draw(st.integers(0, len(pods))),
                draw(st.booleans()),
                draw(st.sampled_from(sorted(WISHES))) if gangs else "none",
                draw(st.integers(0, 3)) == 0 if gangs else False,
            )
        )
    nodes = tuple(
        draw(st.lists(st.tuples(st.integers(2, 6), st.integers(2, 6)), min_size=1, max_size=4 if gangs else 3))
    )
    return Plan(
        draw(st.sampled_from(sorted(PLUGINS))),
        nodes,
        tuple((draw(small), draw(small)) for _ in range(queues)),
        tuple(draw(st.integers(0, 1)) for _ in range(queues)),
        tuple(jobs),
        draw(st.sampled_from(["whole gangs", "both"])) if gangs else "and shuffle" if movers else "one by one",
        tuple(draw(st.integers(0, 1)) for _ in nodes) if gangs else (),
        tuple((draw(st.integers(0, 100)), draw(st.integers(0, 9))) for _ in nodes) if movers else (),
        tuple(draw(st.integers(0, 3)) == 0 for _ in nodes) if movers else (),
    )


class Life:
    """A world in which pods start when they are bound, and evicted ones die and are made anew; nothing else arrives."""

    def __init__(self, plan: Plan, order: list[int] | None = None) -> None:
        self.plan = plan
        first, *others = PLUGINS[plan.plugins]
        self.world = World(plugins=[(*first, *MOVERS) if plan.measured else first, *others])
        self.cluster = self.world.cluster
        self.generation = 0
        self.log: list[tuple[str, ...]] = []
        self.reached: Measure | None = None
        for number, (cpu, memory) in enumerate(plan.nodes):
            is_night = bool(plan.night) and plan.night[number]
            self.world.node(f"n{number}", cpu=cpu, memory=memory, labels={LABEL: "night"} if is_night else {})
        for rack in sorted(set(plan.racks)):
            there = tuple(Members(name=f"n{number}") for number, one in enumerate(plan.racks) if one == rack)
            self.cluster.put_domain(DomainSpec(name=f"rack{rack}", tier=1, members=there))
        if plan.racks:
            racks = tuple(Members(name=f"rack{rack}", are_domains=True) for rack in sorted(set(plan.racks)))
            self.cluster.put_domain(DomainSpec(name="row", tier=2, members=racks))
        for number, (cpu, memory) in enumerate(plan.deserved):
            guarantee = amounts(cpu=plan.guaranteed[number]) if plan.guaranteed[number] else {}
            self.cluster.put_queue(
                Queue(name=f"q{number}", weight=1 + cpu, deserved=amounts(cpu=cpu, memory=memory), guarantee=guarantee)
            )
        self.order = order or list(range(len(plan.jobs)))
        for is_first in (True, False):
            for number in self.order:
                if plan.jobs[number].at_first is is_first:
                    self._arrive(number, plan.jobs[number])
                    self.reached = None
            if is_first:
                self.cycle(("enqueue", "allocate"))

    def _arrive(self, number: int, drawn: Drawn) -> None:
        job = self.cluster.put_job(
            JobSpec(
                uid=f"j{number}",
                name=f"j{number}",
                queue=drawn.queue,
                priority=drawn.priority,
                created=float(number),
                min_available=drawn.least,
                closeness=WISHES[drawn.wish],
                is_preemptable=True if self.plan.measured else None,
                subgroups=(PAIRS,) if drawn.pairs else (),
            )
        )
        for index, (cpu, memory, priority) in enumerate(drawn.pods):
            name = f"j{number}-{index}"
            request = amounts(cpu=cpu, memory=memory)
            labels = {"pair": str(index // 2)}
            traits = Constraints(traits=((ZONE_KEY, ANY_ZONE),)) if self.plan.measured else NO_CONSTRAINTS
            spec = TaskSpec(uid=name, name=name, request=request, priority=priority, labels=labels, constraints=traits)
            self.cluster.put_task(spec, job)

    def cycle(self, actions: tuple[str, ...] = ()) -> int:
        """One cycle and what follows from it; how much was decided."""
        actions = actions or ACTIONS[self.plan.actions]
        world, begun = self.world, len(self.log)
        world.policy.actions = actions
        self._measure_nodes()
        self.session = Session(world.policy, now=float(self.generation), wall_s=float(self.generation * CYCLE_S))
        self._goes_down(strictly=False, what="the world")
        for name in actions:
            gone: list[Evict] = []
            left: list[Evict] = []
            for decision in action_named(name)(self.session):
                if isinstance(decision, Evict) and name == "shuffle":
                    left.append(decision)
                elif isinstance(decision, Evict):
                    if not gone:
                        self._goes_down(strictly=True, what=name)
                    gone.append(decision)
                elif gone:
                    self._judge(gone)
                    gone = []
                else:
                    self._goes_down(strictly=False, what=name)
                self.log.append((name, type(decision).__name__, decision.task.spec.name, decision.node))
                if isinstance(decision, Bind):
                    self.log[-1] = (*self.log[-1], "bound")
            assert not gone, "nobody goes without a promise to somebody"
            self._goes_down(strictly=bool(left), what=name)
            check(self.cluster)
        self.generation += 1
        self._follow()
        return len(self.log) - begun

    def _goes_down(self, *, strictly: bool, what: str) -> None:
        """Every eviction lowers the measure, and nothing raises it but news."""
        reached = measure(self.session)
        if self.reached is not None:
            assert reached < self.reached if strictly else reached <= self.reached, (
                f"{what}: {self.reached} -> {reached}"
            )
        self.reached = reached

    def _measure_nodes(self) -> None:
        """Measurements come, and the night ends, which is news."""
        if self.plan.measured and self.generation * CYCLE_S == 60:
            self.reached = None
        for number, (cpu, at) in enumerate(self.plan.measured):
            if at == self.generation:
                self.cluster.put_usage(f"n{number}", NodeUsage(cpu=cpu, memory=0, at_s=float(at * CYCLE_S)))
                self.reached = None

    def _follow(self) -> None:
        for task in list(self.cluster.tasks.values()):
            job = task.job
            assert job is not None
            if task.status is TaskStatus.BINDING:
                node = self.cluster.nodes.name(task.row)
                self.cluster.put_task(replace(task.spec, node=node, status=TaskStatus.RUNNING), job)
            elif task.status is TaskStatus.RELEASING and self.generation % 2:  # some take a cycle longer to die
                self.cluster.remove_task(task.uid)
                uid = f"{task.spec.name}#{self.generation}"
                self.cluster.put_task(replace(task.spec, uid=uid, node="", status=TaskStatus.PENDING), job)

    def _judge(self, gone: list[Evict]) -> None:
        """What must be true of the victims of one statement."""
        held = {name: Counter(account.held) for name, account in self.cluster.ledger.accounts.items()}
        for eviction in reversed(gone):
            victim, preemptor = eviction.task, eviction.preemptor
            job = victim.job
            assert job is not None
            assert preemptor is not None
            assert any(task.is_claim for task in preemptor.tasks.values()), "somebody gets the room"
            if eviction.action == "gangpreempt":
                assert job.spec.queue == preemptor.spec.queue
                assert job.spec.priority < preemptor.spec.priority, "only a lower priority makes way for a gang"
            elif eviction.action == "preempt":
                assert job.spec.queue == preemptor.spec.queue
                assert job.spec.priority <= preemptor.spec.priority, "no victim of a higher priority"
                if job is preemptor:
                    assert any(
                        task.spec.priority > victim.spec.priority for task in job.tasks.values() if task.is_claim
                    )
            else:
                assert job.spec.queue != preemptor.spec.queue
                is_rest = self._went_whole(job) and victim is not next(e.task for e in gone if e.task.job is job)
                self._judge_share(job.spec.queue, held[job.spec.queue], victim, is_rest=is_rest)
            held[job.spec.queue].update(victim.shape.request)

    @staticmethod
    def _went_whole(job: Job) -> bool:
        return not any(task.row >= 0 and not task.is_leaving and not task.is_claim for task in job.tasks.values())

    def _judge_share(self, queue: str, left: Counter[str], victim: Task, *, is_rest: bool) -> None:
        """A queue loses only what goes beyond what it deserves, or a gang of which a part does; never its guarantee."""
        deserved = self._deserved(queue)
        has = {name: amount for name, amount in victim.shape.request.items() if amount and name != "pods"}
        own = {name for name in has if name in deserved}
        assert is_rest or not own or any(left[name] + has[name] > deserved[name] for name in own)
        for name, kept in self.cluster.queues[queue].guarantee.items():
            assert left[name] >= kept or not has.get(name)

    def _deserved(self, queue: str) -> dict[str, int]:
        for plugin in self.world.policy.plugins:
            if isinstance(plugin, Proportion):
                return dict(self.session.opened(plugin).deserved.get(queue, {}))
            if isinstance(plugin, Capacity):
                return dict(self.session.opened(plugin).shares[queue].deserved)
        return {}

    def run(self) -> None:
        """Until nothing moves any more."""
        quiet = 0
        for _ in range(MOST_CYCLES):
            quiet = 0 if self.cycle() else quiet + 1
            for job in self.cluster.jobs.values():
                self._check_whole(job)
            if quiet >= 3 and (not self.plan.measured or self.generation > NEWS_UNTIL):
                return
        raise AssertionError(f"still moving after {MOST_CYCLES} cycles: {self.log[-12:]}")

    def _check_whole(self, job: Job) -> None:
        """A gang runs whole or not at all, and is promised all that it lacks or nothing."""
        claims = sum(1 for task in job.tasks.values() if task.is_claim)
        least = job.spec.min_available
        if (
            "gang" in str(PLUGINS[self.plan.plugins]) and not self.plan.measured
        ):  # who must leave by morning breaks gangs
            assert not job.ready_count or job.ready_count >= least, f"{job} is a part of a gang"
            assert not claims or job.ready_count + claims >= least, f"{job} is promised a part of what it needs"
        if job.spec.closeness == WISHES["rack"]:
            self._check_close(job, list(job.tasks.values()))
        for pair in {task.spec.labels["pair"] for task in job.tasks.values()} if job.spec.subgroups else ():
            self._check_close(job, [task for task in job.tasks.values() if task.spec.labels["pair"] == pair])

    def _check_close(self, job: Job, tasks: list[Task]) -> None:
        """Who wants one rack has it, or is promised it."""
        there = [task for task in tasks if task.row >= 0 and not task.is_leaving]
        racks = {self.plan.racks[int(self.cluster.nodes.name(task.row)[1:])] for task in there}
        assert len(racks) <= 1, f"{job} is scattered over racks"


@given(plans())
@settings(max_examples=60, deadline=None)
def test_evictions_end_and_nothing_flaps(plan: Plan) -> None:
    Life(plan).run()


@given(plans(gangs=True))
@settings(max_examples=60, deadline=None)
def test_evictions_for_gangs_end_and_leave_all_gangs_whole_and_together(plan: Plan) -> None:
    Life(plan).run()


@given(plans(movers=True))
@settings(max_examples=60, deadline=None)
def test_evictions_for_nobodys_sake_end_too(plan: Plan) -> None:
    Life(plan).run()


@given(plans() | plans(gangs=True))
@settings(max_examples=30, deadline=None)
def test_the_same_world_decides_the_same_twice(plan: Plan) -> None:
    one, other = Life(plan), Life(plan)
    for _ in range(8):
        one.cycle()
        other.cycle()
    assert one.log == other.log


@given(plans() | plans(gangs=True), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_in_which_objects_came_is_irrelevant(plan: Plan, random) -> None:
    order = list(range(len(plan.jobs)))
    random.shuffle(order)
    one, other = Life(plan), Life(plan, order)
    for _ in range(8):
        one.cycle()
        other.cycle()
    assert one.log == other.log
