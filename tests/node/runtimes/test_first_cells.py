"""A sandbox of a node's stock has an interpreter ready for its first cell, which is its session's from then on."""

import asyncio
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.runtimes.sandbox.cells import running_pids
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.testing.conformance.runtimes import PATIENCE_S
from hekla.testing.conformance.sandboxes import Sandboxes

INTERPRETER = 2
"""After the daemon and its nursery."""
WHO = "import os; print(os.environ['WHO'], os.getuid(), os.getcwd(), sorted(os.environ.keys() - {'HEKLA_COMMAND'}))"


def live(tmp_path, story):
    async def told():
        runtime = ZygoteSandboxes(tmp_path / "state of a node", warm=1, preload=())
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            await story(runtime, Sandboxes(runtime))
        finally:
            await runtime.close()

    asyncio.run(told())


async def rested(runtime, made):
    """A sandbox that waited in the stock until its interpreter did: its name, and its processes as the host numbers them."""
    await made.runtime.stop(await made.start("first"), grace_s=0)  # the stock is made once one was asked for
    async with asyncio.timeout(PATIENCE_S):
        while not (runtime._zygotes._warm and len(running_pids(runtime._zygotes._warm[0])) > INTERPRETER):
            await asyncio.sleep(0.01)
    inside = running_pids(runtime._zygotes._warm[0])
    return await made.start("rested"), inside


def figures_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def started_at(pid):
    return figures_of(pid)[19]


def ticks_of(pid):
    """Of processor time, its own and the kernel's for it."""
    return figures_of(pid)[11:13]


def test_the_first_cell_runs_in_the_interpreter_that_waited(tmp_path):
    async def story(runtime, made):
        key, inside = await rested(runtime, made)
        born = started_at(inside[INTERPRETER])
        await made.runtime.claim(key, Claim(session="s", env={"WHO": "me"}))
        first = await made.printed(key, WHO)
        cell = runtime._boxes[key].cell
        assert running_pids(cell) == inside, "no other was born for it"
        assert started_at(inside[INTERPRETER]) == born
        assert first.startswith("me ")

    live(tmp_path, story)


def test_what_waits_stands_still_with_its_sandbox_and_goes_on_with_it(tmp_path):
    async def story(runtime, made):
        key, inside = await rested(runtime, made)
        await made.runtime.claim(key, Claim(session="s", env={"WHO": "me"}))
        await made.runtime.freeze(key)
        assert runtime.is_frozen(key)
        used = ticks_of(inside[INTERPRETER])
        with pytest.raises(SandboxError, match="frozen"):
            await made.printed(key, WHO)
        assert ticks_of(inside[INTERPRETER]) == used
        await made.runtime.thaw(key)
        assert (await made.printed(key, WHO)).startswith("me ")
        assert running_pids(runtime._boxes[key].cell) == inside

    live(tmp_path, story)


def test_it_runs_cells_as_the_next_sandbox_does_that_had_none(tmp_path):
    async def story(runtime, made):
        key, _ = await rested(runtime, made)
        fresh = await made.start("fresh")
        for one in (key, fresh):
            await made.runtime.claim(one, Claim(session=f"s-{one.pod_uid}", env={"WHO": "me"}))
        assert await made.printed(key, WHO) == await made.printed(fresh, WHO)

    live(tmp_path, story)
