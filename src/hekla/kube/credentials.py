"""Who we are to an API server: a fixed token, a token in a file that is renewed, a password, or what a plug-in prints.

`kubeconfig.py` chooses one of these; `https.py` asks it for headers before each request.
"""

import asyncio
import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hekla.kube.clock import Clock, SystemClock, parse_rfc3339
from hekla.kube.errors import KubeError
from hekla.wire.heads import may_be_told

TOKEN_REREAD_S = 60.0
"""A projected token is renewed well before it expires, so reading the file once a minute is enough."""

EXPIRY_SKEW = timedelta(seconds=30)
"""A credential is fetched anew this long before it expires: requests under way must still succeed."""

PLUGIN_PATIENCE_S = 60.0
MAX_PLUGIN_OUTPUT = 1024 * 1024
NO_TOKEN = "holds a character that no token can have, such as a typographic quote or a line break"
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class CredentialError(KubeError):
    """A credential that cannot be had; the sentence names where it should come from."""


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Credentials(Protocol):
    """Gives the Authorization header and the client certificate of the moment."""

    async def headers(self) -> Sequence[tuple[str, str]]:
        """Headers to send; raises CredentialError."""

    async def certificate(self) -> ClientCertificate | None:
        """What to show in the TLS handshake."""

    def rejected(self) -> bool:
        """The server said 401: forget what is cached. True if another try may succeed."""


@dataclass(frozen=True)
class Impersonating:
    """Credentials by which somebody acts as another, whose rights count."""

    own: Credentials
    named: tuple[tuple[str, str], ...]
    """Headers that name the other: Impersonate-User, -Group, -Uid, -Extra-..."""

    async def headers(self) -> Sequence[tuple[str, str]]:
        """Headers to send; raises CredentialError."""
        return [*await self.own.headers(), *self.named]

    async def certificate(self) -> ClientCertificate | None:
        """What to show in the TLS handshake."""
        return await self.own.certificate()

    def rejected(self) -> bool:
        """The server said 401: forget what is cached. True if another try may succeed."""
        return self.own.rejected()


@dataclass(frozen=True)
class FixedCredentials:
    """A token, a password, a certificate, or nothing at all."""

    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    client_certificate: ClientCertificate | None = None

    async def headers(self) -> Sequence[tuple[str, str]]:
        """The Authorization header, if there is something to say."""
        if self.token:
            return [("authorization", f"Bearer {self.token}")]
        if self.username:
            pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            return [("authorization", f"Basic {pair}")]
        return []

    async def certificate(self) -> ClientCertificate | None:
        """The certificate, if there is one."""
        return self.client_certificate

    def rejected(self) -> bool:
        """Nothing else is known."""
        return False


class TokenFile:
    """A token that somebody else keeps fresh in a file."""

    def __init__(
        self, path: Path, *, client_certificate: ClientCertificate | None = None, clock: Clock | None = None
    ) -> None:
        self._path = path
        self._certificate = client_certificate
        self._clock = clock or SystemClock()
        self._token = ""
        self._read_at_s = float("-inf")

    async def headers(self) -> Sequence[tuple[str, str]]:
        """The token as the file has it, read at most once a minute."""
        now_s = self._clock.elapsed_s()
        if now_s - self._read_at_s >= TOKEN_REREAD_S:
            self._token, self._read_at_s = self._read(), now_s
        return [("authorization", f"Bearer {self._token}")]

    async def certificate(self) -> ClientCertificate | None:
        """A certificate beside the token, if there is one."""
        return self._certificate

    def rejected(self) -> bool:
        """Read the file again: it may have been renewed just now."""
        before, self._read_at_s = self._token, float("-inf")
        return self._read() != before

    def _read(self) -> str:
        try:
            token = self._path.read_text(errors="replace").strip()
        except OSError as error:
            # A file that is being replaced must not end a working session.
            if self._token:
                return self._token
            raise CredentialError(f"token file {str(self._path)!r} cannot be read: {error.strerror}") from error
        if not token:
            raise CredentialError(f"token file {str(self._path)!r} is empty; it must hold a bearer token")
        if not may_be_told(token):
            raise CredentialError(f"token file {str(self._path)!r} {NO_TOKEN}")
        return token


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """An exec plug-in as a kubeconfig describes it."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """What `provideClusterInfo` hands on."""


class PluginCredentials:
    """Runs a plug-in when there is no credential or it is about to expire; one run serves all who wait."""

    def __init__(self, plugin: Plugin, *, clock: Clock | None = None) -> None:
        self._plugin = plugin
        self._clock = clock or SystemClock()
        self._status: dict[str, Any] | None = None
        self._lock = asyncio.Lock()

    async def headers(self) -> Sequence[tuple[str, str]]:
        """The plug-in's token, if it gives one."""
        token = (await self._current()).get("token")
        return [("authorization", f"Bearer {token}")] if token else []

    async def certificate(self) -> ClientCertificate | None:
        """The plug-in's certificate, if it gives one."""
        status = await self._current()
        if not status.get("clientCertificateData"):
            return None
        return ClientCertificate(status["clientCertificateData"].encode(), str(status["clientKeyData"]).encode())

    def rejected(self) -> bool:
        """Ask the plug-in again."""
        had_one, self._status = self._status is not None, None
        return had_one

    async def _current(self) -> dict[str, Any]:
        async with self._lock:
            if self._status is None or self._is_expired(self._status):
                self._status = await self._run()
            return self._status

    def _is_expired(self, status: dict[str, Any]) -> bool:
        expires = parse_rfc3339(status.get("expirationTimestamp"))
        return expires is not None and self._clock.now() + EXPIRY_SKEW >= expires

    async def _run(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": False}
        if self._plugin.cluster is not None:
            spec["cluster"] = dict(self._plugin.cluster)
        info = {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **self._plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                self._plugin.command, *self._plugin.args, env=env,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            hint = f"; {self._plugin.install_hint.strip()}" if self._plugin.install_hint else ""
            raise CredentialError(
                f"exec plug-in {self._plugin.command!r} cannot be run: {error.strerror}{hint}"
            ) from error
        return self._parse(await self._output(process), process.returncode or 0)

    async def _output(self, process: asyncio.subprocess.Process) -> bytes:
        try:
            async with asyncio.timeout(PLUGIN_PATIENCE_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise CredentialError(
                f"exec plug-in {self._plugin.command!r} gave no credential within {PLUGIN_PATIENCE_S:g} s"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
        return output[:MAX_PLUGIN_OUTPUT]

    def _parse(self, output: bytes, exit_code: int) -> dict[str, Any]:
        name = self._plugin.command
        if exit_code != 0:
            raise CredentialError(
                f"exec plug-in {name!r} failed with exit status {exit_code}; run it by hand to see why"
            )
        try:
            document = msgspec.json.decode(output, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise CredentialError(f"exec plug-in {name!r} printed no ExecCredential: {error}") from error
        if document.get("apiVersion") != self._plugin.api_version:
            raise CredentialError(
                f"exec plug-in {name!r} answered with apiVersion {document.get('apiVersion')!r}, "
                f"the kubeconfig asks for {self._plugin.api_version!r}"
            )
        status = document.get("status") or {}
        if not status.get("token") and not (status.get("clientCertificateData") and status.get("clientKeyData")):
            raise CredentialError(f"exec plug-in {name!r} gave neither a token nor a certificate with its key")
        if not may_be_told(str(status.get("token") or "")):
            raise CredentialError(f"the token of exec plug-in {name!r} {NO_TOKEN}")
        return dict(status)
