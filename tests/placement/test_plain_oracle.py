"""The benches' worlds, decided by the engine and judged pod by pod by an oracle that shares no code with it."""

from collections import Counter
from dataclasses import replace

import pytest
from bench.placement import CASES, Case, worlds
from bench.placement.evidence import plug_ins, terms
from bench.placement.measure import USUAL, Fill, decide, decisions, warmed
from bench.placement.oracle import Inputs, Judge, verdict_on
from bench.placement.storm import unsound

from hekla.placement.constraint import Constraints, Effect, NodeTerm, Operator, PreferredTerm, Requirement, Taint
from hekla.placement.model import TaskStatus
from hekla.testing.cluster import World

NODES, PODS = 150, 240


def filled(case: Case) -> World:
    made = warmed(NODES, **case.details)
    case.fill(made, case.number(PODS, NODES))
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_decision_is_the_plain_oracles(case: Case) -> None:
    verdict = verdict_on(filled(case))
    assert verdict.compared >= NODES // 3


@pytest.mark.parametrize("fill", [worlds.queued, worlds.different, worlds.mixed, worlds.lone])
@pytest.mark.parametrize("left", [0, 40])
def test_where_nodes_differ_in_their_soft_taints_the_oracle_decides_the_same(fill: Fill, left: int) -> None:
    made = warmed(NODES, fullness=0.2, is_shy=True)
    if left:
        worlds.fill_up(made, leave=left)  # the worst of the nodes that can be had fill up on the way
    fill(made, 600)
    verdict = verdict_on(made)
    assert verdict.compared


def test_who_finds_no_room_finds_none_by_the_oracle_either() -> None:
    made = warmed(NODES, fullness=0.2)
    worlds.fill_up(made, leave=5)
    worlds.mixed(made, 300)
    verdict = verdict_on(made)
    assert verdict.compared
    assert verdict.refused


def test_an_engine_that_weighs_otherwise_is_found_out() -> None:
    case = next(case for case in CASES if case.fill is worlds.lone)
    tiers = (worlds.PLUGINS[0], (*worlds.PLUGINS[1][:-2], ("nodeorder", {"imagelocality.weight": 0}), "binpack"))
    made = filled(replace(case, details={"plugins": tiers}))
    inputs = Inputs.of(made)
    told = [(uid.split(" ", 1)[1], node) for uid, node in decisions(made)]
    assert Judge(inputs).compare(told).differing


def test_an_engine_that_gives_out_turns_otherwise_is_found_out() -> None:
    made = filled(next(case for case in CASES if case.fill is worlds.queued))
    inputs = Inputs.of(made)
    told = [(uid.split(" ", 1)[1], node) for uid, node in decisions(made)]
    assert Judge(inputs).compare([told[1], told[0], *told[2:]]).differing


def test_evictions_of_a_storm_are_sound() -> None:
    made = warmed(NODES, fullness=0.2)
    worlds.fill_up(made)
    worlds.urgent(made, 5)
    decide(made, (*USUAL, "preempt"))
    faults, evictions = unsound(made)
    assert not faults
    assert evictions


@pytest.mark.parametrize("was", [TaskStatus.RUNNING, TaskStatus.RELEASING], ids=["for nothing", "too few"])
def test_an_eviction_that_is_not_sound_is_found_out(was: TaskStatus) -> None:
    made = warmed(20, fullness=0.2)
    worlds.fill_up(made)
    worlds.urgent(made, 1)
    decide(made, (*USUAL, "preempt"))
    task = next(task for task in made.cluster.placed() if task.status is was and task.uid.startswith("low"))
    assert task.job is not None
    task.job.move(task, TaskStatus.RELEASING if was is TaskStatus.RUNNING else TaskStatus.RUNNING)
    assert unsound(made)[0]


@pytest.mark.slow
def test_every_plug_in_and_every_term_matters_in_some_world() -> None:
    cases = [case for case in CASES if "is_shy" not in case.details]  # what is asked there is asked elsewhere too
    decided = sum(terms(200, cases).values(), start=Counter[str]())
    needed = {
        "leastrequested", "balancedresource", "nodeaffinity", "podaffinity", "tainttoleration", "imagelocality",
        "podtopologyspread", "binpack", "network-topology-aware", "cordon", "taints", "selector", "spread", "anti-affinity",
    }  # fmt: skip
    assert {name for name in needed if not decided[name]} == set()
    assert {name for name, (differ, _) in plug_ins(100).items() if not differ} == set()


def test_taints_that_nodes_have_more_or_fewer_of_are_weighed_as_the_oracle_does() -> None:
    made = warmed(NODES)
    names = ("noisy", "old", "slow")
    for number in range(NODES):
        spec = made.cluster.nodes.specs[made.cluster.nodes.row_of[f"n{number}"]]
        mild = tuple(Taint(name, "", Effect.PREFER_NO_SCHEDULE) for name in names[: (number + 2) % 4])
        hard = tuple(taint for taint in spec.taints if taint.effect is not Effect.PREFER_NO_SCHEDULE)
        made.cluster.put_node(replace(spec, taints=hard + mild, is_schedulable=number % 4 != 1))
    worlds.lone(made, 300)
    verdict = verdict_on(made)
    assert verdict.compared
    assert not verdict.differing


@pytest.mark.parametrize("fill", [worlds.lone, worlds.gangs])
def test_nodes_that_would_rather_be_left_alone_fill_up_as_the_oracle_fills_them(fill: Fill) -> None:
    made = warmed(40, is_shy=True)
    fill(made, 400)
    verdict = verdict_on(made)
    assert verdict.compared > 100
    assert verdict.refused


@pytest.mark.parametrize("size", [1, 6])
def test_who_comes_after_the_worst_node_is_full_compares_the_others_with_one_another(size: int) -> None:
    """Each of a run takes what is best beside the nodes that can still be had, and not beside those when the run began."""
    made = World(plugins=worlds.PLUGINS)
    old, slow = (Taint(name, "", Effect.PREFER_NO_SCHEDULE) for name in ("old", "slow"))
    has = {"cpu": 100, "memory": 100}
    made.node("a", taints=[old, slow], labels={"liked": "yes", "more": "yes"}, images={"big": 4 << 30}, pods=3, **has)
    made.node("b", taints=[old], labels={"liked": "yes"}, **has)
    made.node("c", **has)
    made.running("lopsided", "c", cpu=90, memory=1)
    terms = [(60, "liked"), (40, "more")]
    likes = tuple(PreferredTerm(w, NodeTerm((Requirement(key, Operator.IN, ("yes",)),))) for w, key in terms)
    for number in range(6 // size):
        wishes = Constraints(images=("big",), preferred_nodes=likes)
        made.job(f"g{number}", tasks=size, cpu=1, memory=1, constraints=wishes)
    assert verdict_on(made).compared == 6
    assert Counter(made.cluster.nodes.name(t.row) for t in made.cluster.tasks.values()) == {"a": 3, "c": 4}
