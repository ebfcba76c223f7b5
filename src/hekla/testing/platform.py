"""A whole platform as a process of its own, for tests that talk to it as users do: over TLS, from outside.

    with PlatformProcess(tmp_path) as platform:
        config.load_kube_config(str(platform.kubeconfig))

It is started as `hekla up` in the foreground, told apart by its pid and ended by it. `api_server.py` is the lighter
server for tests that need neither TLS nor a process that can be killed.
"""

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

BARE = ("node", "scheduler", "workloads", "serving", "controlplane")
"""Left out unless asked for: what is tested here is the API server, and the fewer others write, the clearer a failure."""

START_S, STOP_S, ANSWER_S = 60.0, 20.0, 60.0
SANDBOX_GRACE_S = 10
"""A platform that a test has killed leaves no sandbox behind for longer."""


class DidNotStartError(Exception):
    """The platform said why, or ended without a word; the sentence is what it printed."""


@dataclass(frozen=True)
class Reply:
    """One answer as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    body: bytes

    @property
    def document(self) -> Any:
        """The body read as JSON."""
        return json.loads(self.body)


class PlatformProcess:
    """A platform on one data directory, which may be started, killed and started again."""

    def __init__(
        self,
        data_dir: Path,
        *,
        without: Sequence[str] = BARE,
        flags: Sequence[str] = (),
        port: int = 0,
        max_files: int = 0,
        found_files: int = 0,
    ) -> None:
        """`flags` are further ones of `hekla up`; `max_files` bounds the descriptors that the process may open, `found_files` is what
        its shell allows, which it may raise.
        """
        self.data_dir = data_dir
        self._without, self._flags, self._port = without, flags, port
        self._max_files, self._found_files = max_files, found_files
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PlatformProcess":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what is known of it

    @property
    def kubeconfig(self) -> Path:
        """How the administrator reaches it."""
        return self.data_dir / "kubeconfig"

    @property
    def url(self) -> str:
        """Where it listens now."""
        return str(json.loads((self.data_dir / "platform.json").read_text())["url"])

    @property
    def port(self) -> int:
        """The port of its URL."""
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The process; it is an error to ask when none was started."""
        assert self._process is not None, "the platform was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything it said so far, of all its lives."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process is None or self._process.poll() is not None

    @property
    def resident_bytes(self) -> int:
        """Memory that the process holds."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_s(self) -> float:
        """User and system time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ---- asking it

    def tls(self, *, is_admin: bool = True) -> ssl.SSLContext:
        """Trust in the platform's authority, with the administrator's certificate to show or with none."""
        pki = self.data_dir / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if is_admin:
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return context

    def ask(
        self, method: str, target: str, body: Any = None, *, token: str | None = None, timeout_s: float = ANSWER_S,
        **headers: str,
    ) -> Reply:  # fmt: skip
        """One request on a connection of its own, as the administrator, or with a token ("" for nobody's)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.tls(is_admin=token is None), timeout=timeout_s
        )
        with contextlib.closing(connection):
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    # ---- its life

    def start(self) -> None:
        """Start it and return when it is ready; raises DidNotStartError."""
        assert self.has_ended, "it runs already"
        reader, writer = os.pipe()
        already = len(self.log)
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hekla.cli.main", "up", *self._arguments(), "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writer,),
                preexec_fn=self._bound_files if self._max_files or self._found_files else None,
            )
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            readable, _, _ = select.select([ready], [], [], START_S)
            answer = ready.readline() if readable else b""
        if not answer or "url" not in json.loads(answer):
            self.kill()
            raise DidNotStartError(self.log[already:] or "it said nothing")

    def stop(self) -> int:
        """Ask it to end, and make it end if it does not; returns the exit code (negative for a signal)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it as a power cut would."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    @property
    def _log_file(self) -> Path:
        # beside the directory and not in it: a test may fill that one's disk
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def _arguments(self) -> list[str]:
        left_out = [part for name in self._without for part in ("--without", name)]
        nodes = [] if "--nodes" in self._flags else ["--nodes", "0"]
        grace = [] if "--sandbox-grace-s" in self._flags else ["--sandbox-grace-s", str(SANDBOX_GRACE_S)]
        return ["--data-dir", str(self.data_dir), "--port", str(self._port), *nodes, *left_out, *grace, *self._flags]

    def _bound_files(self) -> None:
        most = self._max_files or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._found_files or most, most))


@contextmanager
def running_platform(*, without: Sequence[str] = BARE, flags: Sequence[str] = ()) -> Iterator[PlatformProcess]:
    """A platform in a directory of its own, gone with the block: the body of a session-scoped fixture."""
    with tempfile.TemporaryDirectory(prefix="hekla-test-") as folder:
        platform = PlatformProcess(Path(folder) / "data", without=without, flags=flags)
        platform.start()
        try:
            yield platform
        finally:
            status = platform.stop()
        assert status == 0, f"the platform ended with {status}: {platform.log[-2000:]}"


def refusal_of(data_dir: Path, *flags: str) -> tuple[int, str]:
    """What `hekla up` says and exits with where it cannot start."""
    command = [sys.executable, "-m", "hekla.cli.main", "up", "--data-dir", str(data_dir), "--port", "0", "--nodes", "0"]
    left_out = [part for name in BARE for part in ("--without", name)]
    done = subprocess.run([*command, *left_out, *flags], capture_output=True, text=True, timeout=START_S, check=False)
    return done.returncode, done.stderr
