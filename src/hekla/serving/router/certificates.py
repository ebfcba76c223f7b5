"""The certificates of one port: by the name that a client asks for the listener's, taken anew when a Secret changes.

A name that no listener is for, and one whose Secret cannot be used, is refused while the connection is being made: nobody is
shown another listener's certificate. `listeners.py` says which Secrets a listener may use.
"""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from hekla.api.core import Secret
from hekla.api.foreign import ReferenceGrant
from hekla.serving.router.attachment import Door, host_fits, host_rank
from hekla.serving.router.listeners import certificate_complaint, certificates_of

log = structlog.get_logger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
ALPN: Final = ("http/1.1",)


class CertificateError(ValueError):
    """A Secret that holds no certificate and key that fit each other; the sentence names it."""


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

    def _chosen(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        context = self.context_for((name or "").lower())
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
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
            path.write_bytes(_part(secret, CERTIFICATE).rstrip() + b"\n" + _part(secret, KEY))
            try:
                context.load_cert_chain(path, password=_no_password)
            except (ssl.SSLError, ValueError) as error:
                why = getattr(error, "reason", None) or "it is not PEM"
                raise CertificateError(f"{_named(secret)} holds no certificate and key that fit: {why}") from None
    return context


def _context_or_why(secrets: list[Secret]) -> ssl.SSLContext | str:
    try:
        return context_of(secrets)
    except CertificateError as error:
        return str(error)


def _part(secret: Secret, name: str) -> bytes:
    try:
        found = base64.b64decode(secret.data.get(name, ""), validate=True)
    except binascii.Error:
        raise CertificateError(f'{_named(secret)}: "{name}" is not base64') from None
    if not found.strip():
        raise CertificateError(f'{_named(secret)} has no "{name}"; a Secret of type kubernetes.io/tls has it')
    return found


def _no_password() -> str:
    """Asked for a key that is encrypted; without an answer OpenSSL would ask the terminal."""
    return ""


def _named(secret: Secret) -> str:
    return f'Secret "{secret.metadata.namespace}/{secret.metadata.name}"'
