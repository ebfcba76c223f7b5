"""Forwards connections to a pod's ports: over SPDY, raw or inside a WebSocket (kubectl), and over channels (Python).

Each forwarded connection is a pair of streams: data both ways, and an error stream that stays empty when all is well.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from hekla.wire.channels import PortChannels, PortData, port_number
from hekla.wire.errors import WireError
from hekla.wire.messages import WebSocket
from hekla.wire.spdy_session import SpdySession, SpdyStream

CHUNK = 64 * 1024
MAX_CONNECTIONS = 256

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to a port of the pod; raises OSError with a sentence."""


async def forward_over_spdy(session: SpdySession, connect: Connect) -> None:
    """Serve forwarded connections until the client goes away."""
    errors: dict[tuple[str, str], SpdyStream] = {}
    tasks: set[asyncio.Task[None]] = set()
    async with session:
        try:
            while (stream := await session.accept()) is not None:
                kind = stream.headers.get("streamtype", "")
                pair = (stream.headers.get("port", ""), stream.headers.get("requestid", ""))
                if len(errors if kind == "error" else tasks) >= MAX_CONNECTIONS:
                    await stream.reset()
                elif kind == "error":
                    errors[pair] = stream
                else:
                    task = asyncio.create_task(_forward(stream, errors.pop(pair, None), pair[0], connect))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(data: SpdyStream, error: SpdyStream | None, port: str, connect: Connect) -> None:
    with contextlib.suppress(WireError):
        try:
            if not (number := port_number(port)):
                raise OSError("a port is a number from 1 to 65535")
            reader, writer = await connect(number)
        except OSError as problem:
            if error is not None:
                await error.send(f"error forwarding port {port} to pod: {problem}".encode())
                await error.close()
            await data.reset()
            return
        try:
            await _join(reader, writer, data)
        finally:
            writer.close()
            if error is not None:
                await error.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: SpdyStream) -> None:
    async def inward() -> None:
        while piece := await data.receive():
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def outward() -> None:
        while piece := await reader.read(CHUNK):
            await data.send(piece)
        await data.close()

    going_in = asyncio.create_task(inward())
    try:
        await outward()
    except OSError:
        await data.reset()
    finally:
        going_in.cancel()
        await asyncio.gather(going_in, return_exceptions=True)


async def forward_over_channels(socket: WebSocket, channels: PortChannels, ports: list[int], connect: Connect) -> None:
    """The older form: one connection per port, opened at once."""
    writers: dict[int, asyncio.StreamWriter] = {}
    tasks: list[asyncio.Task[None]] = []

    async def outward(port: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(WireError, OSError):
            while piece := await reader.read(CHUNK):
                await socket.send(channels.encode(PortData(port, piece)))
            await socket.close()

    try:
        for greeting in channels.greetings():
            await socket.send(greeting)
        for port in ports:
            try:
                reader, writers[port] = await connect(port)
            except OSError as problem:
                await socket.send(channels.encode(PortData(port, str(problem).encode(), is_error=True)))
                continue
            tasks.append(asyncio.create_task(outward(port, reader)))
        while (message := await socket.receive()) is not None:
            piece = channels.decode(message)
            if piece is not None and not piece.is_error and piece.port in writers:
                writers[piece.port].write(piece.data)
                await writers[piece.port].drain()
    except (WireError, OSError):
        pass  # one end is gone: so goes the other
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers.values():
            writer.close()
        with contextlib.suppress(WireError):
            await socket.close()
