"""Whether the time of plug-ins is told by Kthena's name and labels, and changes nothing that is chosen."""

import itertools

from hekla.serving.router.choosing import Chain
from hekla.serving.router.explaining import explain
from hekla.serving.router.plugin_times import NAME, ONE_IN, PluginTimes, timed
from hekla.serving.router.policies.kv_cache_usage import KvCacheUsage
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.soonest import Soonest
from serving.router.poolkit import pool_of, question


def ticking():
    """A clock on which every look takes four milliseconds."""
    looks = itertools.count()
    return lambda: next(looks) * 0.004


def chosen_of(policy, times, count=33):
    pool = pool_of(3, timed(policy, times))
    for number, one in enumerate(pool.members):
        one.in_flight, one.kv_usage = 3 - number, 0.5
    return [pool.choose(pool.look(question("x"), 0.0), pool.members).name for _ in range(count)]


def test_filters_and_scores_of_one_choice_in_sixteen_are_told():
    times = PluginTimes(ticking())
    chain = Chain(filters=(LeastRequest(),), scorers=((LeastRequest(), 1.0), (KvCacheUsage(), 1.0)))
    assert chosen_of(chain, times, 2 * ONE_IN + 1) == ["e2"] * (2 * ONE_IN + 1)
    told = list(times.lines())
    labels = 'model="m",plugin="least-request",type="filter"'
    assert f"{NAME}_count{{{labels}}} 3" in told
    assert f'{NAME}_bucket{{{labels},le="0.001"}} 0' in told
    assert f'{NAME}_bucket{{{labels},le="0.005"}} 3' in told
    assert f"{NAME}_sum{{{labels}}} 0.012" in told
    assert {line.split(",")[1] for line in told if line.startswith(f"{NAME}_count")} == {
        'plugin="least-request"',
        'plugin="gpu-usage"',
    }


def test_a_chain_whose_filters_leave_nobody_is_measured_as_far_as_it_goes():
    times = PluginTimes(ticking())
    pool = pool_of(2, timed(Chain(filters=(LeastRequest(max_waiting=1),), scorers=((KvCacheUsage(), 1.0),)), times))
    for one in pool.members:
        one.waiting = 5
    assert pool.choose(pool.look(question("x"), 0.0), pool.members) is None
    assert not [line for line in times.lines() if "score" in line and not line.startswith("#")]


def test_the_default_policy_counts_as_one_score_and_is_explained_by_its_own_name():
    times = PluginTimes(ticking())
    assert chosen_of(Soonest(), times) == chosen_of(Soonest(), PluginTimes(ticking()))
    assert f'{NAME}_count{{model="m",plugin="soonest",type="score"}} 3' in list(times.lines())
    pool = pool_of(2, timed(Soonest(), times))
    assert explain(pool, question("x"), 0.0)["policy"] == "soonest"


def test_models_beyond_the_bound_are_counted_together(monkeypatch):
    monkeypatch.setattr("hekla.serving.router.plugin_times.MOST_ROWS", 2)
    times = PluginTimes(ticking())
    for number in range(5):
        times.note(f"m{number}", "p", "score", 0.1)
    assert f'{NAME}_count{{model="_other",plugin="p",type="score"}} 3' in list(times.lines())
