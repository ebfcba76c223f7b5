"""Beside a scheduler of another name: its gangs are neither placed nor told of."""

import asyncio

import pytest

from hekla.api.volcano import PodGroup
from hekla.scheduler.answers import NothingToExplainError, explanation
from hekla.testing import virtual_time
from scheduler.schedulerkit import add_group, add_pod, group_condition, nodes_of, scheduled_condition, world


def test_a_gang_of_another_scheduler_is_not_placed_and_who_asks_why_hears_whose_it_is() -> None:
    async def main() -> None:
        async with world() as (client, scheduler):
            await add_group(client, "g", 1)
            await add_pod(client, "a", group="g", schedulerName="team-a")
            await asyncio.sleep(60)
            assert await nodes_of(client) == {"a": ""}
            assert await scheduled_condition(client, "a") == ("", "", "")
            assert await group_condition(client, "g") == ("", "", "")
            for name, who in (("pod.a", 'pod "a" asks'), ("podgroup.g", 'the pods of podgroup "g" ask')):
                with pytest.raises(
                    NothingToExplainError, match=f'{who} for the scheduler "team-a", .* schedulerName: .*volcano'
                ):
                    explanation(scheduler, "default", name, lambda _: True)

    virtual_time.run(main())


def test_a_gang_that_names_another_scheduler_is_not_let_in_before_it_has_pods() -> None:
    async def main() -> None:
        async with world() as (client, scheduler):
            for name, named in (("g", "team-a"), ("mine", "volcano")):
                metadata = {"name": name, "namespace": "default", "annotations": {"hekla.dev/scheduler-name": named}}
                group = {"metadata": metadata, "spec": {"minMember": 1, "minResources": {"cpu": "1"}}}
                await client.create(PodGroup, group, "default")
            await asyncio.sleep(60)
            phases = {one.metadata.name: one.status.phase for one in (await client.list(PodGroup, "default")).items}
            assert phases == {"g": "", "mine": "Inqueue"}
            assert await group_condition(client, "g") == ("", "", "")
            with pytest.raises(NothingToExplainError, match='podgroup "g" ask for the scheduler "team-a"'):
                explanation(scheduler, "default", "podgroup.g", lambda _: True)

    virtual_time.run(main())
