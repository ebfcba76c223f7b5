"""Whether a Secret holds a certificate and the key that belongs to it, and a sentence about it where it does not. Pure.

The Gateway's status tells it (`hekla.serving.listener_status`) and the router's log (`certificates.py`), in the same words.
"""

import base64
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
TLS_SECRET: Final = "kubernetes.io/tls"
"""The type of the secrets that certificates are taken from."""


class CertificateError(ValueError):
    """A Secret that holds no certificate and key that fit each other; the sentence names it."""


def pair_complaint(key: str, kind: str, data: Mapping[str, str]) -> str:
    """What is wrong with the Secret `key` (`namespace/name`) of this type; empty: a listener can show it."""
    if kind != TLS_SECRET:
        return f'Secret "{key}" is of type {kind or "Opaque"}; make it of type {TLS_SECRET}'
    try:
        shown = _public_half(key, CERTIFICATE, _certificate(key, decoded(key, data, CERTIFICATE)))
        private = _public_half(key, KEY, _private_key(key, decoded(key, data, KEY)))
    except CertificateError as error:
        return str(error)
    if shown != private:
        return f'Secret "{key}" holds no certificate and key that fit: "{CERTIFICATE}" begins with a certificate of another key'
    return ""


def decoded(key: str, data: Mapping[str, str], name: str) -> bytes:
    """One entry of a Secret; raises CertificateError."""
    try:
        found = base64.b64decode(data.get(name, ""), validate=True)
    except ValueError:  # binascii's, and another of what is not ASCII
        raise CertificateError(f'Secret "{key}": "{name}" is not base64') from None
    if not found.strip():
        raise CertificateError(f'Secret "{key}" has no "{name}"; a Secret of type {TLS_SECRET} has it')
    return found


def _certificate(key: str, text: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(text)[0]
    except (ValueError, IndexError, x509.InvalidVersion):
        raise CertificateError(f'Secret "{key}": "{CERTIFICATE}" is no certificate in PEM') from None


def _private_key(key: str, text: bytes) -> PrivateKeyTypes:
    try:
        # only its public half is compared, so its numbers are not proved
        return load_pem_private_key(text, None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise CertificateError(f'Secret "{key}": "{KEY}" is encrypted; store it without a password') from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f'Secret "{key}": "{KEY}" is no private key in PEM') from None


def _public_half(key: str, name: str, holder: x509.Certificate | PrivateKeyTypes) -> bytes:
    """The public key in what an entry holds."""
    try:
        return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateError(f'Secret "{key}": "{name}" has a key of a kind that cannot be shown') from None
