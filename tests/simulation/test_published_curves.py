"""The fragmentation gradient on Alibaba's trace lands where its authors' own simulator did."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.placement.model import TaskSpec
from hekla.placement.plugins.fgd import Fgd
from hekla.placement.registry import build_plugin
from hekla.simulation.inflation import fill, inflate
from hekla.simulation.openb import MODEL_LABEL, mix_of, read_nodes, read_pods

OPENB = Path(__file__).parents[2] / "bench" / "data" / "openb"
HALF_A_POINT = 0.5
MIXES = (
    "default", "gpushare100", "gpushare40", "gpushare60", "gpushare80", "multigpu20", "multigpu50", "cpu050", "cpu250",
    "gpuspec10", "gpuspec33",
)  # fmt: skip
SEEDS = {"gpuspec10": 6}
"""Where pods ask for models, what happens to be drawn moves the middle of a curve by half a point; elsewhere 3 are enough."""

A_THIRD_OF_A_POINT = 0.3


def rows_of(name):
    return gzip.decompress((OPENB / f"{name}.csv.gz").read_bytes()).decode().splitlines()


def published(kind, mix):
    for row in csv.DictReader(rows_of(f"golden_{kind}")):
        if (row["workload"], row["policy"]) == (mix, "FGD"):
            return [float(row[str(percent)]) for percent in range(101)]
    raise AssertionError(f"no curve for {mix}")


@pytest.fixture
def compiled():
    if not kernels.use_compiled():
        pytest.skip("the plain kernels take minutes for this")
    yield
    kernels.use(twin)


def curves(mix, seeds, until):
    nodes, pods = list(read_nodes(rows_of("nodes"))), list(read_pods(rows_of(f"pods_{mix}")))
    kinds = mix_of(pods)
    return [inflate(nodes, pods, tiers_of(kinds), kinds, seed=seed, until=until) for seed in range(seeds)]


def tiers_of(kinds):
    return [[build_plugin("predicates"), Fgd(workload=kinds, model_label=MODEL_LABEL)]]


def farthest(mix, seeds, to):
    """The largest distance of the mean curves from the published ones, in points: (allocated, lost)."""
    ours = curves(mix, seeds, (to + 2) / 100)
    return tuple(
        max(abs(fmean(getattr(one, part)[percent] for one in ours) - theirs[percent]) for percent in range(1, to + 1))
        for part in ("allocated", "lost") for theirs in [published(part, mix)]
    )  # fmt: skip


def test_the_beginning_of_a_curve_is_as_published(compiled):
    allocated, lost = farthest("multigpu50", seeds=1, to=15)
    assert allocated <= HALF_A_POINT
    assert lost <= HALF_A_POINT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mix", MIXES)
def test_the_mean_curves_stay_within_half_a_point_of_the_published_ones(mix, compiled):
    allocated, lost = farthest(mix, seeds=SEEDS.get(mix, 3), to=100)
    assert allocated <= HALF_A_POINT
    assert lost <= HALF_A_POINT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mix", ["cpu250", "gpuspec10"])
def test_the_authors_own_arrivals_and_order_of_nodes_give_the_curve_of_that_very_run(mix, compiled):
    run = json.loads(gzip.decompress((OPENB / "authors_runs.json.gz").read_bytes()))[mix]
    nodes, pods = list(read_nodes(rows_of("nodes"))), list(read_pods(rows_of(f"pods_{mix}")))
    by_name = [replace(nodes[index], name=f"{place:04d}") for place, index in enumerate(run["nodes"])]
    kinds = mix_of(pods)
    ours = fill(by_name, (pods[index] for index in run["pods"]), tiers_of(kinds), kinds).allocated
    apart = [abs(mine - theirs) for mine, theirs in zip(ours, run["allocated"], strict=False)]
    assert max(apart[1:]) <= A_THIRD_OF_A_POINT


def test_of_kinds_that_are_equally_many_the_larger_are_kept():
    def pods(*cpus):
        return [TaskSpec(uid=str(n), name=str(n), request={"cpu": cpu, "memory": 1}) for n, cpu in enumerate(cpus)]

    mix = mix_of(pods(*[1000] * 18, 2000, 3000))
    assert [kind.cpu_milli for kind in mix] == [1000, 3000]
