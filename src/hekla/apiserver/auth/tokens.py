"""Service-account tokens: signed by this platform, bound to an account (and perhaps a pod), and short-lived.

They are JSON Web Tokens (RFC 7519) with ES256 signatures and Kubernetes' claims, so client libraries read them.
A token dies with its account or its pod: `authenticate.py` asks whether both still exist with the same uid.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

ISSUER = "https://kubernetes.default.svc.cluster.local"
DEFAULT_AUDIENCE = ISSUER
SHORTEST_S, DEFAULT_S, LONGEST_S = 600, 3_600, 2**32
"""Kubernetes refuses a token that would live under ten minutes."""

MAX_TOKEN_BYTES = 16_384


class TokenError(Exception):
    """A token that is not to be believed; the sentence says why, for the log and never for the bearer."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a token says, once its signature is right."""

    namespace: str
    account: str
    account_uid: str
    pod: str = ""
    pod_uid: str = ""
    audiences: tuple[str, ...] = (DEFAULT_AUDIENCE,)
    expires_at: int = 0
    token_id: str = ""

    @property
    def user_name(self) -> str:
        """The account as a user."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


class TokenSigner:
    """Signs and verifies with one key."""

    def __init__(self, key_pem: bytes) -> None:
        key = serialization.load_pem_private_key(key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TokenError("the token key is no elliptic-curve key; remove pki/tokens.key and start again")
        self._key, self._public = key, key.public_key()
        spki = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self._key_id = _encode(hashlib.sha256(spki).digest())

    def public_key(self) -> dict[str, str]:
        """The key that verifies, as a JSON Web Key (RFC 7517)."""
        numbers = self._public.public_numbers()
        size = (self._public.curve.key_size + 7) // 8
        x, y = (_encode(part.to_bytes(size, "big")) for part in (numbers.x, numbers.y))
        return {"use": "sig", "kty": "EC", "kid": self._key_id, "crv": "P-256", "alg": "ES256", "x": x, "y": y}

    def sign(self, claims: Claims, *, issued_at: int) -> str:
        """The token; `claims.expires_at` and `issued_at` are seconds since 1970."""
        bound: dict[str, object] = {
            "namespace": claims.namespace,
            "serviceaccount": {"name": claims.account, "uid": claims.account_uid},
        }
        if claims.pod:
            bound["pod"] = {"name": claims.pod, "uid": claims.pod_uid}
        body = {
            "aud": list(claims.audiences),
            "exp": claims.expires_at,
            "iat": issued_at,
            "iss": ISSUER,
            "jti": claims.token_id,
            "kubernetes.io": bound,
            "nbf": issued_at,
            "sub": claims.user_name,
        }
        head = _encode(json.dumps({"alg": "ES256", "kid": self._key_id}).encode())
        signed = f"{head}.{_encode(json.dumps(body).encode())}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def verify(self, token: str, *, now_s: float, audiences: Sequence[str] = (DEFAULT_AUDIENCE,)) -> Claims:
        """The claims of a token that is genuine, in date, and meant for one of `audiences`; else TokenError."""
        if len(token) > MAX_TOKEN_BYTES:
            raise TokenError(f"a token of {len(token)} bytes is longer than {MAX_TOKEN_BYTES}")
        try:
            head, body, signature = token.split(".")
            header, said = json.loads(_decode(head)), json.loads(_decode(body))
            raw = _decode(signature)
        except ValueError:
            raise TokenError("the token is no JSON Web Token") from None
        if not isinstance(header, dict) or header.get("alg") != "ES256" or len(raw) != 64:
            raise TokenError("the token is not signed with ES256")
        self._check_signature(raw, f"{head}.{body}".encode())
        return _believed(said, now_s, audiences)

    def _check_signature(self, raw: bytes, signed: bytes) -> None:
        signature = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        try:
            self._public.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise TokenError("the token's signature is not ours") from None


def _believed(said: dict[str, object], now_s: float, audiences: Sequence[str]) -> Claims:
    """The claims, checked. The signature was ours, so the shape is what `sign` made."""
    bound = said["kubernetes.io"]
    assert isinstance(bound, dict)
    account, pod = bound["serviceaccount"], bound.get("pod") or {}
    meant_for = said["aud"]
    assert isinstance(meant_for, list)
    expires, not_before = said["exp"], said["nbf"]
    assert isinstance(expires, int)
    assert isinstance(not_before, int)
    if said["iss"] != ISSUER:
        raise TokenError(f"the token was issued by {said['iss']!r}")
    if now_s >= expires:
        raise TokenError("the token has expired")
    if now_s < not_before - 60:  # a minute of grace for a clock that was set back
        raise TokenError("the token is not valid yet")
    if not set(meant_for) & set(audiences):
        raise TokenError(f"the token is meant for {meant_for}")
    return Claims(
        namespace=bound["namespace"],
        account=account["name"],
        account_uid=account["uid"],
        pod=pod.get("name", ""),
        pod_uid=pod.get("uid", ""),
        audiences=tuple(meant_for),
        expires_at=expires,
        token_id=str(said.get("jti", "")),
    )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
