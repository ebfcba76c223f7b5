"""The fragmentation gradient on Alibaba's trace lands where its authors' own simulator did."""

import csv
import gzip
from pathlib import Path
from statistics import fmean

import pytest

from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.placement.plugins.fgd import Fgd
from hekla.placement.registry import build_plugin
from hekla.simulation.inflation import inflate
from hekla.simulation.openb import MODEL_LABEL, mix_of, read_nodes, read_pods

OPENB = Path(__file__).parents[2] / "bench" / "data" / "openb"
HALF_A_POINT = 0.5


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mix", ["default", "gpushare100"])
def test_the_mean_curves_stay_within_half_a_point_of_the_published_ones(mix, compiled):
    nodes, pods = list(read_nodes(rows_of("nodes"))), list(read_pods(rows_of(f"pods_{mix}")))
    kinds = mix_of(pods)
    tiers = [[build_plugin("predicates"), Fgd(workload=kinds, model_label=MODEL_LABEL)]]
    curves = [inflate(nodes, pods, tiers, kinds, seed=seed, until=1.02) for seed in range(3)]
    for percent in range(1, 101):
        allocated, lost = (fmean(getattr(one, part)[percent] for one in curves) for part in ("allocated", "lost"))
        assert allocated == pytest.approx(published("allocated", mix)[percent], abs=HALF_A_POINT)
        assert lost == pytest.approx(published("lost", mix)[percent], abs=HALF_A_POINT)
