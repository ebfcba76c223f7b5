"""Copies that are filled before their pods are here: while those are still being written down and bound, a fork's parent has packed already.

A copy is a warm sandbox, filled, told whose it will be, and closed. It becomes its pod's when that is started, and ends if that never is; with a
node that is killed it ends too, for until then no note is kept of it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from hekla.node.runtimes import ContainerSpec, Limits
from hekla.node.runtimes.sandbox import SandboxError, bundle
from hekla.node.runtimes.sandbox.cells import Cell
from hekla.node.runtimes.sandbox.channel import Message, OrderRefusedError, SandboxGoneError

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Copy:
    """One, and whose it will be."""

    cell: Cell
    limits: Limits
    """Those of the sandbox that it is a copy of."""
    session: str
    is_filled: "asyncio.Task[bool]"


class CopiesAhead:
    """Of one runtime, by their pods' uids."""

    def __init__(self, end: Callable[[Cell], Awaitable[None]]) -> None:
        self._end = end
        self._started: dict[str, asyncio.Event] = {}
        """For who waits for pods to run, whatever they run in."""
        self._waiting: dict[str, Copy] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def is_expected(self, pod_uid: str) -> bool:
        """Whether a copy waits for its pod."""
        return pod_uid in self._waiting

    def fill(self, pod_uid: str, cell: Cell, limits: Limits, source: int, session: str, claim: Message) -> None:
        """Have a warm sandbox filled, and told of its claim, when its pod comes."""
        filling = asyncio.get_running_loop().create_task(_filled(cell, source, claim), name=f"fill for {pod_uid}")
        self._waiting[pod_uid] = Copy(cell, limits, session, filling)

    async def taken(self, container: ContainerSpec, *, is_simple: bool) -> Copy | None:
        """A pod's copy, once it is filled; None where there is none, or none that it can use."""
        copy = self._waiting.pop(container.key.pod_uid, None)
        if copy is None:
            return None
        try:
            if is_simple and copy.limits == container.limits and await copy.is_filled and not copy.cell.gone.done():
                return copy
        except BaseException:
            self._drop(copy)
            raise
        self._drop(copy)
        return None

    async def until_started(self, pod_uid: str, within_s: float) -> None:
        """Return once a container of a pod runs, or after that long."""
        started = self._started.setdefault(pod_uid, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await started.wait()

    def tell_started(self, pod_uid: str) -> None:
        """A container of a pod runs."""
        if (started := self._started.pop(pod_uid, None)) is not None:
            started.set()

    def let_go(self, pod_uid: str) -> None:
        """The fork is over: a copy that has not become its pod's ends."""
        self._started.pop(pod_uid, None)
        if (copy := self._waiting.pop(pod_uid, None)) is not None:
            self._drop(copy)

    async def close(self) -> None:
        """All sandboxes end, and these with them."""
        left: list[asyncio.Future[Any]] = [*(copy.is_filled for copy in self._waiting.values()), *self._ending]
        self._waiting.clear()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _drop(self, copy: Copy) -> None:
        copy.is_filled.cancel()
        ending = asyncio.ensure_future(self._end(copy.cell))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _filled(cell: Cell, source: int, claim: Message) -> bool:
    """False: it refused, or has ended; the same is tried again when its pod is there, and then said aloud."""
    try:
        with bundle.reading(source) as parts:
            order = {"claim": claim, "has_files": parts.has_files, "has_variables": parts.has_variables}
            await cell.channel.ask("fill", order, parts.filled)
    except (OrderRefusedError, SandboxGoneError, SandboxError, OSError) as problem:
        log.info("copy not filled ahead of its pod", sandbox=cell.name, error=str(problem))
        return False
    except Exception:  # the task's end: whoever starts the pod would stumble over it
        log.exception("copy not filled ahead of its pod", sandbox=cell.name)
        return False
    return True
