import asyncio

import pytest

from hekla.kube.rate_limit import TokenBucket
from hekla.testing import virtual_time


def test_a_burst_is_free_and_then_the_rate_holds():
    async def scenario():
        bucket = TokenBucket(10, burst=5)
        await asyncio.sleep(100)
        times = []
        for _ in range(8):
            await bucket.acquire()
            times.append(round(asyncio.get_running_loop().time() - 100, 3))
        return times

    assert virtual_time.run(scenario()) == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


def test_a_refused_token_costs_nothing():
    bucket = TokenBucket(1, burst=1)
    assert bucket.take(0)
    assert not bucket.take(0.5)
    assert not bucket.take(0.9)
    assert bucket.take(1.0)


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="positive rate"):
        TokenBucket(0, 1)
