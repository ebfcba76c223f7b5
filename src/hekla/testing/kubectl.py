r"""The real `kubectl` as a test's hands: run to its end, or left running until the block ends.

kubectl = Kubectl(platform.kubeconfig, namespace="mine", home=tmp_path)
assert kubectl("get", "pods").out == ""
with kubectl.running("port-forward", "pod/web", ":80") as forward:
    port = forward.wait_for(r"127.0.0.1:(\d+)")
"""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 150.0
NOT_CONNECTED, TRIES = "net/http: TLS handshake timeout", 6
"""kubectl gives a handshake ten seconds, whatever it is told; a machine with thirty busy processes may need more, and until
the handshake is over nothing has been asked for.
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Kubectl:
    """`kubectl` against one platform, in one namespace, with a home of its own for its caches."""

    kubeconfig: Path
    home: Path
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """The same in another namespace."""
        return replace(self, namespace=namespace)

    def __call__(
        self, *arguments: str, stdin: str = "", code: int | None = 0, env: dict[str, str] | None = None
    ) -> Said:
        """Run it; `code` is the exit code it must have, None for any."""
        for _ in range(TRIES):
            done = subprocess.run(
                self.command(*arguments),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=self.environment(env),
            )
            said = Said(done.returncode, done.stdout, done.stderr)
            if NOT_CONNECTED not in said.err:
                break
        assert code is None or said.code == code, f"kubectl {' '.join(arguments)}: {said}"
        return said

    @contextmanager
    def running(self, *arguments: str) -> Iterator["RunningCommand"]:
        """Leave it running for the length of a block."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        command = RunningCommand(process)
        try:
            yield command
        finally:
            process.kill()
            command.end()

    def command(self, *arguments: str) -> list[str]:
        """The command line; a namespace among the arguments wins over ours."""
        return ["kubectl", "--namespace", self.namespace, *arguments]

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """What it runs with: nothing of the user's own configuration."""
        return {**os.environ, "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig), **(more or {})}


class RunningCommand:
    """A command that runs, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._printed = ""
        self._changed = threading.Condition()
        assert process.stdout is not None
        assert process.stderr is not None
        self._open = 2
        self._readers = [threading.Thread(target=self._read, args=(one,)) for one in (process.stdout, process.stderr)]
        for reader in self._readers:
            reader.start()

    @property
    def printed(self) -> str:
        """Everything on both of its outputs."""
        return self._printed

    def wait_for(self, pattern: str, *, timeout_s: float = 60.0) -> str:
        """Wait until a pattern was printed; returns its first group, or all of it."""
        with self._changed:
            self._changed.wait_for(lambda: re.search(pattern, self._printed) or not self._open, timeout_s)
            found = re.search(pattern, self._printed)
        assert found, f"{pattern!r} was never printed: {self._printed!r}"
        return found.group(1) if found.groups() else found.group()

    def send(self, text: str) -> None:
        """Type into it."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def end(self, *, timeout_s: float = 60.0) -> int:
        """Close its input and wait until it ends; returns its exit code."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        code = self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def _read(self, stream: IO[str]) -> None:
        while piece := stream.readline():
            with self._changed:
                self._printed += piece
                self._changed.notify_all()
        stream.close()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
