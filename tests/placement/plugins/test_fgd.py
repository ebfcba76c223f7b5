"""The fragmentation gradient: the formula by hand, both kernels alike, and arguments that cannot be used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.framework import DeviceChoice, RowScorer
from hekla.placement.kernels import fragmentation
from hekla.placement.plugins.fgd import Fgd, PodKind
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.scheduler.configuration import parse_configuration
from hekla.testing.cluster import World

WHOLE_GPU = {"fgd.workload": [{"share": 1, "gpus": 1}]}


def world_with(arguments, **nodes):
    world = World(plugins=(("gang",), ("predicates", ("fgd", arguments))))
    for name, has in nodes.items():
        world.node(name, cpu=64, memory=64, **has)
    return world


def scores(world, **asks):
    job = world.job("asked", cpu=1, **asks)
    (task,) = job.tasks.values()
    (plugin,) = world.policy.asked(RowScorer)
    return plugin.score_rows(world.cluster.nodes, task.shape, np.arange(len(world.cluster.nodes))).tolist()


def test_a_part_of_the_last_whole_gpu_loses_what_is_left_of_it():
    # 700 thousandths are then of no use to who wants whole GPUs: floor(100 / (1 + e ** 0.7)) = 33
    assert scores(world_with(WHOLE_GPU, n1={"shared_gpu": 1}), shared_gpu=0.3) == pytest.approx([0.33])


def test_what_was_lost_already_is_a_gain_to_use():
    world = world_with(WHOLE_GPU, n1={"shared_gpu": 1})
    world.running("old", "n1", shared_gpu=0.4)
    # 600 were lost before and 200 are after: floor(100 / (1 + e ** -0.4)) = 59
    assert scores(world, shared_gpu=0.4) == pytest.approx([0.59])


def test_shares_of_the_mix_weigh_what_is_lost():
    mix = {"fgd.workload": [{"share": 1, "gpus": 1}, {"share": 3, "gpuMilli": 500}]}
    # a quarter of the mix loses the 700, the others can use them: floor(100 / (1 + e ** 0.175)) = 45
    assert scores(world_with(mix, n1={"shared_gpu": 1}), shared_gpu=0.3) == pytest.approx([0.45])


def test_the_number_of_buckets_is_how_finely_nodes_are_told_apart():
    coarse = scores(world_with({**WHOLE_GPU, "fgd.buckets": 2}, n1={"shared_gpu": 1}), shared_gpu=0.3)
    assert coarse == [0.0]


def test_a_part_goes_to_the_gpu_that_leaves_least_lost():
    world = world_with(WHOLE_GPU, n1={"shared_gpu": 3})
    world.running("old", "n1", shared_gpu=0.2)
    job = world.job("part", cpu=1, shared_gpu=0.3)
    world.schedule()
    assert [task.devices for task in job.tasks.values()] == [(0,)]


def test_it_can_be_configured_beside_others():
    text = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: fgd
    arguments:
      fgd.weight: 3
      fgd.workload:
      - {share: 2, cpu: 500m, gpuMilli: 250, models: [T4, A10]}
"""
    configuration = parse_configuration(text)
    assert not configuration.findings
    plugin = configuration.tiers[0][2]
    assert isinstance(plugin, Fgd)
    assert isinstance(plugin, DeviceChoice)
    assert plugin.weight == 3
    assert plugin.workload == (PodKind(share=2, cpu_milli=500, gpus=1, gpu_milli=250, models=("T4", "A10")),)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"fgd.buckets": 0}, "argument fgd.buckets is 0; a whole number from 1 up is expected"),
        ({"fgd.workload": []}, "a list is expected"),
        ({"fgd.workload": [{"gpus": 1}]}, "a mapping with share"),
        ({"fgd.workload": [{"share": 1, "gpu": 1}]}, "a mapping with share"),
        ({"fgd.workload": [{"share": 0, "gpus": 1}]}, "no share above 0"),
        ({"fgd.workload": [{"share": 1, "gpus": 2, "gpuMilli": 500}]}, "a part, from 1 to 999, is of one GPU"),
        ({"fgd.workload": [{"share": 1, "cpu": "many"}]}, "cpu 'many'; a quantity is expected"),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(arguments, sentence):
    with pytest.raises(ArgumentError, match=sentence.replace("(", r"\(")):
        build_plugin("fgd", arguments)


amounts = st.integers(-200, 1000)


@st.composite
def questions(draw):
    rows, devices, kinds = draw(st.integers(1, 6)), draw(st.integers(0, 8)), draw(st.integers(1, 5))
    left = [
        [draw(st.sampled_from([0, 0, 200, 500, 1000, 1000, draw(amounts)])) for _ in range(rows)]
        for _ in range(devices)
    ]
    return (
        np.array([draw(st.integers(-5, 64)) * 1000 for _ in range(rows)], np.int64),
        np.array(left, np.int64).reshape(devices, rows),
        np.array([draw(st.integers(0, 7)) for _ in range(rows)], np.int64),
        draw(st.integers(0, 20)) * 1000,
        draw(st.sampled_from([0, 1, 200, 999, 1000, 2000, 8000])),
        *(
            np.array([draw(values) for _ in range(kinds)], np.int64)
            for values in (
                st.sampled_from([0, 1000, 8000]), st.integers(0, 8), st.sampled_from([1, 300, 1000]), st.integers(0, 7),
                st.integers(0, 1_000_000),
            )
        ),
    )  # fmt: skip


@given(questions())
@settings(max_examples=200, deadline=None)
def test_both_forms_of_the_kernel_agree_to_the_bit(question):
    numba = pytest.importorskip("numba")
    assert numba
    from hekla.placement.kernels import compiled_fragmentation

    rows = len(question[0])
    told = []
    for form in (fragmentation, compiled_fragmentation):
        growth, device = np.empty(rows, np.int64), np.empty(rows, np.int32)
        form.gradients(*question, growth, device)
        told.append((growth.tolist(), device.tolist()))
    assert told[0] == told[1]
