"""The spawners of a node: the one of this release, which starts containers, and those of releases before that still hold some.

A spawner has its release's code in memory, and what it is told to make of a container is this release's: so after an upgrade another
starts what is new, and the one before ends with the last container that it holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from hekla.node.runtimes.release import release_of
from hekla.node.runtimes.spawner_link import Left, NotUnderstoodError, Report, SpawnerLink
from hekla.node.runtimes.sweep import kill_process_of

log = structlog.get_logger(__name__)

MADE_OF = ("node/shim",)
"""The folder of ours that a spawner has in memory."""


class Spawners:
    """All spawners of one state directory."""

    def __init__(
        self,
        directory: Path,
        on_report: Callable[[SpawnerLink, Report], None],
        on_lost: Callable[[SpawnerLink], None],
        *,
        grace_s: float,
    ) -> None:
        """Their sockets lie in the directory; for `grace_s` containers wait for an agent that is away."""
        self._directory, self._on_report, self._tell_lost, self._grace_s = directory, on_report, on_lost, grace_s
        self._name = release_of(MADE_OF)[:16]
        self.current = self._link(self._name)
        """Who starts containers."""
        self._earlier: list[SpawnerLink] = []

    @property
    def pids(self) -> list[int]:
        """Of all that run."""
        return [link.pid for link in self._all() if link.pid]

    async def find(self) -> list[tuple[SpawnerLink, Left]]:
        """What an earlier life left; a spawner that does not answer, or is not understood, is ended with all it holds."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found: list[tuple[SpawnerLink, Left]] = []
        for socket in sorted(self._directory.glob("*.sock")):
            link = self.current if socket.stem == self._name else self._link(socket.stem)
            try:
                found += [(link, each) for each in await link.find(retires=link is not self.current)]
            except (OSError, NotUnderstoodError) as problem:
                if isinstance(problem, NotUnderstoodError):
                    log.warning("containers of an earlier life end with their spawner", why=str(problem))
                await asyncio.to_thread(kill_process_of, link.description)
                for file in (socket, link.description, link.secret):
                    file.unlink(missing_ok=True)
                continue
            if link is not self.current:
                self._earlier.append(link)
        return found

    def open(self) -> SpawnerLink:
        """The one that starts containers, started if none runs."""
        if not self.current.is_open:
            self.current.open()
        return self.current

    async def send_all(self, order: Report) -> None:
        """To each that runs; whoever ends meanwhile needs to hear nothing."""
        for link in self._all():
            if link.is_open:
                await link.send(order)

    async def leave(self) -> None:
        """Go, and leave them what they hold."""
        await self._each(SpawnerLink.leave)

    async def close(self) -> None:
        """Let all kill what they run, and end."""
        await self._each(SpawnerLink.close)

    async def _each(self, act: Callable[[SpawnerLink], Awaitable[None]]) -> None:
        await asyncio.gather(*(act(link) for link in list(self._all())))

    def _all(self) -> Iterator[SpawnerLink]:
        yield self.current
        yield from self._earlier

    def _link(self, name: str) -> SpawnerLink:
        return SpawnerLink(self._directory, name, self._on_report, self._lose, grace_s=self._grace_s)

    def _lose(self, link: SpawnerLink) -> None:
        if link in self._earlier:
            self._earlier.remove(link)
            for file in (link.description, link.secret):
                file.unlink(missing_ok=True)
        self._tell_lost(link)
