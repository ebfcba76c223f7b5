import asyncio

from hekla.app.features import run_after


def test_a_feature_lets_the_scheduler_read_first() -> None:
    async def play() -> None:
        started: list[str] = []

        async def feature() -> None:
            started.append("feature")

        has_read = asyncio.Event()
        task = asyncio.create_task(run_after(has_read, feature))
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == []
        has_read.set()
        await task
        assert started == ["feature"]

    asyncio.run(play())


def test_a_feature_whose_time_has_come_starts_at_once() -> None:
    async def play() -> None:
        started: list[str] = []

        async def feature() -> None:
            started.append("feature")

        has_read = asyncio.Event()
        has_read.set()
        await run_after(has_read, feature)
        assert started == ["feature"]

    asyncio.run(play())
