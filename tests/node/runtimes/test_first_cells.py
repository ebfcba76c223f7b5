"""A sandbox of a node's stock has an interpreter ready for its first cell, which is its session's from then on."""

import asyncio
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.runtimes.sandbox.cells import running_pids
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.node.runtimes.sandbox.standstill import stands_still, state_of
from hekla.testing.conformance.runtimes import PATIENCE_S
from hekla.testing.conformance.sandboxes import Sandboxes

INTERPRETER = 2
"""After the daemon and its nursery."""
WHO = "import os; print(os.environ['WHO'], os.getuid(), os.getcwd(), sorted(os.environ.keys() - {'HEKLA_COMMAND'}))"


def live(tmp_path, story, groups=None):
    async def told():
        runtime = ZygoteSandboxes(tmp_path / "state of a node", warm=1, preload=(), groups=groups)
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
        while not (runtime._zygotes._warm and waits(running_pids(runtime._zygotes._warm[0]))):
            await asyncio.sleep(0.01)
    cell = runtime._zygotes._warm[0]
    for _ in range(3):  # its daemon has read by the second answer that it is ready; the third waits for the rehearsal
        await cell.channel.ask("ping")
    return await made.start("rested"), running_pids(cell)


def waits(inside):
    """Whether there is an interpreter among a sandbox's processes, which has begun and waits for its first cell."""
    return len(inside) > INTERPRETER and state_of(inside[INTERPRETER]) == "S" and not is_root(inside[INTERPRETER])


def is_root(pid):
    """As which it begins."""
    return "\nUid:\t0\t" in Path(f"/proc/{pid}/status").read_text()


def figures_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def started_at(pid):
    return figures_of(pid)[19]


def is_held(runtime, key, pid):
    """Whether the kernel lets a process of a sandbox run no step: what waits uses no processor time either way."""
    name = runtime._boxes[key].cell.name
    if runtime.groups.can_freeze:
        return name in Path(f"/proc/{pid}/cgroup").read_text() and runtime.groups.is_frozen(name)
    return stands_still(pid)


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


@pytest.mark.parametrize("groups", [None, SandboxGroups(why_none="left out by a test")], ids=["groups", "no groups"])
def test_what_waits_stands_still_with_its_sandbox_and_goes_on_with_it(tmp_path, groups):
    async def story(runtime, made):
        key, inside = await rested(runtime, made)
        await made.runtime.claim(key, Claim(session="s", env={"WHO": "me"}))
        await made.runtime.freeze(key)
        assert runtime.is_frozen(key)
        assert is_held(runtime, key, inside[INTERPRETER])
        with pytest.raises(SandboxError, match="frozen"):
            await made.printed(key, WHO)
        await made.runtime.thaw(key)
        assert not is_held(runtime, key, inside[INTERPRETER])
        assert (await made.printed(key, WHO)).startswith("me ")
        assert running_pids(runtime._boxes[key].cell) == inside

    live(tmp_path, story, groups)


def test_it_runs_cells_as_the_next_sandbox_does_that_had_none(tmp_path):
    async def story(runtime, made):
        key, _ = await rested(runtime, made)
        fresh = await made.start("fresh")
        for one in (key, fresh):
            await made.runtime.claim(one, Claim(session=f"s-{one.pod_uid}", env={"WHO": "me"}))
        assert await made.printed(key, WHO) == await made.printed(fresh, WHO)

    live(tmp_path, story)
