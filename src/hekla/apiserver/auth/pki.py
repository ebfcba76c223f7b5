"""The platform's own certificate authority: made at the first start, its certificates renewed before they expire.

    pki/ca.crt, ca.key           the authority (10 years)
    pki/server.crt, server.key   the API server (1 year, renewed when 30 days are left)
    pki/admin.crt, admin.key     the administrator, in the group system:masters (1 year, likewise)
    pki/front-proxy-ca.crt, .key an authority of its own for the next one, so that no user's certificate passes for it
    pki/front-proxy.crt, .key    the API server where it passes a request on and says who asked
    pki/tokens.key               signs service-account tokens

Keys are P-256 (made in a millisecond, verified by every TLS stack) and readable by their owner alone.
"""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_YEARS = 10
CERTIFICATE_DAYS = 365
RENEW_WHEN_DAYS_ARE_LEFT = 30

SERVER_NAMES = (
    "localhost",
    "hekla",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

FRONT_PROXY = "front-proxy-client"
"""The name in the certificate by which the API server passes requests on, as kubeadm calls it."""


class PkiError(Exception):
    """Keys or certificates on disk cannot be used; the sentence names the file."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, on disk."""

    certificate: Path
    key: Path

    def exists(self) -> bool:
        """Whether both are there."""
        return self.certificate.exists() and self.key.exists()


@dataclass(frozen=True)
class Pki:
    """The files of one platform."""

    authority: Pair
    server: Pair
    admin: Pair
    front_proxy_authority: Pair
    front_proxy: Pair
    token_key: Path


def ensure_pki(directory: Path, now: datetime, addresses: Sequence[str] = ("127.0.0.1",)) -> Pki:
    """What a platform needs, made or renewed where it must be; safe to repeat."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki(
        authority=Pair(directory / "ca.crt", directory / "ca.key"),
        server=Pair(directory / "server.crt", directory / "server.key"),
        admin=Pair(directory / "admin.crt", directory / "admin.key"),
        front_proxy_authority=Pair(directory / "front-proxy-ca.crt", directory / "front-proxy-ca.key"),
        front_proxy=Pair(directory / "front-proxy.crt", directory / "front-proxy.key"),
        token_key=directory / "tokens.key",
    )
    if not pki.authority.exists():
        _write_pair(pki.authority, *_new_authority(now, "hekla"))
    if not pki.front_proxy_authority.exists():
        _write_pair(pki.front_proxy_authority, *_new_authority(now, "hekla-front-proxy"))
    if not pki.token_key.exists():
        _write_private(pki.token_key, _key_bytes(ec.generate_private_key(ec.SECP256R1())))
    names = [x509.DNSName(name) for name in SERVER_NAMES]
    alternatives: list[x509.GeneralName] = [*names, *(x509.IPAddress(ipaddress.ip_address(a)) for a in addresses)]
    if _needs_renewal(pki.server, pki.authority, now, alternatives):
        issue(pki.authority, pki.server, "kube-apiserver", (), now, alternatives)
    if _needs_renewal(pki.admin, pki.authority, now):
        issue(pki.authority, pki.admin, "kubernetes-admin", ("system:masters",), now)
    if _needs_renewal(pki.front_proxy, pki.front_proxy_authority, now):
        issue(pki.front_proxy_authority, pki.front_proxy, FRONT_PROXY, (), now)
    return pki


def issue(
    authority: Pair,
    pair: Pair,
    name: str,
    groups: Sequence[str],
    now: datetime,
    alternatives: Sequence[x509.GeneralName] = (),
) -> None:
    """Sign a certificate for a user (common name) in groups (organizations), or for a server with alternative names."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = _load(authority)
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if alternatives else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)]), issuer.subject, key, now)
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    _write_pair(pair, builder.sign(signer, hashes.SHA256()), key)


def subject_of(certificate: bytes) -> tuple[str, tuple[str, ...]]:
    """(common name, organizations) of a DER client certificate: the user and its groups."""
    subject = x509.load_der_x509_certificate(certificate).subject
    names = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = tuple(str(one.value) for one in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return (names[0] if names else ""), groups


def _new_authority(now: datetime, called: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key, now)
        .not_valid_after(now + timedelta(days=365 * AUTHORITY_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    # an hour of grace for clocks that are behind
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _needs_renewal(pair: Pair, authority: Pair, now: datetime, alternatives: Sequence[x509.GeneralName] = ()) -> bool:
    if not pair.exists():
        return True
    certificate, _ = _load(pair)
    issuer, _ = _load(authority)
    if (
        certificate.not_valid_after_utc - now < timedelta(days=RENEW_WHEN_DAYS_ARE_LEFT)
        or certificate.issuer != issuer.subject
    ):
        return True
    if certificate.not_valid_before_utc > now:
        return True  # the clock was ahead when it was made
    if not alternatives:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return not set(alternatives) <= set(names)


def _load(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise PkiError(f"{pair.certificate} or its key cannot be read ({error}); remove both and start again") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{pair.key} is no elliptic-curve key; remove it and start again")
    return certificate, key


def _write_pair(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    _write_private(pair.key, _key_bytes(key))
    _write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    """Written beside and renamed, so that a crash leaves the old file or the new one; never readable by others."""
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    scratch.replace(path)


def utc_now() -> datetime:
    """The time certificates are checked against."""
    return datetime.now(UTC)
