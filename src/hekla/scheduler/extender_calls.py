"""Carries out the calls of the plug-in `extender`: POST, JSON, several at a time, each within its time.

A cycle is one piece of code and waits for its answers, as Volcano's does; so the calls are made by a thread with an
event loop of its own, and a service that calls back into this process's API server gets no answer before its time is
over. Keep such a service's timeout small, or run the scheduler as a process of its own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from threading import Thread

from hekla.placement.columns import Nodes
from hekla.placement.plugins.extender import Address, Answers, Service, ServiceError, SilenceError
from hekla.placement.statement import Bind, Evict
from hekla.wire.client import HttpClient
from hekla.wire.errors import ConnectFailedError, ConnectionLostError, TimedOutError, WireError
from hekla.wire.limits import ClientLimits

AT_ONCE = 16
"""Calls under way together, as many as Volcano's workers."""

_HEADERS = (("content-type", "application/json"),)


class ExtenderCalls:
    """The extenders of a configuration, connected."""

    def __init__(self) -> None:
        self._extenders: list[object] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._client: HttpClient | None = None

    def connect(self, tiers: Iterable[Iterable[object]]) -> None:
        """Have the calls of these plug-ins carried out; the others' no more."""
        self._extenders = [p for tier in tiers for p in tier if isinstance(getattr(p, "service", None), Service)]
        for plugin in self._extenders:
            plugin.service.connect(self.call)  # type: ignore[attr-defined]  # asked for in the line above

    def decided(self, nodes: Nodes, decision: Bind | Evict) -> None:
        """Tell those who want to know where a pod was put, or what it leaves."""
        for plugin in self._extenders:
            is_placed = isinstance(decision, Bind)
            plugin.decided(nodes, decision.task, decision.node, is_placed=is_placed)  # type: ignore[attr-defined]  # an Extender

    def end_session(self, nodes: Nodes) -> None:
        """Tell those who want to know that a cycle is over."""
        for plugin in self._extenders:
            plugin.end_session(nodes)  # type: ignore[attr-defined]  # an Extender

    def call(self, address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        """Send each body to a verb; the answers in the same order."""
        if self._loop is None:
            self._start(address)
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._call_all(address, verb, bodies), self._loop).result()

    def close(self) -> None:
        """Stop the thread, if there is one."""
        if self._loop is not None and self._thread is not None and self._client is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(timeout=5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5.0)
            self._loop = self._thread = self._client = None

    def _start(self, address: Address) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="extender calls", daemon=True)
        self._thread.start()
        limits = ClientLimits(connections_per_origin=AT_ONCE, body_bytes=address.most_bytes)

        async def client() -> HttpClient:
            return HttpClient(limits=limits)

        self._client = asyncio.run_coroutine_threadsafe(client(), self._loop).result()

    async def _call_all(self, address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        """All of them, a few at a time; after the first silence the rest is not sent."""
        answers: list[bytes | ServiceError] = []
        for start in range(0, len(bodies), AT_ONCE):
            some = bodies[start : start + AT_ONCE]
            answers += await asyncio.gather(*(self._call_one(address, verb, body) for body in some))
            silence = next((answer for answer in answers if isinstance(answer, SilenceError)), None)
            if silence is not None:
                return [*answers, *([silence] * (len(bodies) - len(answers)))]
        return answers

    async def _call_one(self, address: Address, verb: str, body: bytes) -> bytes | ServiceError:
        url = f"{address.url}/{verb}"
        assert self._client is not None
        try:
            async with asyncio.timeout(address.timeout_s):
                response = await self._client.request("POST", url, _HEADERS, body, timeout_s=address.timeout_s)
        except (TimeoutError, TimedOutError):
            return SilenceError(f"extender at {url} did not answer within {address.timeout_s:g} s")
        except (ConnectFailedError, ConnectionLostError) as error:
            return SilenceError(f"extender at {url} cannot be reached: {error}")
        except (WireError, ValueError) as error:
            return ServiceError(f"extender at {url} answered wrongly: {error}")
        if response.status != 200:
            return ServiceError(f"failed {verb} with extender at URL {url}, code {response.status}")
        assert isinstance(response.body, bytes), "an answer that was read whole is bytes"
        return response.body
