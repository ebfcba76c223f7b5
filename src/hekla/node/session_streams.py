"""Carries a command's streams to a client: over a WebSocket (channels v4 and v5) or over SPDY (kubectl before 1.31).

`serve_session` joins an `ExecSession` with either; at its end the client gets a Status that tells the exit code.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from hekla.api.meta import Document
from hekla.node.runtimes import ExecError, ExecSession
from hekla.wire.channels import Channel, ChannelClosed, ChannelData, Resized, decode, encode
from hekla.wire.errors import WireError
from hekla.wire.messages import WebSocket
from hekla.wire.spdy_session import SpdySession, SpdyStream

STREAMS_TIMEOUT_S = 30.0
"""How long a SPDY client may take to open the streams it announced."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which streams a client asked for."""

    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


class Streams(Protocol):
    """The client's side of a session."""

    def events(self) -> AsyncIterator[ChannelData | ChannelClosed | Resized]:
        """What the client sends, until it goes away."""

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output, waiting while the client is slow."""

    async def close(self) -> None:
        """Close in good order."""


class WebSocketStreams:
    """Streams as channels of one WebSocket."""

    def __init__(self, socket: WebSocket, protocol: str) -> None:
        self._socket, self._protocol = socket, protocol

    async def events(self) -> AsyncIterator[ChannelData | ChannelClosed | Resized]:
        """Messages, decoded."""
        while (message := await self._socket.receive()) is not None:
            event = decode(message, self._protocol)
            if event is not None:
                yield event

    async def send(self, channel: Channel, data: bytes) -> None:
        """One message."""
        await self._socket.send(encode(channel, data))

    async def close(self) -> None:
        """Close the WebSocket."""
        await self._socket.close()


class SpdyStreams:
    """Streams as streams of a SPDY connection, each named by its `streamtype`."""

    def __init__(self, streams: dict[str, SpdyStream]) -> None:
        self._streams = streams

    @classmethod
    async def accept(cls, session: SpdySession, wanted: Wanted) -> "SpdyStreams":
        """Wait for the streams that the client announced; TimeoutError if they do not come."""
        names = {"error"} | {name for name, is_on in (
            ("stdin", wanted.stdin), ("stdout", wanted.stdout), ("stderr", wanted.stderr and not wanted.tty),
            ("resize", wanted.tty),
        ) if is_on}  # fmt: skip
        streams: dict[str, SpdyStream] = {}
        async with asyncio.timeout(STREAMS_TIMEOUT_S):
            while names - streams.keys():
                stream = await session.accept()
                if stream is None:
                    break
                streams[stream.headers.get("streamtype", "")] = stream
        return cls(streams)

    async def events(self) -> AsyncIterator[ChannelData | ChannelClosed | Resized]:
        """What arrives on stdin and resize, as it comes."""
        queue: asyncio.Queue[ChannelData | ChannelClosed | Resized | None] = asyncio.Queue(16)
        readers = [
            asyncio.create_task(self._read(name, queue)) for name in ("stdin", "resize") if name in self._streams
        ]
        readers = readers or [asyncio.create_task(self._read("error", queue))]
        left = len(readers)
        try:
            while left:
                event = await queue.get()
                if event is None:
                    left -= 1
                else:
                    yield event
        finally:
            for reader in readers:
                reader.cancel()

    async def _read(self, name: str, queue: "asyncio.Queue[ChannelData | ChannelClosed | Resized | None]") -> None:
        with contextlib.suppress(WireError):
            while data := await self._streams[name].receive():
                if name == "stdin":
                    await queue.put(ChannelData(Channel.STDIN, data))
                elif name == "resize":
                    event = decode(bytes((Channel.RESIZE,)) + data, "")
                    await queue.put(event)
            if name == "stdin":
                await queue.put(ChannelClosed(Channel.STDIN))
                return  # a half-closed input is not the client's end
        await queue.put(None)

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send on the stream of that name, if the client wanted it."""
        stream = self._streams.get(channel.name.lower())
        if stream is not None:
            await stream.send(data)

    async def close(self) -> None:
        """End every stream; the session itself ends with its context."""
        for stream in self._streams.values():
            await stream.close()


async def serve_session(session: ExecSession, streams: Streams, wanted: Wanted) -> None:
    """Join both until the command has ended or the client has gone."""
    feeding = asyncio.create_task(_feed(session, streams))
    output = asyncio.create_task(_send_output(session, streams, wanted))
    try:
        await asyncio.wait((feeding, output), return_when=asyncio.FIRST_COMPLETED)
        if output.done():
            output.result()
            await streams.send(Channel.ERROR, json.dumps(status_of_exit(await session.wait())).encode())
            await streams.close()
    except WireError:
        pass  # the client has gone; the command is ended below
    finally:
        for task in (feeding, output):
            task.cancel()
        await asyncio.gather(feeding, output, return_exceptions=True)
        await session.close()


async def refuse(streams: Streams, refusal: ExecError) -> None:
    """Tell a client whose connection stands already that the command cannot be run."""
    status: Document = {
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
        "message": f"Internal error occurred: error executing command in container: {refusal}",
    }  # fmt: skip
    with contextlib.suppress(WireError):
        await streams.send(Channel.ERROR, json.dumps(status).encode())
        await streams.close()


async def _feed(session: ExecSession, streams: Streams) -> None:
    async for event in streams.events():
        if isinstance(event, Resized):
            session.resize(columns=event.width, rows=event.height)
        elif isinstance(event, ChannelClosed):
            if event.channel is Channel.STDIN:
                await session.close_stdin()
        elif event.channel is Channel.STDIN:
            await session.write(event.data)


async def _send_output(session: ExecSession, streams: Streams, wanted: Wanted) -> None:
    while True:
        number, data = await session.read()
        if not data:
            return
        if (number == 1 and wanted.stdout) or (number == 2 and wanted.stderr):
            await streams.send(Channel(number), data)


def status_of_exit(code: int) -> Document:
    """How an exit code travels: clients read it out of the causes."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
