"""A trace in virtual time: jobs wait, run, fail and end as the rules say, and everything is counted."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.queue import Queue
from hekla.scheduler.configuration import parse_configuration
from hekla.simulation.simulator import Rules, Simulation, equal_nodes, queues_by_use
from hekla.simulation.trace import GPU, TraceJob

GANGS = 'actions: "allocate"\ntiers:\n- plugins: [{name: priority}, {name: gang}, {name: predicates}]\n'
NO_GANGS = 'actions: "allocate"\ntiers:\n- plugins: [{name: priority}, {name: predicates}]\n'
RECLAIM = """\
actions: "allocate, reclaim"
tiers:
- plugins: [{name: gang, enableReclaimable: false}, {name: conformance}]
- plugins: [{name: predicates}, {name: capacity}]
"""


def job(name, at, run_s, gpus=1, tasks=1, queue="a"):
    return TraceJob(name=name, submit_s=at, run_s=run_s, queue=queue, tasks=tasks, request={"cpu": 1000, GPU: gpus})


def play(jobs, *, nodes=1, gpus=4, text=GANGS, queues=None, **rules):
    made = queues or [Queue(name=name) for name in sorted({one.queue for one in jobs})]
    have = list(equal_nodes(nodes, {"cpu": 64000, GPU: gpus}))
    return Simulation(have, made, jobs, parse_configuration(text), Rules(**rules)).run()


def fates(outcome):
    return {fate.name: (fate.started_s, fate.ended_s) for fate in outcome.fates}


def test_who_comes_to_a_full_cluster_starts_when_another_ends():
    outcome = play([job("x", 0, 100, gpus=4), job("y", 10, 50, gpus=4)])
    assert fates(outcome) == {"x": (0, 100), "y": (100, 150)}
    assert outcome.waits().mean == 45
    assert outcome.completion_times().most == 140
    assert outcome.utilisation == 1.0


def test_cycles_keep_their_distance():
    outcome = play([job("x", 0, 100), job("y", 1, 100), job("z", 2, 100)], window_s=30)
    assert fates(outcome) == {"x": (0, 100), "y": (30, 130), "z": (30, 130)}
    assert outcome.cycles == 4


def test_a_gang_waits_whole_and_a_smaller_job_passes():
    outcome = play([job("x", 0, 100, gpus=2), job("gang", 1, 10, gpus=4, tasks=2), job("y", 2, 10)], nodes=2)
    assert fates(outcome) == {"x": (0, 100), "gang": (100, 110), "y": (2, 12)}


def test_in_a_strict_line_nothing_passes_the_head():
    jobs = [job("x", 0, 100, gpus=2), job("large", 1, 10, gpus=4), job("y", 2, 10, queue="b")]
    outcome = play(jobs, line="all", is_strict=True)
    assert fates(outcome) == {"x": (0, 100), "large": (100, 110), "y": (110, 120)}
    assert [fate.queue for fate in outcome.fates] == ["a", "a", "b"], "a fate is told by the queue of the trace"


def test_without_gangs_two_jobs_may_hold_what_each_other_needs():
    blockers = [job("b0", 0, 50, gpus=4), job("b1", 0, 60, gpus=4)]
    jobs = [*blockers, job("x", 1, 10, gpus=4, tasks=2), job("y", 2, 10, gpus=4, tasks=2)]
    outcome = play(jobs, nodes=2, text=NO_GANGS)
    assert fates(outcome)["x"] == (60, 70)
    assert outcome.held - outcome.useful == pytest.approx(4 * 10), (
        "the half that started early held four GPUs for nothing"
    )


def test_a_job_that_never_fits_stays_unfinished_and_the_run_ends():
    outcome = play([job("huge", 0, 10, gpus=8), job("x", 5, 20)])
    assert outcome.unfinished == 1
    assert outcome.waits("8").mean == outcome.end_s == 25


def test_what_is_evicted_starts_again_from_its_checkpoint():
    queues = [Queue(name="a", deserved={GPU: 2, "cpu": 2000}), Queue(name="b", deserved={GPU: 2, "cpu": 2000})]
    jobs = [job(f"a{n}", 0, 1000, queue="a") for n in range(4)] + [job("b0", 250, 100, queue="b")]
    outcome = play(jobs, text=RECLAIM, queues=queues, checkpoint_s=100, grace_s=30)
    victim = next(fate for fate in outcome.fates if fate.evictions)
    assert outcome.evictions == 1
    assert fates(outcome)["b0"] == (280, 380)
    assert victim.lost_s == 50
    assert victim.ended_s == 380 + 800
    assert outcome.lost == 50


def test_without_checkpoints_everything_is_lost_and_with_perfect_ones_nothing():
    queues = [Queue(name="a", deserved={GPU: 2, "cpu": 2000}), Queue(name="b", deserved={GPU: 2, "cpu": 2000})]
    jobs = [job(f"a{n}", 0, 1000, queue="a") for n in range(4)] + [job("b0", 250, 100, queue="b")]
    lost = [play(jobs, text=RECLAIM, queues=queues, checkpoint_s=every).lost for every in (inf, 0)]
    assert lost == [250, 0]


def test_a_node_that_fails_takes_its_jobs_along_and_comes_back():
    outcome = play([job("x", 0, 5000, gpus=4)], faults_every_s=3000, repair_s=100, checkpoint_s=500, seed=3)
    (fate,) = outcome.fates
    assert fate.restarts > 0
    assert fate.ended_s == pytest.approx(5000 + fate.lost_s + 100 * fate.restarts)
    assert outcome.unfinished == 0


def test_a_run_with_faults_ends_though_a_job_can_never_start():
    assert play([job("huge", 0, 10, gpus=8)], faults_every_s=100).unfinished == 1


def test_the_end_of_time_stops_everything():
    outcome = play([job("x", 0, 1000)], until_s=500)
    assert (outcome.unfinished, outcome.end_s) == (1, 500)


def test_fairness_looks_at_what_queues_hold_of_what_they_are_entitled_to():
    jobs = [job(f"a{n}", 0, 1000, queue="a") for n in range(4)] + [job(f"b{n}", 1, 1000, queue="b") for n in range(4)]
    outcome = play(jobs, sample_s=100)
    first = outcome.samples[1]
    assert (first.held, first.asked, first.waiting) == (4, 8, 4)
    assert first.jain == 0.5, "one of two queues has everything"
    assert outcome.samples[-1].jain == -1, "who is alone has no rival"
    assert outcome.contended == pytest.approx(9 / 20, abs=0.06)


def test_queues_weigh_what_their_jobs_use():
    queues = queues_by_use([job("x", 0, 300, queue="a"), job("y", 0, 100, queue="b")], capacity=8)
    assert [(q.name, q.weight, q.deserved[GPU]) for q in queues] == [("a", 75, 6), ("b", 25, 2)]


@st.composite
def traces(draw):
    number = draw(st.integers(1, 12))
    return [
        job(f"j{n}", draw(st.integers(0, 300)), draw(st.integers(1, 400)), draw(st.sampled_from([1, 1, 2, 4])),
            draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from("ab")))
        for n in range(number)
    ]  # fmt: skip


@given(traces(), st.sampled_from([GANGS, RECLAIM]), st.integers(0, 3), st.sampled_from([inf, 900.0]))
@settings(max_examples=40, deadline=None)
def test_the_same_seed_plays_the_same_and_no_work_is_lost_from_the_books(jobs, text, seed, faults_every_s):
    rules = {"nodes": 3, "seed": seed, "faults_every_s": faults_every_s, "repair_s": 50, "text": text, "until_s": 20000}
    one, two = play(jobs, **rules), play(jobs, **rules)
    assert one == two
    for fate in one.fates:
        if fate.ended_s >= 0:
            assert fate.ended_s >= fate.started_s + fate.run_s - 1e-6
    if not one.unfinished:
        done = sum(fate.size * (fate.run_s + fate.lost_s) for fate in one.fates)
        assert one.useful == pytest.approx(done), "GPU-seconds in use are those of the work, and of the work done twice"
    assert one.useful <= one.held + 1e-6


RESERVATIONS = GANGS.replace("{name: gang}", "{name: gang}, {name: reservation, arguments: {defaultEstimate: 100s}}")


def small_ones(*, run_s=100):
    """A job of one GPU every ten seconds, so that four GPUs are never free at once by chance."""
    return [job(f"s{number}", 10 * number, run_s) for number in range(40)]


def test_a_gang_that_room_is_kept_for_starts_while_small_jobs_keep_coming():
    jobs = [*small_ones(), job("gang", 45, 10, gpus=4)]
    assert fates(play(jobs))["gang"][0] > 900, "without reservations it waits until all others have run"
    assert fates(play(jobs, text=RESERVATIONS))["gang"] == (200, 210), "when the one that came before it has run, too"


def test_pods_say_when_they_started_so_that_the_ends_that_are_expected_do_not_move_with_the_clock():
    """Or all would be expected to run for another 100 s in every cycle, and who ends before were never found."""
    jobs = [job("x", 0, 100, gpus=3), job("gang", 10, 10, gpus=4), job("late", 30, 60), job("long", 20, 900)]
    wanted = {"x": (0, 100), "gang": (100, 110), "late": (110, 170), "long": (110, 1010)}
    assert fates(play(jobs, text=RESERVATIONS)) == wanted


def test_estimates_from_the_past_are_of_what_has_ended():
    """Who is said to be short passes a job for which room is kept, and is so said once five like it have ended."""
    short = [job(f"short{number}", 10 * number, 5, queue="b") for number in range(8)]
    late = job("late", 120, 5, queue="b")
    jobs = [*short, job("x", 90, 100, gpus=3), job("gang", 100, 10, gpus=4), late]
    assert fates(play(jobs, text=RESERVATIONS))["late"][0] >= 190, "taken to run as long as the default says"
    assert fates(play(jobs, text=RESERVATIONS, learns_from=50))["late"] == (120, 125)
