"""Runs a command in a container over a WebSocket (v5.channel.k8s.io): this terminal's input there, its output here."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from hekla.api.pods import Pod
from hekla.wire import channels
from hekla.wire.channels import Channel, ChannelData

if TYPE_CHECKING:
    from hekla.wire.messages import WebSocket

EXIT_UNKNOWN = 1
READ_BYTES = 32 * 1024


@dataclass(frozen=True, kw_only=True)
class Remote:
    """What to run, and which of our streams to lend it."""

    namespace: str
    pod: str
    container: str
    command: tuple[str, ...]
    has_stdin: bool
    has_tty: bool

    @property
    def target(self) -> str:
        """The path of the exec subresource."""
        query = [("command", part) for part in self.command]
        query += [("stdout", "true"), ("stdin", str(self.has_stdin).lower()), ("tty", str(self.has_tty).lower())]
        query += [("stderr", "true")] if not self.has_tty else []
        query += [("container", self.container)] if self.container else []
        return f"{Pod.kind_info.path(self.namespace, self.pod, 'exec')}?{urlencode(query)}"


async def converse(socket: "WebSocket", remote: Remote) -> int:
    """Carry both directions until the command has ended; returns its exit code."""
    with _raw_terminal(remote.has_tty):
        sending = [asyncio.create_task(_send_input(socket))] if remote.has_stdin else []
        if remote.has_tty:
            _tell_size(socket)
        try:
            return await _receive(socket)
        finally:
            for task in sending:
                task.cancel()
            await socket.close()


async def _receive(socket: "WebSocket") -> int:
    while (message := await socket.receive()) is not None:
        event = channels.decode(message, channels.V5)
        if not isinstance(event, ChannelData):
            continue
        if event.channel is Channel.STDOUT:
            _write(sys.stdout.fileno(), event.data)
        elif event.channel is Channel.STDERR:
            _write(sys.stderr.fileno(), event.data)
        elif event.channel is Channel.ERROR and event.data:
            return exit_code_of(json.loads(event.data))
    print("hekla: the connection ended before the command did", file=sys.stderr)  # noqa: T201 - the command's own voice
    return EXIT_UNKNOWN


def exit_code_of(status: dict[str, Any]) -> int:
    """The command's exit code, from the Status that ends a session; what is no exit code is told and counts as 1."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes", ()):
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    print(f"hekla: {status.get('message', 'the command could not be run')}", file=sys.stderr)  # noqa: T201 - as above
    return EXIT_UNKNOWN


async def _send_input(socket: "WebSocket") -> None:
    """Standard input until its end, read in a thread: it may be a file, a pipe or a terminal."""
    loop = asyncio.get_running_loop()
    while data := await loop.run_in_executor(None, os.read, sys.stdin.fileno(), READ_BYTES):
        await socket.send(channels.encode(Channel.STDIN, data))
    await socket.send(channels.encode_close(Channel.STDIN))


def _tell_size(socket: "WebSocket") -> None:
    loop = asyncio.get_running_loop()
    sending: set[asyncio.Task[None]] = set()

    def tell() -> None:
        size = os.get_terminal_size(sys.stdin.fileno())
        task = loop.create_task(socket.send(channels.encode_resize(size.columns, size.lines)))
        sending.add(task)
        task.add_done_callback(sending.discard)

    tell()
    loop.add_signal_handler(signal.SIGWINCH, tell)


@contextlib.contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
