"""Where a pod's servers are reached by the questions of its node: at its address, or inside a sandbox."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Dial = Callable[[int], Awaitable[socket.socket]]
"""A connection to a port of a sandbox, which has no address that anybody reaches; raises OSError."""


@dataclass(frozen=True, slots=True)
class Place:
    """A pod's address, or the way into its sandbox."""

    pod_ip: str
    dial: Dial | None = None

    async def open(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, limit: int = 65536
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the pod, or to another host if that is what is named."""
        if self.dial is None or host != self.pod_ip:
            return await asyncio.open_connection(host, port, ssl=tls, limit=limit)
        made = await self.dial(port)
        return await asyncio.open_connection(sock=made, ssl=tls, server_hostname=host if tls else None, limit=limit)
