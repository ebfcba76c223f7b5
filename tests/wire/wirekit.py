import asyncio
import contextlib
from collections.abc import AsyncIterator

from hekla.wire.server import Server


@contextlib.asynccontextmanager
async def serving(handler, **options) -> AsyncIterator[Server]:
    server = Server()
    await server.start(handler, **options)
    try:
        yield server
    finally:
        await server.stop(grace_s=1)


class Raw:
    """A peer that speaks bytes and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: Server, ssl=None) -> "Raw":
        name = "localhost" if ssl else None
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, ssl=ssl, server_hostname=name))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")[:-2]
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name] = value
        status = int(status_line.split()[1])
        if status < 200:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self.chunks()
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return body

    async def end(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    def leave(self) -> None:
        self.writer.transport.abort()


async def until(condition) -> None:
    """Wait for something another task will bring about; the test's own timeout is the bound."""
    while not condition():
        await asyncio.sleep(0.002)
