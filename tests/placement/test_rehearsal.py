from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints, HostPort, Operator, PodSelector, PodTerm, Requirement
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.statement import Statement
from hekla.testing.cluster import World, check

APART = Constraints(
    anti_affinity=(PodTerm("zone", PodSelector(labels=(Requirement("app", Operator.IN, ("db",)),), namespaces=None)),),
    ports=(HostPort("TCP", 80),),
)


def busy_world() -> World:
    world = World(
        plugins=(("priority", "gang"), ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"))
    )
    for number in range(4):
        world.node(f"n{number}", cpu=8, gpu=4, labels={"zone": f"z{number % 2}"})
    world.job("db", tasks=2, cpu=1, constraints=APART, labels={"app": "db"})
    world.job("train", tasks=3, cpu=1, gpu=2)
    world.schedule()
    return world


def state(world: World) -> tuple[object, ...]:
    cluster = world.cluster
    return (
        cluster.nodes.used.tobytes(), cluster.nodes.idle.tobytes(), cluster.nodes.share.tobytes(), cluster.nodes.version,
        cluster.nodes.log_length, dict(cluster.nodes.row_of), cluster.gains, cluster.tallies.changes,
        cluster.ledger.changes, cluster.ledger.eases,
        {name: (dict(a.held), dict(a.asked), dict(a.firm)) for name, a in cluster.ledger.accounts.items()},
        {job.uid: (list(job.statuses), job.failed_at, job.spec, job.phase) for job in cluster.jobs.values()},
        {task.uid: (task.row, task.status, task.shape, task.shape.uses, task.spec) for task in cluster.tasks.values()},
        {phase: list(line) for phase, line in cluster.lines.by_phase.items()}, list(cluster.lines.for_nodes),
    )  # fmt: skip


def test_whatever_is_tried_in_a_rehearsal_leaves_the_cluster_as_it_was() -> None:
    world = busy_world()
    world.job("next", tasks=4, cpu=1, gpu=2, constraints=APART, labels={"app": "db"})
    before = state(world)
    rehearsal = Rehearsal(world.policy)
    with (
        rehearsal.without("train"),
        rehearsal.without("db"),
        rehearsal.with_nodes([NodeSpec(name="n9", allocatable={})]),
        rehearsal.changed("next", min_available=1, at_most={"nvidia.com/gpu": 1, "cpu": 5}) as job,
    ):
        statement = Statement(rehearsal.cluster, rehearsal.policy.placer)
        assert statement.allocate_run(list(job.pending())) > 0
        list(statement.commit())
    assert state(world) == before
    check(world.cluster)


def test_a_rehearsal_is_itself_again_after_each_change() -> None:
    world = busy_world()
    rehearsal = Rehearsal(world.policy)
    for uid in list(rehearsal.cluster.jobs):
        rehearsal.job(uid)
    used = rehearsal.cluster.nodes.used.tobytes()
    with rehearsal.without("train"):
        assert rehearsal.cluster.nodes.total_used("nvidia.com/gpu") == 0
    with rehearsal.changed("train", min_available=1, at_most={"nvidia.com/gpu": 1}):
        pass
    assert rehearsal.cluster.nodes.used.tobytes() == used
    check(rehearsal.cluster)


def test_a_rehearsal_decides_as_the_cluster_does() -> None:
    world = busy_world()
    world.job("next", tasks=2, cpu=1, gpu=1)
    rehearsal = Rehearsal(world.policy)
    job = rehearsal.job("next")
    with rehearsal.session().statement() as statement:
        statement.allocate_run(list(job.pending()))
        rehearsed = {task.uid: rehearsal.cluster.nodes.name(task.row) for task in statement.placed}
    assert world.schedule() == rehearsed
