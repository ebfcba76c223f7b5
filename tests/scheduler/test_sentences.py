"""The sentences that tools grep for, to the letter: Volcano's for those who asked for it, kube-scheduler's for the others."""

import asyncio

import pytest

from hekla.placement.constraint import Refusal
from hekla.placement.explain import TOO_MANY_PODS, Explanation
from hekla.placement.topology.refusals import CloseExplanation
from hekla.scheduler.sentences import no_node
from scheduler.schedulerkit import add_group, add_pod, group_condition, scheduled_condition, until, world

CPU, TAINT = Refusal("insufficient/cpu", "Insufficient cpu"), Refusal("taint", "node(s) had untolerated taint {a: }")
CLOSE = CloseExplanation(2, 1, ((CPU, 1),), domains=2, ceiling=1, needed=2, room=(("s1", 1, 1), ("s0", 1, 0)))


@pytest.mark.parametrize(
    ("explanation", "sentence"),
    [
        (
            Explanation(5, 0, ((TAINT, 3), (CPU, 2))),
            "0/5 nodes are unavailable: 2 Insufficient cpu, 3 node(s) had untolerated taint {a: }.",
        ),
        (Explanation(2, 0, ((TOO_MANY_PODS, 2),)), "0/2 nodes are unavailable: 2 node(s) pod number exceeded."),
        (Explanation(0, 0, ()), "all nodes are unavailable"),
        (
            Explanation(2, 0, ((CPU, 2),), Refusal("claim", 'persistentvolumeclaim "c" not found')),
            '0/2 nodes are unavailable: persistentvolumeclaim "c" not found.',
        ),
        (
            CLOSE,
            "In hyperNode s1: 1/2 nodes are unavailable: 1 Insufficient cpu. 0/2 hypernodes up to tier 1 have room for all 2 "
            "pods of the gang: s1 (tier 1) for 1, s0 (tier 1) for 0.",
        ),
    ],
)
def test_volcanos_words_for_a_pod_that_finds_no_node(explanation: Explanation, sentence: str) -> None:
    assert no_node(explanation) == sentence


def test_each_pod_is_told_in_the_words_of_the_scheduler_that_it_asked_for() -> None:
    async def story() -> None:
        async with world(nodes=2) as (client, _):
            await add_group(client, "train", 1)
            await add_pod(client, "train-0", gpus=16, group="train", schedulerName="volcano")
            await add_pod(client, "plain", gpus=16, schedulerName="default-scheduler")

            async def are_told() -> bool:
                told = [(await scheduled_condition(client, name))[1] for name in ("train-0", "plain")]
                return told == ["Unschedulable", "Unschedulable"] and bool((await group_condition(client, "train"))[2])

            await until(are_told)
            theirs = "0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu."
            assert (await scheduled_condition(client, "train-0"))[2] == theirs
            assert (await scheduled_condition(client, "plain"))[
                2
            ] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
            assert (await group_condition(client, "train"))[2] == (
                "1/1 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 minAvailable; Pending: 1 Unschedulable. "
                f"Origin reason is train-0: {theirs}"
            )

    asyncio.run(story())
