import asyncio

import pytest

from hekla.testing import virtual_time


def test_a_day_passes_at_once():
    async def scenario():
        await asyncio.sleep(86400)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(scenario()) == 86400


def test_timers_fire_in_their_order():
    async def scenario():
        order = []

        async def note(name, wait_s):
            await asyncio.sleep(wait_s)
            order.append(name)

        await asyncio.gather(note("late", 3), note("early", 1), note("middle", 2))
        return order

    assert virtual_time.run(scenario()) == ["early", "middle", "late"]


def test_a_wait_that_never_ends_is_an_error():
    async def scenario():
        event = asyncio.Event()
        while not event.is_set():
            await asyncio.sleep(3600 * 24)

    with pytest.raises(virtual_time.StuckError, match="never happens"):
        virtual_time.run(scenario())
