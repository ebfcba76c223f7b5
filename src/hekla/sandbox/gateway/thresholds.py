"""Connections that agree on TLS before they are visitors: they have a place at the door meanwhile, like anybody else.

asyncio tells nobody of a connection before its handshake is over, so that whoever opened many and said nothing took all files of the
process, whatever bound there was on visitors.
"""

import asyncio
import socket
import ssl

import structlog

from hekla.sandbox.gateway.visitors import Doorway, Visitor

log = structlog.get_logger(__name__)


class Thresholds:
    """All connections of one gateway that have not agreed yet."""

    def __init__(self, doorway: Doorway, tls: ssl.SSLContext) -> None:
        self._doorway, self._tls = doorway, tls
        self._agreeing: dict[asyncio.Task[None], socket.socket] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._agreeing)

    def welcome(self, one: socket.socket) -> bool:
        """Take a connection: it gets a place, or is told that there is none as soon as it can read that."""
        entry = self._doorway.enter(one.getpeername())
        if not entry.is_told:
            self._doorway.shares.leave(entry)
            one.close()
            return True
        visitor = Visitor(self._doorway, entry)
        task = asyncio.get_running_loop().create_task(self._agree(one, visitor))
        self._agreeing[task] = one
        task.add_done_callback(lambda over: self._ended(over, visitor))
        return True

    def close(self) -> None:
        """Whoever has not agreed has no request under way."""
        for task in tuple(self._agreeing):
            task.cancel()

    async def _agree(self, one: socket.socket, visitor: Visitor) -> None:
        timeout_s = self._doorway.bounds.handshake_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visitor, one, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # it left, took too long, or does not speak TLS
            log.debug("a connection was not made", why=str(error))

    def _ended(self, task: asyncio.Task[None], visitor: Visitor) -> None:
        """Called even where the task was cancelled before it began."""
        one = self._agreeing.pop(task)
        if not visitor.has_come:
            visitor.stay_out()
            one.close()
