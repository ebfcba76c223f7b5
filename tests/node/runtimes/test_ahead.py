"""Copies that wait for their pods: each goes to its own, or ends."""

import asyncio
from types import SimpleNamespace

import pytest

from hekla.node.runtimes import ContainerKey, ContainerSpec, Limits
from hekla.node.runtimes.sandbox import bundle
from hekla.node.runtimes.sandbox.ahead import CopiesAhead
from hekla.node.runtimes.sandbox.channel import OrderRefusedError


def container(uid="u1", **fields):
    return ContainerSpec(key=ContainerKey(uid, "main", 0), argv=(), hostname="x", **fields)


class PaperCell:
    def __init__(self, refusal=""):
        self.name, self.gone, self.refusal = "s1", asyncio.get_running_loop().create_future(), refusal
        self.channel, self.told = SimpleNamespace(ask=self.ask), []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, op, message=None, fds=()):
        await self.may_answer.wait()
        if self.refusal:
            raise OrderRefusedError(self.refusal)
        self.told.append((op, message, len(fds)))


@pytest.fixture
def live(tmp_path):
    """Live a story with copies, the file they are filled from, and a list of those that were ended."""

    def live(story):
        async def whole():
            ended = []

            async def end(cell):
                ended.append(cell)

            with open(tmp_path / "packed", "w+b") as packed:
                with bundle.writing(packed.fileno()):
                    pass
                copies = CopiesAhead(end)
                await story(copies, packed.fileno(), ended)
                await copies.close()

        asyncio.run(whole())

    return live


def test_a_copy_is_its_own_pods_once_it_is_filled(live):
    async def story(copies, source, ended):
        cell = PaperCell()
        cell.may_answer.clear()
        copies.fill("u1", cell, Limits(), source, "s-1", {"env": {}})
        assert await copies.taken(container("u2"), is_simple=True) is None
        taking = asyncio.create_task(copies.taken(container("u1"), is_simple=True))
        await asyncio.sleep(0)
        assert not taking.done()
        cell.may_answer.set()
        copy = await taking
        assert (copy.cell, copy.session) == (cell, "s-1")
        assert cell.told == [("fill", {"claim": {"env": {}}, "has_files": False, "has_variables": False}, 0)]
        copies.let_go("u1")
        await asyncio.sleep(0)
        assert ended == []

    live(story)


@pytest.mark.parametrize(
    ("refusal", "is_simple", "limits"),
    [("no room", True, Limits()), ("", False, Limits()), ("", True, Limits(memory_bytes=1 << 20))],
)
def test_one_that_its_pod_cannot_use_ends(live, refusal, is_simple, limits):
    async def story(copies, source, ended):
        cell = PaperCell(refusal)
        copies.fill("u1", cell, Limits(), source, "s-1", {})
        assert await copies.taken(container(limits=limits), is_simple=is_simple) is None
        await asyncio.sleep(0)
        assert ended == [cell]

    live(story)


def test_one_that_meets_a_mistake_of_ours_is_tried_again_when_its_pod_is_there(live):
    class Mistaken(PaperCell):
        async def ask(self, op, message, fds=()):
            raise KeyError("answer")

    async def story(copies, source, ended):
        cell = Mistaken()
        copies.fill("u1", cell, Limits(), source, "s-1", {})
        assert await copies.taken(container(), is_simple=True) is None
        await asyncio.sleep(0)
        assert ended == [cell]

    live(story)


def test_one_whose_pod_never_comes_or_is_given_up_ends(live):
    async def story(copies, source, ended):
        never, given_up = PaperCell(), PaperCell()
        copies.fill("u1", never, Limits(), source, "s-1", {})
        copies.let_go("u1")
        given_up.may_answer.clear()
        copies.fill("u2", given_up, Limits(), source, "s-2", {})
        starting = asyncio.create_task(copies.taken(container("u2"), is_simple=True))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.sleep(0)
        assert ended == [never, given_up]

    live(story)


def test_who_waits_for_a_pod_is_told_when_it_runs(live):
    async def story(copies, source, ended):
        waiting = asyncio.create_task(copies.until_started("u1", 600.0))
        await asyncio.sleep(0)
        copies.tell_started("u1")
        await waiting
        await copies.until_started("u2", 0.0)

    live(story)
