"""Has API servers find the scheduler that leads, and listens to them: certificate, address and registration.

    ConfigMap kube-system/extension-apiserver-authentication   read: whom to believe
    EndpointSlice hekla-scheduler-answers                      written: where this replica, which leads, listens
    APIService v1.scheduling.hekla.dev                         written: by which service, and who signs our certificate

The registration lasts no longer than the term: of a group that nobody answers for, API servers cannot say what it holds, and then
no namespace of the cluster can be deleted. It goes whole; one whose service is only taken out of it is asked for as before. The authority
is made anew for every term and lives in memory alone: there is nothing to steal from a Secret, and whoever takes over says so in the same
breath. What cannot be had (no APIService, no right) is told in the log once and tried again; scheduling goes on meanwhile.
"""

import asyncio
import base64
import ipaddress
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from ssl import CERT_REQUIRED, SSLContext
from typing import TYPE_CHECKING

import structlog

from hekla.api.discovery import EndpointSlice
from hekla.api.explanation import EXPLANATION
from hekla.api.foreign import ApiService
from hekla.api.meta import Document
from hekla.app.front_proxy import CONFIG_MAP, NAMESPACE, Trust, trust_of
from hekla.app.scheduler_elsewhere import API_SERVICE
from hekla.app.standalone.answer_desk import AnswerDesk
from hekla.app.standalone.certificates import Certificates, renewed, server_names
from hekla.app.standalone.labels import labels_of
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import SCHEDULER, host_and_port
from hekla.kube.client import Client, PatchType
from hekla.kube.errors import KubeError, NotFoundError
from hekla.wire.limits import Limits
from hekla.wire.server import Server
from hekla.wire.tls import server_context

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

log = structlog.get_logger(__name__)

SERVICE = "hekla-scheduler-answers"
PORT_NAME = "answers"
PERIOD_S, RETRY_S, STOP_GRACE_S = 60.0, 5.0, 2.0
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LIMITS = Limits(connections=200, body_bytes=64 * 1024, url_bytes=16 * 1024)


@dataclass
class Answering:
    """One term of answering."""

    office: Office
    client: Client
    scheduler: "BatchScheduler"
    _trust: Trust | None = None
    _certificates: Certificates | None = None
    _server: Server | None = None
    _announced: Server | None = None
    """The server of whose address the log told, once it was registered too."""
    _told: str = field(default="")
    _bundle: str = ""
    """The authorities of our registration, by which we know it; empty before there is one."""

    async def run(self) -> None:
        """Answer until cancelled; what stands in the way never ends it."""
        try:
            while True:
                try:
                    await self._look()
                    self._tell("")
                except (KubeError, OSError, ValueError) as error:
                    self._tell(str(error))
                await asyncio.sleep(RETRY_S if self._told else PERIOD_S)
        finally:
            await self._withdraw()
            await self._stop()

    async def _look(self) -> None:
        """Listen by what is to be believed and shown now, register it, then say where."""
        trust = trust_of(await self.client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"))
        if trust is None:
            raise KubeError("the API server passes no requests on (no requestheader-client-ca-file)")
        now = self.office.clock.now()
        certificates = renewed(self._certificates, server_names(SERVICE, self.office.settings.namespace), now)
        host, port = host_and_port("--answers-address", self.office.settings.answers_address)
        if self._server is None or trust != self._trust or certificates != self._certificates:
            await self._stop()
            self._server = await self._listening(host, port, trust, certificates)
            self._trust, self._certificates = trust, certificates
        await self._publish(self._server.port, certificates.authorities)
        if self._server is not self._announced:
            self._announced = self._server
            log.info("answers", address=f"https://{host}:{self._server.port}")

    async def _listening(self, host: str, port: int, trust: Trust, certificates: Certificates) -> Server:
        server, desk = Server(), AnswerDesk(self.scheduler, self.client, trust)
        await server.start(desk.answer, host=host, port=port, ssl_context=_context(trust, certificates), limits=LIMITS)
        return server

    async def _publish(self, port: int, authorities: bytes) -> None:
        for path, document in endpoint_slice(self.office.settings.namespace, self._address(), port):
            query = "?fieldManager=hekla-scheduler&force=true"
            await self.client.request("PATCH", path + query, document, content_type=PatchType.APPLY)
        self._bundle = base64.b64encode(authorities).decode()
        namespace, path = self.office.settings.namespace, ApiService.kind_info.path(name=API_SERVICE)
        try:
            spec = (await self.client.request("GET", path)).get("spec") or {}
        except NotFoundError:
            spec = {}
        wanted = registration(namespace, self._bundle)
        if any(spec.get(field) != value for field, value in wanted["spec"].items()):
            query = "?fieldManager=hekla-scheduler&force=true"
            await self.client.request("PATCH", path + query, wanted, content_type=PatchType.APPLY)

    async def _withdraw(self) -> None:
        """Take the registration back, unless it is another's by now. Who has lost the way to the server cannot."""
        if not self._bundle:
            return
        path = ApiService.kind_info.path(name=API_SERVICE)
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                found = await self.client.request("GET", path)
                if (found.get("spec") or {}).get("caBundle") == self._bundle:
                    unchanged = {"resourceVersion": found["metadata"]["resourceVersion"]}
                    await self.client.request("DELETE", path, {"preconditions": unchanged})
        except (KubeError, TimeoutError) as error:
            log.debug("registration not taken back", why=str(error))

    def _address(self) -> str:
        """Where API servers reach this process."""
        host, _ = host_and_port("--answers-address", self.office.settings.answers_address)
        return os.environ.get("POD_IP") or (host if host != "0.0.0.0" else "127.0.0.1")

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None

    def _tell(self, why: str) -> None:
        if why and why != self._told:
            log.warning("questions are not answered", why=why, so="hekla why finds no scheduler; scheduling goes on")
        self._told = why


def unanswered() -> Document:
    """The registration as it is installed, for the API server's own group, of which it knows nothing: it disturbs nobody, and is deleted
    with the rest. It comes after the Deployment, whose scheduler would register itself again.
    """
    info = ApiService.kind_info
    spec = {
        "group": EXPLANATION.group,
        "version": EXPLANATION.version,
        "groupPriorityMinimum": 1000,
        "versionPriority": 10,
    }
    metadata = {"name": API_SERVICE, "labels": labels_of(SCHEDULER)}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}


def registration(namespace: str, ca_bundle: str) -> Document:
    """The registration with the service and the authorities of who answers."""
    installed = unanswered()
    service = {"namespace": namespace, "name": SERVICE, "port": 443}
    told = {"annotations": {LAST_APPLIED: _as_applied(installed)}}
    return {
        **installed,
        "metadata": {**installed["metadata"], **told},
        "spec": {**installed["spec"], "service": service, "caBundle": ca_bundle},
    }


def _as_applied(document: Document) -> str:
    """What `kubectl apply` notes of a document. The registration goes with each term, and with it the note, without which kubectl warns."""
    noted = {**document, "metadata": {**document["metadata"], "annotations": {}}}
    return json.dumps(noted, separators=(",", ":"), sort_keys=True) + "\n"


def endpoint_slice(namespace: str, address: str, port: int) -> Iterator[tuple[str, Document]]:
    """The path and document that lead the service to the replica that leads."""
    info = EndpointSlice.kind_info
    version = ipaddress.ip_address(address).version
    yield (
        info.path(namespace, SERVICE),
        {
            "apiVersion": info.api_version,
            "kind": info.kind,
            "metadata": {
                "name": SERVICE,
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "hekla"},
            },
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
        },
    )


def _context(trust: Trust, certificates: Certificates) -> SSLContext:
    """TLS that lets in those alone whom the API server's authority has signed. OpenSSL takes files only: private ones."""
    with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:
        shown, authorities = Path(directory) / "server.pem", Path(directory) / "authorities.pem"
        shown.touch(mode=0o600)
        shown.write_bytes(certificates.certificate + certificates.key)
        authorities.write_text(trust.authorities)
        context = server_context(shown, shown, authorities)
    context.verify_mode = CERT_REQUIRED
    return context
