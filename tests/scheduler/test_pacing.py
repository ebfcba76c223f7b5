import asyncio

import pytest

from hekla.scheduler.pacing import SOON_S, Paced
from hekla.testing import virtual_time


def test_the_first_change_is_told_soon_and_those_after_it_once_in_a_pause() -> None:
    async def story() -> list[float]:
        now, told = asyncio.get_running_loop().time, list[float]()
        paced = Paced(lambda: told.append(now()), pause_s=1.0)
        for _ in range(100):  # a change every 25 ms, for 2.5 s
            paced.ask()
            await asyncio.sleep(SOON_S / 2)
        await asyncio.sleep(10.0)
        paced.ask()
        await asyncio.sleep(10.0)
        return told

    told = virtual_time.run(story())
    assert told == pytest.approx([SOON_S, SOON_S + 1, SOON_S + 2, SOON_S + 3, 12.5 + SOON_S], abs=0.01)
