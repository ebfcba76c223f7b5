"""The certificates of one port: by the name that a client asks for the listener's, taken anew when a Secret changes.

A name that no listener is for, and one whose Secret cannot be used, is refused while the connection is being made: nobody is
shown another listener's certificate. `listeners.py` says which Secrets a listener may use, `certificate_pairs.py` what must be in
them, and `misdirected.py` what becomes of a request for another listener than the connection's.
"""

import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from hekla.api.core import Secret
from hekla.api.foreign import ReferenceGrant
from hekla.serving.router.attachment import Door, host_fits, host_rank
from hekla.serving.router.certificate_pairs import CERTIFICATE, KEY, CertificateError, decoded, pair_complaint
from hekla.serving.router.listeners import certificate_complaint, certificates_of

log = structlog.get_logger(__name__)

ALPN: Final = ("http/1.1",)


class Certificates:
    """What one port shows to its clients."""

    def __init__(self) -> None:
        self.context = new_context()
        """The one to listen with; it has no certificate of its own and takes the asked name's."""
        self.context.sni_callback = self._chosen
        self.troubles: dict[str, str] = {}
        """Why a listener shows nothing, by `namespace/gateway/listener`."""
        self._made: dict[tuple[tuple[str, str], ...], ssl.SSLContext | str] = {}
        self._by_host: list[tuple[str, ssl.SSLContext | None]] = []
        self._asked: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()

    def take(self, doors: Iterable[Door], secrets: Mapping[str, Secret], grants: Iterable[ReferenceGrant]) -> None:
        """Show what these listeners ask for; connections that are there keep what they were shown."""
        grants, troubles = list(grants), dict[str, str]()
        made: dict[tuple[tuple[str, str], ...], ssl.SSLContext | str] = {}
        by_host: dict[str, ssl.SSLContext | None] = {}
        for door in doors:
            said = certificate_complaint(door.gateway, door.listener, grants, secrets).said
            context: ssl.SSLContext | str = said
            if not said:
                wanted = [secrets[one.key] for one in certificates_of(door.gateway, door.listener)]
                version = tuple((one.metadata.uid, one.metadata.resource_version) for one in wanted)
                context = made[version] = self._made.get(version) or _context_or_why(wanted)
            if isinstance(context, str):
                troubles[f"{door.gateway_key}/{door.listener.name}"] = context
            # of two the older listener's; one that can show nothing still has its name
            by_host.setdefault(door.hostname, None if isinstance(context, str) else context)
        for name, why in troubles.items():
            if self.troubles.get(name) != why:
                log.warning("listener shows no certificate", listener=name, why=why)
        self.troubles, self._made = troubles, made
        self._by_host = sorted(by_host.items(), key=lambda one: host_rank(one[0]), reverse=True)

    def context_for(self, host: str) -> ssl.SSLContext | None:
        """Of the most specific hostname that fits; None: nobody is called that here."""
        return next((context for pattern, context in self._by_host if host_fits(pattern, host)), None)

    def listener_of(self, host: str) -> str | None:
        """The hostname of the listener that a host belongs to; None: no listener of this port is for it."""
        return next((pattern for pattern, _ in self._by_host if host_fits(pattern, host)), None)

    def asked_by(self, connection: ssl.SSLObject) -> str:
        """The name that a client asked for when it connected; empty: none."""
        return self._asked.get(connection, "")

    def _chosen(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        asked = (name or "").lower()
        context = self.context_for(asked)
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
        self._asked[connection] = asked
        return None


def new_context() -> ssl.SSLContext:
    """For a server, TLS 1.2 or newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    return context


def context_of(secrets: Iterable[Secret]) -> ssl.SSLContext:
    """A context that shows these certificates, of several kinds of keys the one that a client can use; raises CertificateError."""
    context = new_context()
    with tempfile.TemporaryDirectory(prefix="hekla-tls-") as directory:  # OpenSSL takes files alone
        path = Path(directory) / "listener.pem"
        path.touch(mode=0o600)
        for secret in secrets:
            name = f"{secret.metadata.namespace}/{secret.metadata.name}"
            if said := pair_complaint(name, secret.type, secret.data):
                raise CertificateError(said)
            certificate, key = (decoded(name, secret.data, one) for one in (CERTIFICATE, KEY))
            path.write_bytes(certificate.rstrip() + b"\n" + key)
            try:
                context.load_cert_chain(path, password=_no_password)
            except (
                ssl.SSLError,
                ValueError,
            ) as error:  # OpenSSL wants more of it than that it fits, such as a key of enough bits
                why = getattr(error, "reason", None) or str(error)
                raise CertificateError(f'Secret "{name}" holds no certificate and key that fit: {why}') from None
    return context


def _context_or_why(secrets: list[Secret]) -> ssl.SSLContext | str:
    try:
        return context_of(secrets)
    except CertificateError as error:
        return str(error)


def _no_password() -> str:
    """Asked for a key that is encrypted; without an answer OpenSSL would ask the terminal."""
    return ""
