"""Speaks QEMU's machine protocol: one JSON document a line, commands numbered, descriptors beside them."""

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Sequence
from typing import Any

from hekla.node.runtimes.microvm.monitor import MachineError

LONGEST = 1 << 22
PATIENCE_S = 120.0


class Qmp:
    """One machine's monitor."""

    def __init__(self, link: socket.socket) -> None:
        """`link` is connected, or will be once the monitor starts."""
        link.setblocking(False)
        self._link, self._inbox = link, bytearray()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[None] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()
        loop.add_reader(link.fileno(), self._hear)

    async def greet(self) -> None:
        """Until it listens."""
        await self._or_lost(self._greeted)
        await self.ask("qmp_capabilities")

    async def ask(self, command: str, arguments: dict[str, Any] | None = None, fds: Sequence[int] = ()) -> Any:
        """One command and what it returns. Raises MachineError."""
        if self._lost.done():
            raise MachineError("the machine's monitor has ended")
        number = next(self._numbers)
        order = {"execute": command, "id": number, **({"arguments": arguments} if arguments else {})}
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._link, [json.dumps(order).encode()], list(fds))  # short: it fits into any buffer
            return await self._or_lost(answered)
        except OSError as problem:
            raise MachineError(f"the machine's monitor does not listen: {problem.strerror}") from None
        finally:
            self._asked.pop(number, None)

    async def until(self, event: str, **data: str) -> dict[str, Any]:
        """The next event of a name whose data has these; those before it are forgotten. A status `failed` is a MachineError."""
        while True:
            told = await self._or_lost(asyncio.ensure_future(self._events.get()))
            if told["event"] != event:
                continue
            if told.get("data", {}).get("status") == "failed":
                raise MachineError(
                    f"{event.lower()} failed: {told['data'].get('reason', 'the monitor gives no reason')}"
                )
            if all(told.get("data", {}).get(name) == value for name, value in data.items()):
                return dict(told)

    def close(self) -> None:
        """Let go."""
        self._lose()
        self._link.close()

    async def _or_lost(self, wanted: "asyncio.Future[Any]") -> Any:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait((wanted, self._lost), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise MachineError(f"the machine's monitor did not answer within {PATIENCE_S:g} s") from None
        finally:
            if not wanted.done():
                wanted.cancel()
        if wanted.cancelled() or not wanted.done():
            raise MachineError("the machine's monitor has ended")
        return wanted.result()

    def _hear(self) -> None:
        try:
            data = self._link.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._inbox += data
        if not data or len(self._inbox) > LONGEST:
            self._lose()
            return
        while (end := self._inbox.find(b"\n")) >= 0:
            line = bytes(self._inbox[:end])
            del self._inbox[: end + 1]
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        if "QMP" in told and not self._greeted.done():
            self._greeted.set_result(None)
        elif "event" in told:
            self._events.put_nowait(told)
        waiting = self._asked.get(told.get("id", 0))
        if waiting is None or waiting.done():
            return
        if "error" in told:
            waiting.set_exception(
                MachineError(f"the machine's monitor refuses: {told['error'].get('desc', told['error'])}")
            )
        else:
            waiting.set_result(told.get("return"))

    def _lose(self) -> None:
        if not self._lost.done():
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            self._lost.set_result(None)
