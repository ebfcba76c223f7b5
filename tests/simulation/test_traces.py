"""Readers of public traces: what a line means, and what is said of one that cannot be read."""

import pytest

from hekla.placement.devices.shares import GPU_MILLI
from hekla.placement.plugins.fgd import PodKind
from hekla.simulation.inflation import arrivals
from hekla.simulation.openb import MODEL_LABEL, mix_of, read_nodes, read_pods
from hekla.simulation.trace import GPU, TraceError, read_philly

PHILLY = ["timestamp,duration,num_gpus,cluster", "2017-10-01 00:01:00,60,1,red", "2017-10-01 00:00:00,30.0,20,blue"]
PODS = [
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec",
    "a,1000,1024,1,300,",
    "b,2000,1024,2,1000,V100|P100",
    "c,3000,1024,0,0,",
    "d,1000,2048,1,300,",
]


def test_philly_jobs_come_in_order_of_time_and_large_ones_take_whole_nodes():
    first, second = read_philly(PHILLY)
    assert (first.queue, first.submit_s, first.run_s, first.tasks, first.request[GPU]) == ("blue", 0, 30, 3, 7)
    assert (second.queue, second.submit_s, second.tasks, second.asks(GPU)) == ("red", 60, 1, 1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("yesterday,60,1,red", "line 2: timestamp is 'yesterday'; a time like 2017-10-09 07:01:55 is expected"),
        ("2017-10-01 00:00:00,long,1,red", "line 2: duration is 'long'; a number from 0 up is expected"),
        ("2017-10-01 00:00:00,60,-1,red", "line 2: num_gpus is '-1'; a number from 0 up is expected"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line, sentence):
    with pytest.raises(TraceError) as error:
        list(read_philly([PHILLY[0], line]))
    assert str(error.value) == sentence


def test_openb_pods_ask_for_thousandths_of_gpus_and_for_models():
    a, b, c, _ = read_pods(PODS)
    assert (a.request[GPU_MILLI], b.request[GPU_MILLI]) == (300, 2000)
    assert GPU_MILLI not in c.request
    assert b.constraints.node_affinity[0].labels[0].values == ("P100", "V100")


def test_a_part_of_a_gpu_beyond_a_whole_one_is_refused():
    with pytest.raises(TraceError, match="line 2: gpu_milli is 1200; from 1 to 1000 of one GPU can be asked for"):
        list(read_pods([PODS[0], "a,1000,1024,1,1200,"]))


def test_openb_nodes_have_their_gpus_and_model():
    (node,) = read_nodes(["sn,cpu_milli,memory_mib,gpu,model", "n1,64000,1024,8,G2"])
    assert (node.allocatable[GPU_MILLI], node.labels) == (8000, {MODEL_LABEL: "G2"})


def test_the_mix_is_of_the_kinds_that_most_pods_are_of():
    pods = list(
        read_pods(
            [*PODS[:1], *[f"p{n},1000,1024,1,300," for n in range(95)], *[f"q{n},{n},1,0,0," for n in range(1, 6)]]
        )
    )
    assert mix_of(pods) == (PodKind(share=95, cpu_milli=1000, gpus=1, gpu_milli=300),)


def test_pods_arrive_until_so_much_is_asked_for_and_a_seed_is_an_order():
    pods = list(read_pods(PODS))
    order = [pod.uid for pod in arrivals(pods, 10_000, seed=1, until=1.3)]
    assert sorted(order[:4]) == ["a", "b", "c", "d"]
    assert order == [pod.uid for pod in arrivals(pods, 10_000, seed=1, until=1.3)]
    asked = sum(next(p for p in pods if p.uid == uid).request.get(GPU_MILLI, 0) for uid in order)
    assert 11_000 < asked <= 13_000
