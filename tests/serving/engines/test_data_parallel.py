"""A real vLLM with two data-parallel ranks behind the router: each has a cache of its own, and requests go to the one that holds most."""

import asyncio
from collections.abc import Iterator

import pytest

from serving.engines.enginekit import MODEL, PATIENCE_S, Engine, house, running_engines, until, why_not

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if reason := why_not():
        pytest.skip(reason)
    with running_engines(tmp_path_factory.mktemp("ranks"), 1, ranks=2) as [running]:
        yield running


def run(story):
    asyncio.run(asyncio.wait_for(story, 3 * PATIENCE_S))


async def by_rank(engine: Engine, name: str) -> list[float]:
    return [await asyncio.to_thread(engine.figure, name, rank) for rank in range(2)]


async def said_to(engine: Engine, rank: int, prompt: list[int]) -> None:
    """Ask a rank itself, past the router."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    assert (await asyncio.to_thread(engine.ask, "POST", "/v1/completions", body, {"x-data-parallel-rank": str(rank)}))[
        0
    ] == 200


def test_ranks_are_found_and_share_what_comes(engine):
    async def story():
        async with house([engine]) as at:
            before = await by_rank(engine, "vllm:prompt_tokens_total")
            await asyncio.gather(
                *(at.client.completions.create(model=MODEL, prompt=[10 + n] * 40, max_tokens=4) for n in range(8))
            )
            after = await by_rank(engine, "vllm:prompt_tokens_total")
            assert [now - then for now, then in zip(after, before, strict=True)] == [160, 160]

    run(story())


def test_a_prompt_goes_to_the_rank_that_is_known_to_hold_it(engine):
    """Also what a rank cached before anybody subscribed, which the replay of its own publisher tells."""

    async def story():
        prompts = [[500 + number] * 32 + list(range(200, 232)) for number in range(2)]
        await said_to(engine, 1, [*prompts[0], 7])
        async with house([engine]) as at:
            [pool] = [pool for pool in at.router.world.pools() if pool.members]
            slots = {one.rank: 1 << one.slot for one in pool.members}

            def holders(prompt):
                return at.router.fleet.precise.match(prompt, sum(slots.values()))

            await until(lambda: holders(prompts[0]) == [(slots[1], 64)])
            await said_to(engine, 0, [*prompts[1], 7])
            await until(lambda: holders(prompts[1]) == [(slots[0], 64)])
            hits = await by_rank(engine, "vllm:prefix_cache_hits_total")
            for prompt in prompts:
                await at.client.completions.create(model=MODEL, prompt=[*prompt, 8], max_tokens=1)
            found = await by_rank(engine, "vllm:prefix_cache_hits_total")
            assert [now - then for now, then in zip(found, hits, strict=True)] == [64, 64]
            assert [one.faults for one in at.router.cache_events.feeds.feeds().values()] == [0, 0]
            assert at.router.cache_events.strangers == 0

    run(story())
