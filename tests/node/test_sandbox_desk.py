"""The node's desk over a runtime on paper: what a checkpoint of a frozen sandbox leaves behind, and how a fork's copies fail."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hekla.api.agents.node_contract import CheckpointOrder, Child, Claim
from hekla.node.runtimes import ContainerKey
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.runtimes.sandbox.last_word import LastWord
from hekla.node.sandbox_desk import SandboxDesk

KEY = ContainerKey("u1", "main", 0)


class PaperRuntime:
    """One sandbox, whose packing lasts until the test says so."""

    isolation, sandbox_features = "shared-kernel", frozenset[Any]()

    def __init__(self) -> None:
        self.frozen, self.word = False, LastWord()
        self.packs, self.is_packed = asyncio.Event(), asyncio.Event()

    def has(self, key: ContainerKey) -> bool:
        return True

    def session_of(self, key: ContainerKey) -> str:
        return "s"

    def is_frozen(self, key: ContainerKey) -> bool:
        return self.frozen

    def last_order(self, key: ContainerKey) -> int:
        return self.word.order

    async def freeze(self, key: ContainerKey, order: int = 0) -> None:
        async with self.word.taken(order):
            self.frozen = True

    async def thaw(self, key: ContainerKey, order: int = 0) -> None:
        async with self.word.taken(order):
            self.frozen = False

    async def pack(self, key: ContainerKey, kind: object, output: int) -> list[str]:
        assert not self.frozen
        self.packs.set()
        await self.is_packed.wait()
        return []


def desk_of(runtime, checkpoints, *, late=()):
    """The desk of an agent that has every pod; those that are `late` come after a first look."""
    awaited = set(late)
    pod = SimpleNamespace(
        metadata=SimpleNamespace(annotations={}), spec=SimpleNamespace(containers=[SimpleNamespace(name="main")])
    )
    tracked = SimpleNamespace(uid="u1", pod=pod, runtime=SimpleNamespace(name="paper"), key=lambda container: KEY)

    def find(namespace, name):
        if name in awaited:
            awaited.discard(name)
            return None
        return tracked

    agent = SimpleNamespace(sandbox_runtimes={"paper": runtime}, find=find)
    return SandboxDesk(cast(Any, agent), checkpoints)


@pytest.mark.parametrize(("meanwhile", "is_frozen"), [(None, True), (5, False), (0, True)])
def test_a_frozen_sandbox_stands_still_again_after_its_checkpoint_unless_it_was_woken_by_a_later_order(
    tmp_path, meanwhile, is_frozen
):
    async def story():
        runtime = PaperRuntime()
        desk = desk_of(runtime, CheckpointStore(tmp_path))
        await desk.freeze("default", "box", 4)
        packing = asyncio.create_task(desk.checkpoint("default", "box", CheckpointOrder(checkpoint="c-1")))
        await runtime.packs.wait()
        if meanwhile is not None:
            await desk.thaw("default", "box", meanwhile)
        runtime.is_packed.set()
        await packing
        assert runtime.frozen == is_frozen

    asyncio.run(story())


class Forking(PaperRuntime):
    """Fills two copies; the first meets a problem, and the second takes a while."""

    def __init__(self, problem: Exception, ahead: Exception | None = None) -> None:
        super().__init__()
        self.is_packed.set()
        self.problem, self.ahead, self.asked = problem, ahead, 0
        self.expected: list[str] = []

    def expect_copy(self, key: ContainerKey, pod_uid: str, source: int, claim: Claim) -> None:
        self.expected.append(claim.session)
        if self.ahead and claim.session == "a":
            raise self.ahead

    def let_copy_go(self, pod_uid: str) -> None:
        pass

    async def claim_as_copy(self, key: ContainerKey, source: int, claim: Claim) -> bool:
        self.asked += 1
        if self.asked == 1:
            raise self.problem
        for _ in range(5):
            await asyncio.sleep(0)
        return os.fstat(source).st_size == 0  # it is still the copy, and not whatever was opened since


MISTAKE = "the node made a mistake with pod \"a\" (KeyError: 'left_out'); its log says more"


@pytest.mark.parametrize(
    ("problem", "ahead", "told"),
    [
        (OSError(24, "Too many open files"), None, "[Errno 24] Too many open files"),
        (SandboxError(422, "the box is full"), None, "the box is full"),
        (KeyError("left_out"), None, MISTAKE),
        (KeyError("left_out"), KeyError("cell"), MISTAKE),
    ],
    ids=["the world's", "the sandbox's", "ours", "ours before its pod was there"],
)
def test_a_copy_that_cannot_be_filled_fails_alone_and_says_why(tmp_path, problem, ahead, told):
    async def named():
        return [Child(namespace="default", pod=name, uid="u1", claim=Claim(session=name)) for name in "ab"]

    async def story():
        runtime = Forking(problem, ahead)
        done = await desk_of(runtime, CheckpointStore(tmp_path), late=["a"]).fork("default", "box", named())
        assert runtime.expected == ["a"]  # the other one runs already, out of a pool: nothing is filled ahead of it
        assert [child.error for child in done.children] == [told, ""]

    asyncio.run(story())
