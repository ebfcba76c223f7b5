"""The identity of a node in a cluster that is not ours: a client certificate as `system:node:<name>`, asked for as kubelets ask.

    CertificateSigningRequest   kubernetes.io/kube-apiserver-client-kubelet, in the name of the process's own account
    free                        a Node of that name that is a kubelet's, or another machine's, is left alone: nothing is asked for, nor is
                                a certificate used that is kept; where the account may not look, one that is kept is used with a warning
    approved                    by the cluster, if that account may create certificatesigningrequests/nodeclient; else by a person
    kept                        in the node's directory; renewed when a third of its life is left, or when API servers do not know it

API servers confine who has it (the Node authorizer, NodeRestriction): it reads the Secrets of its own pods alone, makes tokens for them
alone, and writes its own Node, its Lease and the statuses of its pods. No role could say that.
"""

import asyncio
import base64
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hekla.api.meta import Document
from hekla.kube.client import Client
from hekla.kube.clock import Clock, rfc3339
from hekla.kube.credentials import ClientCertificate
from hekla.kube.errors import ApiError, KubeError, NotFoundError
from hekla.kube.kubeconfig import Connection
from hekla.node.registration import node_info, taken

log = structlog.get_logger(__name__)

SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
USER, GROUP = "system:node:", "system:nodes"
FILE: Final = "identity.pem"
LOOK_S: Final = 1.0
"""How often it is looked whether a request was answered."""
PATIENCE_S: Final = 3600.0
"""Then another request is made: cluster controllers delete unanswered ones after a day, and answered ones after an hour."""
AGAIN_S: Final = 5.0
"""After a refusal, or while the API server is away or the node is somebody else's."""
REFUSED_S: Final = 300.0
"""The longest time after a refused request: each doubles it."""
RENEW_LOOK_S: Final = 60.0
DOUBT_S: Final = 300.0
"""After a new certificate nobody doubts it for so long: answers to what showed the old one may still come."""
LEFT: Final = 1 / 3
LEAST_LEFT: Final = timedelta(minutes=5)


class IdentityRefusedError(Exception):
    """A request was denied or failed; the sentence is the cluster's."""


class NodeNotFreeError(Exception):
    """The node is somebody else's, or it cannot be known whose it is. Nothing was asked for."""


class NodeUnknownError(NodeNotFreeError):
    """The account may not look whose it is."""


@dataclass
class NodeCredentials:
    """What the API server is shown as this node: the certificate of the moment."""

    shown: ClientCertificate
    doubted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an API server did not know it: the authority of nodes was changed, or this is another cluster."""

    async def headers(self) -> Sequence[tuple[str, str]]:
        """No token."""
        return ()

    async def certificate(self) -> ClientCertificate | None:
        """The newest."""
        return self.shown

    def rejected(self) -> bool:
        """Another one is asked for; until it is here nothing succeeds by trying."""
        self.doubted.set()
        return False


class NodeIdentity:
    """One node's identity."""

    def __init__(self, client: Client, name: str, directory: Path, clock: Clock) -> None:
        """`client` is the account's that asks."""
        self._client, self._name, self._file, self._clock = client, name, directory / FILE, clock
        self._credentials: NodeCredentials | None = None
        self.waits_for = ""
        """Why the cluster has not signed yet, for the first certificate or the next; empty if nothing is asked for."""

    @property
    def trouble(self) -> str:
        """Why the node cannot speak as itself; empty while its certificate is good, also while the next is waited for."""
        known = self._credentials
        if not self.waits_for or known is None or known.doubted.is_set():
            return self.waits_for
        end = end_of(known.shown)
        return "" if end > self._clock.now() else f"the certificate ended at {rfc3339(end)}; {self.waits_for}"

    async def connection(self, account: Connection) -> Connection:
        """The account's connection as this node, as soon as the cluster has signed for it."""
        if await self._is_account():
            return account
        self._credentials = NodeCredentials(await self._signed(or_kept=True))
        return replace(account, credentials=self._credentials)

    async def keep_fresh(self) -> None:
        """Ask for the next certificate in time, and when this one is not believed, until cancelled."""
        known = self._credentials
        if known is None:  # whoever gave the account its certificate renews it
            return
        while True:
            if known.doubted.is_set() or not self._is_fresh(known.shown):
                if known.doubted.is_set():
                    log.warning(
                        "the API server does not know the node's certificate; another is asked for", node=self._name
                    )
                known.shown = await self._signed()
                log.info("the node has its next certificate", node=self._name, until=rfc3339(end_of(known.shown)))
                left = (end_of(known.shown) - self._clock.now()).total_seconds()
                await asyncio.sleep(max(LOOK_S, min(DOUBT_S, left / 2)))  # one may be short-lived
                known.doubted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_LOOK_S):
                    await known.doubted.wait()

    async def _is_account(self) -> bool:
        while True:
            try:
                found = await is_node(self._client, self._name)
                self._tell("")
                return found
            except KubeError as error:
                self._tell(str(error))
            await asyncio.sleep(AGAIN_S)

    def _read(self) -> ClientCertificate | None:
        """The one of an earlier life, if it is this node's and not over: a request for the next may wait for a person."""
        try:
            text = self._file.read_bytes()
            head, mark, key = text.partition(b"-----BEGIN PRIVATE KEY-----")
            shown = x509.load_pem_x509_certificate(head)
            own = serialization.load_pem_private_key(mark + key, password=None).public_key()
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
            return None
        names = [str(each.value) for each in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        is_good = (
            names == [USER + self._name] and shown.not_valid_after_utc > self._clock.now() and shown.public_key() == own
        )
        return ClientCertificate(head, mark + key) if is_good else None

    def _is_fresh(self, one: ClientCertificate) -> bool:
        """Whether the next one need not be asked for yet."""
        shown = x509.load_pem_x509_certificate(one.certificate)
        life = shown.not_valid_after_utc - shown.not_valid_before_utc
        return shown.not_valid_after_utc - self._clock.now() > max(life * LEFT, LEAST_LEFT)

    async def _signed(self, *, or_kept: bool = False) -> ClientCertificate:
        """A new one, or one that is kept and good, as soon as the node is nobody else's."""
        refused = 0
        while True:
            try:
                await self._check_free()
                made = (self._read() if or_kept else None) or await self._ask()
                self._tell("")
                return made
            except NodeNotFreeError as error:
                kept = self._read() if or_kept and isinstance(error, NodeUnknownError) else None
                if kept is not None:  # the role of an earlier release; the machine spoke as this node before
                    log.warning("the certificate that the node kept is used unchecked", node=self._name, why=str(error))
                    self._tell("")
                    return kept
                self._tell(str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            except (KubeError, IdentityRefusedError, TimeoutError) as error:
                self._tell(str(error) or "nobody has approved the certificate")
                # each refusal leaves a request behind that a person looks at
                refused = refused + 1 if isinstance(error, IdentityRefusedError) else 0
            await asyncio.sleep(min(AGAIN_S * 2 ** min(refused - 1, 16) if refused else AGAIN_S, REFUSED_S))

    async def _check_free(self) -> None:
        """NodeNotFreeError: the node of that name is another agent's. NodeUnknownError: that cannot be known. Nobody gets a certificate as a machine
        that is not theirs, not even for a moment: with it they could read the Secrets of its pods.
        """
        try:
            status = (await self._client.request("GET", f"/api/v1/nodes/{self._name}")).get("status") or {}
        except NotFoundError:
            return
        except ApiError as refusal:
            if refusal.code != 403:
                raise
            raise NodeUnknownError(
                f'whose node "{self._name}" is cannot be known: {refusal}; let the account get nodes'
            ) from None
        info = status.get("nodeInfo") or {}
        if why := taken(self._name, str(info.get("containerRuntimeVersion") or "")) or self._elsewhere(status, info):
            raise NodeNotFreeError(why)

    def _elsewhere(self, status: Document, info: Document) -> str:
        """One of ours that lives on another machine. One that is ready counts as alive: a minute longer than it lives."""
        ours = node_info("")
        is_ready = any(
            one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ()
        )
        if not info.get("bootID") or not ours["bootID"] or not is_ready or is_this_machine(info, ours):
            return ""
        return f'node "{self._name}" is ready on another machine, or was a minute ago; choose another --node-name'

    async def _ask(self) -> ClientCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        spec = {
            "request": base64.b64encode(signing_request(self._name, key)).decode(), "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
        }  # fmt: skip
        document = {
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "hekla-node-"}, "spec": spec,
        }  # fmt: skip
        name = str((await self._client.request("POST", REQUESTS, document))["metadata"]["name"])
        waits = f"the request {name} waits; `kubectl certificate approve {name}`, if the cluster does not"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    status = (await self._client.request("GET", f"{REQUESTS}/{name}")).get("status") or {}
                    self._tell(waits)
                except NotFoundError:
                    raise
                except KubeError as error:  # the request lasts, and so does its key
                    status = {}
                    self._tell(f"the request {name} cannot be looked at: {error}")
                for condition in status.get("conditions") or ():
                    if condition.get("type") in ("Denied", "Failed"):
                        raise IdentityRefusedError(f"the request {name} was refused: {condition.get('message')}")
                if status.get("certificate"):
                    return self._kept(ClientCertificate(base64.b64decode(status["certificate"]), key_pem(key)))
                await asyncio.sleep(LOOK_S)

    def _kept(self, one: ClientCertificate) -> ClientCertificate:
        try:
            self._write(one)
        except OSError as error:  # it is as good in memory; the next life asks for another
            log.warning("the node's certificate is not kept", file=str(self._file), why=error.strerror or str(error))
        return one

    def _write(self, one: ClientCertificate) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(one.certificate.rstrip() + b"\n" + one.key)
        fresh.replace(self._file)

    def _tell(self, why: str) -> None:
        if why and why != self.waits_for:
            known = self._credentials
            if known is None or end_of(known.shown) <= self._clock.now():
                log.info("the node has no identity yet", node=self._name, why=why)
            else:
                log.info(
                    "the node's next certificate waits", node=self._name, until=rfc3339(end_of(known.shown)), why=why
                )
        self.waits_for = why


async def is_node(client: Client, name: str) -> bool:
    """Whether the account is this node already: a kubeconfig of somebody who has a certificate for it. KubeError: nobody says so now."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except ApiError as refusal:
        if refusal.code in (403, 404, 405):  # it answers such questions to nobody, or not to this account
            return False
        raise
    return bool(((found.get("status") or {}).get("userInfo") or {}).get("username") == USER + name)


def is_this_machine(info: Document, ours: Document) -> bool:
    """Whether a Node's nodeInfo speaks of the machine of `ours`: the boot changes with every start, what the machine is called does not."""
    told = ((str(info.get(key) or ""), ours[key]) for key in ("bootID", "machineID", "systemUUID"))
    return any(found == known and found not in ("", "uninitialized") for found, known in told)


def end_of(one: ClientCertificate) -> datetime:
    """When a certificate is over."""
    return x509.load_pem_x509_certificate(one.certificate).not_valid_after_utc


def signing_request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM of what a node asks to be signed."""
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, GROUP),
        x509.NameAttribute(NameOID.COMMON_NAME, USER + name),
    ]
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as it is kept."""
    kind, nothing = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, nothing)
