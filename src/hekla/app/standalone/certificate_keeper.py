"""Keeps the webhooks' certificates: in a Secret that all replicas share, in the TLS context, and in the configurations
by which API servers call us.

Whoever looks first when something is due writes it; the others find it. The order makes the overlap: first the Secret,
then the caBundles, then what we show.
"""

import asyncio
import base64
import binascii
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog
from cryptography import x509

from hekla.api.meta import Document
from hekla.app.standalone.certificates import BrokenCertificatesError, Certificates, renewed, server_names
from hekla.app.standalone.office import HINT
from hekla.kube.api_client import ApiClient
from hekla.kube.client import PatchType
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.errors import AlreadyExistsError, ApiError, ConflictError, KubeError, NotFoundError

log = structlog.get_logger(__name__)

SECRET = SERVICE = CONFIGURATION = "hekla-webhooks"
PERIOD_S, RETRY_S = 60.0, 5.0
TRIES = 5
KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


class CertificateKeeper:
    """Looks after one TLS context."""

    def __init__(
        self, client: ApiClient, namespace: str, *, configurations: Sequence[str] = (CONFIGURATION,),
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._client, self._namespace, self._configurations = client, namespace, configurations
        self._clock = clock or SystemClock()
        self._names = server_names(SERVICE, namespace, [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        self._shown: bytes = b""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.has_certificate = asyncio.Event()
        self.trouble = "no certificate yet"
        """What keeps API servers from calling us; empty if nothing does."""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.look()
                self._tell("")
            except KubeError as error:
                self._tell(f"{error}; the certificates stay as they are")
            await asyncio.sleep(RETRY_S if self.trouble else PERIOD_S)

    async def look(self) -> None:
        """Renew what is due, and have everybody know."""
        certificates = await self._agreed()
        missing = [name for name in self._configurations if not await self._publish(name, certificates.authorities)]
        self._show(certificates)
        if missing:
            raise KubeError(f'no webhook configuration "{missing[0]}" registers us')

    async def _agreed(self) -> Certificates:
        """What is in the Secret, once nothing of it is due: written by us, or by a replica that was faster."""
        for _ in range(TRIES):
            secret = await self._secret()
            stored, wanted = self._wanted(secret)
            if wanted == stored:
                return wanted
            try:
                await self._store(secret, wanted)
            except (ConflictError, AlreadyExistsError):
                continue
            log.info("certificates renewed", secret=f"{self._namespace}/{SECRET}")
            return wanted
        raise KubeError(f"secret {self._namespace}/{SECRET} was changed by others {TRIES} times in a row")

    def _wanted(self, secret: Document | None) -> tuple[Certificates | None, Certificates]:
        now = self._clock.now()
        try:
            stored = _stored(secret)
            return stored, renewed(stored, self._names, now)
        except BrokenCertificatesError as error:
            log.warning("secret is broken and made anew", secret=f"{self._namespace}/{SECRET}", why=str(error))
            return None, renewed(None, self._names, now)

    async def _secret(self) -> Document | None:
        try:
            return await self._client.request("GET", f"{self._collection}/{SECRET}")
        except NotFoundError:
            return None

    async def _store(self, secret: Document | None, wanted: Certificates) -> None:
        values = (wanted.authorities, wanted.authority_key, wanted.certificate, wanted.key)
        data = {name: base64.b64encode(value).decode() for name, value in zip(KEYS, values, strict=True)}
        if secret is None:
            document = {"metadata": {"name": SECRET}, "type": "Opaque", "data": data}
            try:
                await self._client.request("POST", self._collection, document)
            except ApiError as error:
                if error.code != 403:
                    raise
                # RBAC knows no right to make one Secret by its name
                sentence = f"secret {self._namespace}/{SECRET} is gone, and the account may make none; {HINT}"
                raise KubeError(sentence) from None
            return
        patch = {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}, "data": data}
        await self._client.request("PATCH", f"{self._collection}/{SECRET}", patch, content_type=PatchType.MERGE)

    async def _publish(self, name: str, authorities: bytes) -> bool:
        """Have API servers trust these authorities; whether anything calls us by this name."""
        bundle = base64.b64encode(authorities).decode()
        found = [await self._publish_in(f"{REGISTRATION}/{plural}/{name}", bundle) for plural in CONFIGURATIONS]
        return any(found)

    async def _publish_in(self, path: str, bundle: str) -> bool:
        try:
            configuration = await self._client.request("GET", path)
        except NotFoundError:
            return False
        webhooks = configuration.get("webhooks") or ()
        stale = [number for number, one in enumerate(webhooks) if one["clientConfig"].get("caBundle") != bundle]
        if stale:
            version = configuration["metadata"]["resourceVersion"]
            patch: list[Document] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
            patch += [
                {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle} for number in stale
            ]
            await self._client.request("PATCH", path, patch, content_type=PatchType.JSON)
            log.info("authority published", configuration=path.rpartition("/")[2], webhooks=len(stale))
        return True

    def _show(self, certificates: Certificates) -> None:
        """Use a certificate in every handshake from now on; OpenSSL only takes files, so it gets a private one."""
        pem = certificates.certificate + certificates.key
        if pem == self._shown:
            return
        with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:
            path = Path(directory) / "server.pem"
            path.touch(mode=0o600)
            path.write_bytes(pem)
            self.context.load_cert_chain(path)
        self._shown = pem
        self.has_certificate.set()

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("certificates", why=trouble, retry_in_s=RETRY_S)
        self.trouble = trouble

    @property
    def _collection(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/secrets"


def _stored(secret: Document | None) -> Certificates | None:
    data = (secret or {}).get("data") or {}
    if not any(data.get(key) for key in KEYS):
        return None
    try:
        authorities, authority_key, certificate, key = (base64.b64decode(data.get(one) or "") for one in KEYS)
    except binascii.Error as error:
        raise BrokenCertificatesError(f"it is no base64 ({error})") from None
    return Certificates(authorities, authority_key, certificate, key)
