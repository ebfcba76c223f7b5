"""Who comes first begins first, and whoever begins leaves room for what else the loop has to do."""

import asyncio

from hekla.sandbox.sessions.turns import Turns


def test_a_few_begin_in_each_turn_of_the_loop_in_the_order_in_which_they_came():
    begun = []

    async def scenario():
        turns, loop_turns = Turns(3), [0]

        def count():
            loop_turns[0] += 1
            asyncio.get_running_loop().call_soon(count)

        async def one(number):
            await turns.mine()
            begun.append((loop_turns[0], number))

        count()
        await asyncio.gather(*(one(number) for number in range(10)))

    asyncio.run(scenario())
    assert [number for _, number in begun] == list(range(10))
    by_turn = [[number for turn, number in begun if turn == at] for at in sorted({turn for turn, _ in begun})]
    assert max(map(len, by_turn)) == 3
    assert len(by_turn) == 4


def test_who_comes_alone_waits_for_nobody_and_who_left_has_no_turn():
    async def scenario():
        turns = Turns(1)
        alone = turns.mine()
        try:
            alone.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        waiting = [asyncio.ensure_future(turns.mine()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert [one.cancelled() for one in waiting] == [False, True, False]
        for _ in range(3):
            await asyncio.sleep(0)
        await turns.mine()

    asyncio.run(scenario())
