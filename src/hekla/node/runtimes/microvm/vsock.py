"""Reaches a guest's vsock port through its monitor's unix socket: `CONNECT port`, `OK number`, then the bytes. Both REST monitors do it so."""

import asyncio
import socket
from pathlib import Path

from hekla.node.runtimes.microvm.monitor import MachineError

PATIENCE_S = 120.0
AGAIN_S = 0.02
"""The guest listens once it has booted; until then the monitor hangs up."""


async def dial_guest(path: Path, port: int) -> int:
    """A connected descriptor. Raises MachineError."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                made = await _try(path, port)
                if made is not None:
                    return made.detach()
                await asyncio.sleep(AGAIN_S)
    except TimeoutError:
        raise MachineError(f"the guest does not listen on vsock port {port} after {PATIENCE_S:g} s") from None


async def _try(path: Path, port: int) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        await loop.sock_connect(made, str(path))
        await loop.sock_sendall(made, b"CONNECT %d\n" % port)
        told = b""
        while not told.endswith(b"\n"):  # a byte at a time: what follows is the guest's
            piece = await loop.sock_recv(made, 1)
            if not piece:
                break
            told += piece
    except OSError:
        told = b""
    except BaseException:
        made.close()
        raise
    if told.startswith(b"OK "):
        return made
    made.close()
    return None
