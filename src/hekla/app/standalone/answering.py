"""Has API servers find the scheduler that leads, and listens to them: certificate, address and registration.

    ConfigMap kube-system/extension-apiserver-authentication   read: whom to believe
    EndpointSlice hekla-scheduler-answers                      written: where this replica, which leads, listens
    APIService v1.scheduling.hekla.dev                         written: by which service, and who signs our certificate

A scheduler of another name registers itself by a version of its own (`v1` is that of `volcano`; `hekla.api.explanation.version_of`), and as `v1`,
too, where nobody else answers by it. Two that had `v1` in common took it from one another every minute, and each knew nothing of the other's pods.

The registration lasts no longer than the term: of a group that nobody answers for, API servers cannot say what it holds, and then
no namespace of the cluster can be deleted. It goes whole; one whose service is only taken out of it is asked for as before. The authority
is made anew for every term and lives in memory alone: there is nothing to steal from a Secret, and whoever takes over says so in the same
breath. One that was killed and does not come back leaves its registration: another scheduler that may delete it does so once nobody has
answered by it for ten minutes; who was only away registers itself again within one. What cannot be had (no APIService, no right) is told in the log once and tried again; scheduling goes on meanwhile.
"""

import asyncio
import base64
import contextlib
import ipaddress
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from ssl import CERT_REQUIRED, SSLContext
from typing import TYPE_CHECKING

import structlog

from hekla.api.discovery import EndpointSlice
from hekla.api.explanation import EXPLANATION, USUAL_SCHEDULER, version_of
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
from hekla.kube.errors import ApiError, KubeError, NotFoundError
from hekla.kube.timestamps import parse_rfc3339
from hekla.wire.limits import Limits
from hekla.wire.server import Server
from hekla.wire.tls import server_context

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

log = structlog.get_logger(__name__)

SERVICE = "hekla-scheduler-answers"
PORT_NAME = "answers"
ANSWERS_OF = "hekla.dev/answers-of"
"""On a registration: the lease of the scheduler whose it is."""
HINT = "let its account have the registration, the endpoints and the service of its name, as docs/howto/install-on-kubernetes.md has them"
PERIOD_S, RETRY_S, STOP_GRACE_S = 60.0, 5.0, 2.0
GONE_AFTER = timedelta(minutes=10)
"""How long nobody answers by a registration until another scheduler takes it back."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LIMITS = Limits(connections=200, body_bytes=64 * 1024, url_bytes=16 * 1024)


@dataclass(frozen=True)
class Place:
    """Where a scheduler can be asked."""

    version: str
    """Of the group."""

    @property
    def registration(self) -> str:
        """The name of the APIService."""
        return f"{self.version}.{EXPLANATION.group}"

    @property
    def service(self) -> str:
        """The name of the Service, and of the EndpointSlice that leads it to the replica that leads."""
        return SERVICE if self.version == EXPLANATION.version else f"{SERVICE}-{self.version}"


USUAL = Place(EXPLANATION.version)


def place_of(lease: str) -> Place:
    """The place of the scheduler that leads by a lease."""
    return Place(version_of(lease))


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
    """The authorities of our registrations, by which we know them; empty before there is one."""

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
        home = self.office.settings.namespace
        names = [name for place in self._places for name in server_names(place.service, home)]
        certificates = renewed(self._certificates, names, now)
        host, port = host_and_port("--answers-address", self.office.settings.answers_address)
        if self._server is None or trust != self._trust or certificates != self._certificates:
            await self._stop()
            self._server = await self._listening(host, port, trust, certificates)
            self._trust, self._certificates = trust, certificates
        await self._publish(self._server.port, certificates.authorities)
        await self._withdraw_the_dead(now)
        if self._server is not self._announced:
            self._announced = self._server
            log.info(
                "answers", address=f"https://{host}:{self._server.port}", registration=self._places[0].registration
            )

    async def _listening(self, host: str, port: int, trust: Trust, certificates: Certificates) -> Server:
        versions = frozenset(place.version for place in self._places)
        server, desk = Server(), AnswerDesk(self.scheduler, self.client, trust, versions)
        await server.start(desk.answer, host=host, port=port, ssl_context=_context(trust, certificates), limits=LIMITS)
        return server

    @property
    def _lease(self) -> str:
        return self.office.settings.scheduler_lease

    @property
    def _places(self) -> tuple[Place, ...]:
        """Where this scheduler may be asked, its own place first."""
        own = place_of(self._lease)
        return (own,) if own == USUAL else (own, USUAL)

    async def _publish(self, port: int, authorities: bytes) -> None:
        self._bundle = base64.b64encode(authorities).decode()
        own, *others = self._places
        failure: KubeError | None = None
        for place in (own, *others):
            try:
                found = await self._registered(place)
                if place is own or _is_free(found, self._lease):
                    await self._register(place, found, port)
            except ApiError as error:
                if error.code != 403:
                    raise
                # of its own place it may know nothing yet; it answers for the usual one all the same
                failure = failure or (KubeError(f"{error}; {HINT}") if others else error)
        if failure is not None:
            raise failure

    async def _registered(self, place: Place) -> Document | None:
        try:
            return await self.client.request("GET", ApiService.kind_info.path(name=place.registration))
        except NotFoundError:
            return None

    async def _register(self, place: Place, found: Document | None, port: int) -> None:
        namespace, query = self.office.settings.namespace, "?fieldManager=hekla-scheduler&force=true"
        for path, document in endpoint_slice(namespace, self._address(), port, place):
            await self.client.request("PATCH", path + query, document, content_type=PatchType.APPLY)
        spec, wanted = (found or {}).get("spec") or {}, registration(namespace, self._bundle, place, self._lease)
        is_told = found is not None and _owner(found) == self._lease
        if not is_told or any(spec.get(field) != value for field, value in wanted["spec"].items()):
            path = ApiService.kind_info.path(name=place.registration)
            await self.client.request("PATCH", path + query, wanted, content_type=PatchType.APPLY)

    async def _withdraw(self) -> None:
        """Take the registrations back, unless they are another's by now. Who has lost the way to the server cannot."""
        if not self._bundle:
            return
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                for place in self._places:
                    await self._withdraw_from(place)
        except (KubeError, TimeoutError) as error:
            log.debug("registration not taken back", why=str(error))

    async def _withdraw_from(self, place: Place) -> None:
        with contextlib.suppress(ApiError):  # what it has no right to is not its own; the others are
            found = await self._registered(place)
            if found is not None and (found.get("spec") or {}).get("caBundle") == self._bundle:
                await self._delete(found)

    async def _withdraw_the_dead(self, now: datetime) -> None:
        """Take back the registrations of schedulers that are gone. Discovery names them, to everybody."""
        for version in await self._versions():
            place = Place(version)
            if place not in self._places:
                with contextlib.suppress(ApiError):  # whose account is another's has no right to it
                    found = await self._registered(place)
                    if found is not None and _owner(found) and _is_dead(found, now):
                        await self._delete(found)
                        log.info("registration taken back", of=_owner(found), registration=place.registration)

    async def _versions(self) -> list[str]:
        """Of the group, as the API server knows them."""
        try:
            found = await self.client.request("GET", f"/apis/{EXPLANATION.group}")
        except ApiError:
            return []
        return [str(one["version"]) for one in found.get("versions") or ()]

    async def _delete(self, found: Document) -> None:
        """Delete a registration, if it is as it was found."""
        metadata = found["metadata"]
        path = ApiService.kind_info.path(name=metadata["name"])
        await self.client.request("DELETE", path, {"preconditions": {"resourceVersion": metadata["resourceVersion"]}})

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


def registration(namespace: str, ca_bundle: str, place: Place = USUAL, lease: str = USUAL_SCHEDULER) -> Document:
    """The registration with the service and the authorities of who answers."""
    installed = unanswered()
    service = {"namespace": namespace, "name": place.service, "port": 443}
    told = {LAST_APPLIED: _as_applied(installed)} if place == USUAL else {}
    metadata = {**installed["metadata"], "name": place.registration, "annotations": {**told, ANSWERS_OF: lease}}
    spec = {**installed["spec"], "version": place.version, "service": service, "caBundle": ca_bundle}
    return {**installed, "metadata": metadata, "spec": spec}


def _is_free(found: Document | None, lease: str) -> bool:
    """Whether a scheduler of another name than `volcano` may answer as v1: nobody does, or it does so already, or who did is gone."""
    if found is None or not (found.get("spec") or {}).get("service") or _owner(found) == lease:
        return True
    return _silence(found) is not None


def _is_dead(found: Document, now: datetime) -> bool:
    since = parse_rfc3339((_silence(found) or {}).get("lastTransitionTime"))
    return since is not None and since.tzinfo is not None and now - since >= GONE_AFTER


def _silence(found: Document) -> Document | None:
    """The condition that says that nobody answers by a registration."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    silent = (one for one in conditions if one.get("type") == "Available" and one.get("status") == "False")
    return next(silent, None)


def _owner(found: Document) -> str:
    return str((found["metadata"].get("annotations") or {}).get(ANSWERS_OF) or "")


def _as_applied(document: Document) -> str:
    """What `kubectl apply` notes of a document. The registration goes with each term, and with it the note, without which kubectl warns."""
    noted = {**document, "metadata": {**document["metadata"], "annotations": {}}}
    return json.dumps(noted, separators=(",", ":"), sort_keys=True) + "\n"


def endpoint_slice(namespace: str, address: str, port: int, place: Place = USUAL) -> Iterator[tuple[str, Document]]:
    """The path and document that lead the service to the replica that leads."""
    info = EndpointSlice.kind_info
    version = ipaddress.ip_address(address).version
    yield (
        info.path(namespace, place.service),
        {
            "apiVersion": info.api_version,
            "kind": info.kind,
            "metadata": {
                "name": place.service,
                "namespace": namespace,
                "labels": {
                    "kubernetes.io/service-name": place.service,
                    "endpointslice.kubernetes.io/managed-by": "hekla",
                },
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
