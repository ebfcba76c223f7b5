import asyncio
import random

from hekla.kube.work_queue import WorkQueue
from hekla.testing import virtual_time

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


def queue(**settings):
    return WorkQueue(dice=random.Random(1), **settings)


def test_a_key_is_queued_once():
    async def scenario():
        q = queue()
        q.add(A)
        q.add(B)
        q.add(A)
        assert [await q.get(), await q.get()] == [A, B]
        assert len(q) == 0

    virtual_time.run(scenario())


def test_a_key_that_changes_while_it_is_worked_on_comes_again_afterwards():
    async def scenario():
        q = queue()
        q.add(A)
        assert await q.get() == A
        q.add(A)
        assert len(q) == 0
        q.done(A)
        assert await q.get() == A

    virtual_time.run(scenario())


def test_the_earlier_of_two_delays_counts():
    async def scenario():
        loop = asyncio.get_running_loop()
        q = queue()
        q.add_after(A, 10)
        q.add_after(A, 3)
        assert await q.get() == A
        assert loop.time() == 3
        q.done(A)
        await asyncio.sleep(20)
        assert len(q) == 0

    virtual_time.run(scenario())


def test_back_off_doubles_and_ends_with_success():
    async def scenario():
        q = queue()
        waits = [q.add_failed(A) for _ in range(30)]
        assert waits[0] < 0.01
        assert waits[5] > 8 * waits[0]
        assert waits[-1] <= 300 * 1.25
        q.succeeded(A)
        assert q.add_failed(A) < 0.01

    virtual_time.run(scenario())


def test_at_its_bound_the_queue_remembers_that_it_forgot():
    async def scenario():
        q = queue(bound=2)
        for key in (A, B, C):
            q.add(key)
        assert q.has_overflowed
        seen = set()
        for _ in range(4):
            while len(q):
                key = await q.get()
                seen.add(key)
                q.done(key)
            q.refill({A, B, C})
        assert seen == {A, B, C}

    virtual_time.run(scenario())


def test_closing_releases_those_who_wait():
    async def scenario():
        q = queue()
        waiting = asyncio.create_task(q.get())
        await asyncio.sleep(1)
        q.close()
        assert await waiting is None

    virtual_time.run(scenario())
