"""The webhooks' certificates as a value: what to show, whom to trust, and what both should be at a given time. Pure but
for the dice that keys are made of; `certificate_keeper.py` keeps it in a Secret and hands it out.

    an authority lives a year, a certificate 90 days; each is renewed when a third is left
    a new authority is trusted for an hour before anything is signed by it
    an old one is trusted until it expires

So at every moment whatever any replica shows is signed by an authority that everybody has trusted for a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=365)
CERTIFICATE_LIFE = timedelta(days=90)
RENEWED_WHEN_LEFT = 1 / 3
OVERLAP = timedelta(hours=1)
"""How long an authority is trusted before it signs: API servers learn of it by watching."""

BACKDATED = timedelta(hours=1)
"""For clocks that are behind."""

MOST_AUTHORITIES = 4


@dataclass(frozen=True)
class Certificates:
    """What the Secret holds, as PEM."""

    authorities: bytes
    """Everybody to trust, the newest first: the caBundle."""

    authority_key: bytes = field(repr=False)
    """The newest authority's key."""

    certificate: bytes
    """What the webhooks show."""

    key: bytes = field(repr=False)


class BrokenCertificatesError(Exception):
    """What was stored cannot be used; the sentence says what about it."""


def renewed(stored: Certificates | None, names: Sequence[x509.GeneralName], now: datetime) -> Certificates:
    """What should be stored now; the same value if nothing is due. Raises BrokenCertificatesError."""
    authorities, key = _authorities(stored) if stored is not None else ([], None)
    alive = [one for one in authorities if one.not_valid_after_utc > now]
    if key is None or not alive or alive[0] is not authorities[0] or _is_due(alive[0], AUTHORITY_LIFE, now):
        fresh, key = _new_authority(now)
        alive = [fresh, *alive][:MOST_AUTHORITIES]
    shown = _loaded(stored.certificate) if stored is not None else None
    bundle, key_pem = b"".join(_pem(one) for one in alive), _key_pem(key)
    if stored is not None and shown is not None and not _must_be_replaced(shown, stored.key, alive, names, now):
        kept = Certificates(bundle, key_pem, stored.certificate, stored.key)
        return stored if kept == stored else kept
    certificate, own_key = _new_certificate(alive[0], key, names, now)
    return Certificates(bundle, key_pem, _pem(certificate), _key_pem(own_key))


def server_names(service: str, namespace: str, addresses: Sequence[x509.GeneralName] = ()) -> list[x509.GeneralName]:
    """The names under which a service is called."""
    short = f"{service}.{namespace}"
    names = (f"{short}.svc", f"{short}.svc.cluster.local", short, service, "localhost")
    return [*(x509.DNSName(name) for name in names), *addresses]


def _must_be_replaced(
    shown: x509.Certificate,
    key: bytes,
    alive: Sequence[x509.Certificate],
    names: Sequence[x509.GeneralName],
    now: datetime,
) -> bool:
    signer = next((one for one in alive if _has_signed(one, shown)), None)
    if signer is None or shown.not_valid_after_utc <= now or not _belongs(shown, key):
        return True
    said = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if not set(names) <= set(said) or shown.not_valid_before_utc > now:
        return True
    # a newer authority signs once everybody has had time to hear of it; until then the certificate stays as it is
    is_known = now - (alive[0].not_valid_before_utc + BACKDATED) >= OVERLAP
    return is_known and (signer is not alive[0] or _is_due(shown, CERTIFICATE_LIFE, now))


def _is_due(one: x509.Certificate, life: timedelta, now: datetime) -> bool:
    return one.not_valid_after_utc - now < life * RENEWED_WHEN_LEFT


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _belongs(certificate: x509.Certificate, key: bytes) -> bool:
    try:
        return _loaded_key(key).public_key() == certificate.public_key()
    except BrokenCertificatesError:
        return False


def _authorities(stored: Certificates) -> tuple[list[x509.Certificate], ec.EllipticCurvePrivateKey]:
    try:
        authorities = x509.load_pem_x509_certificates(stored.authorities)
    except ValueError as error:
        raise BrokenCertificatesError(f"ca.crt is no certificate ({error})") from None
    key = _loaded_key(stored.authority_key)
    if key.public_key() != authorities[0].public_key():
        raise BrokenCertificatesError("ca.key does not belong to the first certificate of ca.crt")
    return authorities, key


def _loaded(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BrokenCertificatesError(f"tls.crt is no certificate ({error})") from None


def _loaded_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise BrokenCertificatesError(f"a key cannot be read ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BrokenCertificatesError("a key is no elliptic-curve key")
    return key


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # a name of its own: TLS stacks find the signer by name, and two of one name would be mistaken for each other
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"hekla-webhooks {now:%Y-%m-%dT%H:%M:%SZ}")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder(name, name, key, now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key


def _new_certificate(
    authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey, names: Sequence[x509.GeneralName], now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hekla-webhooks")])
    certificate = (
        _builder(name, authority.subject, key, now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
