"""Opens the endpoint of a node agent to the network: TLS with a certificate of its own, callers as the API server knows them.

A gateway in another process finds it by the Node object: its address, the port of its `kubeletEndpoint`, and the annotation
`hekla.dev/node-authority`, which says whose signature the certificate bears. The authority lives in memory alone and is made
anew in every life of the agent, so there is nothing to steal from a disk.
"""

import asyncio
import contextlib
import ipaddress
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from ssl import CERT_OPTIONAL, SSLContext
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from hekla.api.agents.node_contract import NODE_AUTHORITY
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.app.standalone.certificates import Certificates, renewed
from hekla.kube.client import Client, PatchType
from hekla.kube.clock import Clock
from hekla.kube.errors import KubeError
from hekla.wire.messages import Answer, Request, Response
from hekla.wire.server import Server
from hekla.wire.tls import server_context

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 3600.0
"""How often the certificate's age is looked at."""
LOOK_AGAIN_S: Final = 60.0
"""The same after it could not be read, written or told."""
STOP_GRACE_S: Final = 2.0


@dataclass
class NodeServing:
    """An endpoint that listens, though nobody may stand behind it yet."""

    address: str
    """As other machines reach it."""
    clock: Clock
    port: int = 0
    believed: str = ""
    """PEM of who signs the certificates of API servers; empty: only bearers of tokens are let in."""
    given: tuple[Path, Path] | None = None
    """Certificate chain and key that somebody else keeps, for API servers that ask for an authority of theirs; None: our own."""
    handler: Callable[[Request], Awaitable[Answer]] | None = None
    """The agent's, as soon as it runs."""
    certificates: Certificates = field(init=False)
    context: SSLContext = field(init=False)
    annotations: dict[str, str] = field(init=False)
    """What the Node object says of it, kept up to date in place."""

    def __post_init__(self) -> None:
        """Raises OSError and ValueError for files that were given and hold no certificate and key."""
        self.certificates = self._renewed(None)
        self.annotations = self._annotations()
        with _shown(self.certificates) as file, _authorities(self.believed) as believed:
            certificate, key = self.given or (file, file)
            self.context = server_context(certificate, key, believed)

    def _annotations(self) -> dict[str, str]:
        """Raises OSError and ValueError."""
        if self.given is not None:  # whoever believes this certificate need not know who signed it
            return {NODE_AUTHORITY: _certificates_of(self.given[0])}
        return {NODE_AUTHORITY: self.certificates.authorities.decode()}

    def believe(self, authorities: str) -> None:
        """Let in those, too, whose certificates these sign (PEM); who was let in before still is. Raises OSError and ValueError."""
        if authorities == self.believed:
            return
        with _authorities(authorities) as file:
            if file is not None:
                self.context.load_verify_locations(cafile=file)
                self.context.verify_mode = CERT_OPTIONAL
        self.believed = authorities

    async def answer(self, request: Request) -> Answer:
        """What the agent says, once there is one."""
        if self.handler is None:
            return Response(503, b'{"kind":"Status","status":"Failure","code":503,"message":"the node agent starts"}')
        return await self.handler(request)

    async def keep_fresh(self, client: Client, nodes: list[str]) -> None:
        """Renew the certificate when a third of its life is left; connections that stand are not touched. What is in the way is
        told, and no reason to end.
        """
        wait_s = LOOK_EVERY_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = LOOK_AGAIN_S
            try:
                self.certificates = self._renewed(self.certificates)
                # gateways are to believe the new one before they see it; if they cannot be told, they believe the old one for a while
                await self._tell(client, nodes)
                with _shown(self.certificates) as file:
                    self.context.load_cert_chain(*(self.given or (file, file)))
                if self.annotations == self._annotations():
                    wait_s = LOOK_EVERY_S
            except (OSError, ValueError) as trouble:  # given files may be written just now, or the disk is full
                log.warning("certificate of the node's endpoint not renewed", why=str(trouble))

    async def _tell(self, client: Client, nodes: list[str]) -> None:
        annotations = self._annotations()
        if annotations == self.annotations:
            return
        patch: Document = {"metadata": {"annotations": annotations}}
        try:
            for name in nodes:
                await client.patch(Node, name, patch, patch_type=PatchType.MERGE)
            self.annotations.update(annotations)  # the same mapping: a Node that is made anew has it from here
        except KubeError as trouble:
            log.warning("certificate of the node's endpoint not told", why=str(trouble))

    def _renewed(self, known: Certificates | None) -> Certificates:
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(self.address))]
        return renewed(known, names, self.clock.now())


@asynccontextmanager
async def node_serving(
    *, host: str, port: int, address: str, clock: Clock, believed: str = "", given: tuple[Path, Path] | None = None
) -> AsyncIterator[NodeServing]:
    """Listen for the length of a block."""
    serving, server = NodeServing(address, clock, believed=believed, given=given), Server()
    await server.start(serving.answer, host=host, port=port, ssl_context=serving.context)
    serving.port = server.port
    log.info("node endpoint listens", address=f"https://{address}:{server.port}")
    try:
        yield serving
    finally:
        await server.stop(STOP_GRACE_S)


def _certificates_of(file: Path) -> str:
    """PEM of a file's certificates alone, for many keep the key beside them. ValueError: there are none."""
    found = x509.load_pem_x509_certificates(file.read_bytes())
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


@contextlib.contextmanager
def _authorities(pem: str) -> Iterator[Path | None]:
    if not pem:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:
        file = Path(directory) / "authorities.pem"
        file.write_text(pem)
        yield file


@contextlib.contextmanager
def _shown(certificates: Certificates) -> Iterator[Path]:
    """OpenSSL takes files only: a private one, for a moment."""
    with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:
        file = Path(directory) / "server.pem"
        file.touch(mode=0o600)
        file.write_bytes(certificates.certificate + certificates.key)
        yield file
