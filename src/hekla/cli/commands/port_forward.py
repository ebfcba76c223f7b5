"""Forward local ports to a pod, until interrupted.

Examples:

  hekla port-forward web-0 8080:80

  hekla port-forward deployment/web 8080

  hekla port-forward web-0 :80
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.wire.spdy_session import SpdySession, SpdyStream

READ_BYTES = 64 * 1024


def run(
    pod: Annotated[
        str, typer.Argument(metavar="POD | TYPE/NAME", show_default=False, autocompletion=completion.pods_or_types)
    ],
    ports: Annotated[list[str], typer.Argument(metavar="[LOCAL:]REMOTE...", show_default=False)],
    address: Annotated[str, typer.Option("--address", help="The local address to listen on.")] = "127.0.0.1",
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Forward ports."""
    from hekla.cli.connection import run_connected

    pairs = [parse_ports(text) for text in ports]

    async def work(connection: "Connection") -> None:
        from hekla.api.pods import Pod
        from hekla.cli.commands.logs import pods_of

        where = namespace or connection.default_namespace
        [name, *_] = await pods_of(connection, pod, where)
        await _forward(connection, Pod.kind_info.path(where, name, "portforward"), pairs, address)

    run_connected(kubeconfig, work)


def parse_ports(text: str) -> tuple[int, int]:
    """(local, remote); a local port of 0 is any free one."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    local, colon, remote = text.rpartition(":")
    if not (remote.isdigit() and 0 < int(remote) < 65_536) or (local and not (local.isdigit() and int(local) < 65_536)):
        raise CommandError(f'"{text}" is no port; write REMOTE, LOCAL:REMOTE or :REMOTE', EXIT_USAGE)
    return (int(local or 0) if colon else int(remote)), int(remote)


async def _forward(connection: "Connection", path: str, pairs: list[tuple[int, int]], address: str) -> None:
    from hekla.wire.channels import PORT_FORWARD_TUNNEL
    from hekla.wire.spdy_session import SpdySession, WebSocketBytes

    socket = await connection.transport.websocket(path, (PORT_FORWARD_TUNNEL,))
    session = SpdySession(WebSocketBytes(socket), is_client=True)
    async with session, asyncio.TaskGroup() as group:
        for local, remote in pairs:
            group.create_task(_listen(session, address, local, remote))


async def _listen(session: "SpdySession", address: str, local: int, remote: int) -> None:
    requests = iter(range(1, 2**31))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(session, reader, writer, remote, next(requests))

    server = await asyncio.start_server(serve, address, local)
    port = server.sockets[0].getsockname()[1]
    typer.echo(f"Forwarding from {address}:{port} -> {remote}")
    async with server:
        await server.serve_forever()


async def _serve(
    session: "SpdySession", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, remote: int, number: int
) -> None:
    """One local connection: an error stream and a data stream of its own, as Kubernetes' port-forward has it."""
    headers = {"port": str(remote), "requestid": str(number)}
    errors = await session.open({**headers, "streamtype": "error"}, is_last=True)
    data = await session.open({**headers, "streamtype": "data"})
    sending = asyncio.create_task(_copy_out(reader, data))
    try:
        while piece := await data.receive():
            writer.write(piece)
            await writer.drain()
        said = await errors.receive()
        if said:
            typer.echo(f"hekla: port {remote}: {said.decode(errors='replace')}", err=True)
    finally:
        sending.cancel()
        writer.close()


async def _copy_out(reader: asyncio.StreamReader, data: "SpdyStream") -> None:
    while piece := await reader.read(READ_BYTES):
        await data.send(piece)
    await data.close()
