"""A real Redis or Valkey for tests: on a socket of its own, in memory, gone when the test is."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("redis-server", "valkey-server")


def program() -> str | None:
    """The server that this machine has."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class RedisServer:
    """One server, which can be stopped and started again on the same socket."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "s"  # a socket's path holds 107 characters
        self.url = f"unix://{self.socket}"
        self._running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it says that it listens."""
        found = program()
        assert found is not None
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        self._running = subprocess.Popen(
            [found, *options, "--dir", str(self.socket.parent)], stdout=subprocess.PIPE, text=True
        )
        assert self._running.stdout is not None
        for line in self._running.stdout:
            if "accept connections" in line:
                return
        raise RuntimeError(f"{found} ended before it listened")

    def stop(self) -> None:
        """Kill -9, as a machine that goes away."""
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None
        self.socket.unlink(missing_ok=True)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A running server."""
    with tempfile.TemporaryDirectory(prefix="hekla-redis-") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
