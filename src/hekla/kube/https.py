"""Speaks to any API server over HTTP or HTTPS. `in_process.py` is its twin for one in this process.

It stands on `hekla.wire.client`; who we are comes from `credentials.py`, where the server is from `kubeconfig.py`.
"""

import asyncio
import ssl
import tempfile
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path

from hekla.kube.answers import error_from_response, header
from hekla.kube.credentials import ClientCertificate, Credentials, FixedCredentials
from hekla.kube.errors import NotFoundError, TransportError
from hekla.wire import tls
from hekla.wire.client import HttpClient
from hekla.wire.errors import UpgradeRefusedError, WireError
from hekla.wire.messages import HeaderList, Request, Response
from hekla.wire.websocket import WebSocketSession

REQUEST_TIMEOUT_S = 60.0
MAX_UNPACKED = 1024 * 1024 * 1024
"""A gzip answer that grows beyond this is refused."""


class HttpsTransport:
    """A transport to one server, named by its URL; http:// goes without TLS."""

    prefers_watch_list = True

    def __init__(
        self,
        server: str,
        *,
        credentials: Credentials | None = None,
        ca_pem: bytes = b"",
        is_insecure: bool = False,
        tls_server_name: str = "",
        use_gzip: bool = True,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.server = server.rstrip("/")
        self._credentials = credentials or FixedCredentials()
        self._ca_pem, self._is_insecure, self._tls_server_name = ca_pem, is_insecure, tls_server_name
        self._use_gzip = use_gzip
        self._timeout_s = timeout_s
        self._http: HttpClient | None = None
        self._shown: ClientCertificate | None = None
        self._is_closed = False

    async def send(self, request: Request) -> Response:
        """The whole answer, unpacked; a 401 is tried once more if the credentials may have been renewed."""
        response = await self._send_once(request)
        if response.status == 401 and self._credentials.rejected():
            response = await self._send_once(request)
        return response

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The body as it comes; an error status raises."""
        http, headers = await self._ready(request)
        try:
            async with http.stream(
                request.method, self.server + request.target, headers, request.body, timeout_s=self._timeout_s
            ) as streamed:
                if streamed.status >= 400:
                    if streamed.status == 401:
                        self._credentials.rejected()
                    raise error_from_response(streamed.status, await streamed.read(), streamed.headers)
                async for piece in streamed:
                    yield piece
        except WireError as error:
            raise TransportError(f"{request.method} {self.server}: {error}") from error

    async def websocket(self, target: str, subprotocols: tuple[str, ...]) -> WebSocketSession:
        """Open a WebSocket to a path of the server (exec, attach, port-forward); a refusal raises ApiError."""
        http, headers = await self._ready(Request("GET", target))
        try:
            return await http.websocket(self.server + target, headers, subprotocols, timeout_s=self._timeout_s)
        except UpgradeRefusedError as error:
            raise error_from_response(error.status, error.body) from error
        except WireError as error:
            raise TransportError(f"{self.server}: {error}") from error

    async def close(self) -> None:
        """Drop all connections."""
        self._is_closed = True
        if self._http is not None:
            await self._http.close()

    async def _send_once(self, request: Request) -> Response:
        http, headers = await self._ready(request)
        if self._use_gzip and request.method == "GET":
            headers = [*headers, ("accept-encoding", "gzip")]
        try:
            response = await http.request(
                request.method, self.server + request.target, headers, request.body, timeout_s=self._timeout_s
            )
        except WireError as error:
            raise TransportError(f"{request.method} {self.server}: {error}") from error
        if header(response.headers, "content-encoding") == "gzip":
            assert isinstance(response.body, bytes)
            response.body = _unpack(response.body)
        return response

    async def _ready(self, request: Request) -> tuple[HttpClient, HeaderList]:
        _check_path(request.target)
        if self._is_closed:
            raise TransportError(f"the connection to {self.server} has been closed")
        headers = [*request.headers.items(), *await self._credentials.headers()]
        return await self._client(), headers

    async def _client(self) -> HttpClient:
        certificate = await self._credentials.certificate()
        if self._http is None or certificate != self._shown:
            # A renewed client certificate needs new handshakes; what runs on the old connections may end.
            old, self._shown = self._http, certificate
            self._http = HttpClient(ssl_context=await self._tls(certificate), server_hostname=self._tls_server_name)
            if old is not None:
                asyncio.get_running_loop().call_later(self._timeout_s, _close_later, old)
        return self._http

    async def _tls(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        context = tls.client_context(ca_data=self._ca_pem, insecure=self._is_insecure)
        # Python 3.13 can be strict here; clusters' own authorities often lack the extensions it then wants.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if certificate is not None:
            _load(context, certificate)
        return context


_closing: set[asyncio.Task[None]] = set()


def _check_path(target: str) -> None:
    """NotFoundError: a name in the path is one of two that nothing can have. Proxies read them as directions: `pods/..` is the namespace."""
    if "/." not in target:
        return
    for part in target.partition("?")[0].split("/"):
        if part in (".", ".."):
            raise NotFoundError(404, "NotFound", f'"{part}" not found: it is the name of nothing')


def _close_later(http: HttpClient) -> None:
    task = asyncio.ensure_future(http.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _load(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Give the context a certificate; OpenSSL only takes files, so it gets a private one for a moment."""
    with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:
        path = Path(directory) / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate.certificate.rstrip() + b"\n" + certificate.key)
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise TransportError(f"the client certificate and its key cannot be used: {error.reason}") from error


def _unpack(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        whole = unpacker.decompress(body, MAX_UNPACKED)
    except zlib.error as error:
        raise TransportError(f"the server's gzip answer is broken: {error}") from error
    if unpacker.unconsumed_tail:
        raise TransportError(f"the server's gzip answer is larger than {MAX_UNPACKED} bytes")
    return whole
