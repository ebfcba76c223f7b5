"""Tokens for daemons that ask for one: signed with RSA as AgentCube's router signs them, for one sandbox and one session, good for a minute.

picod believes any token of the router's key; ours names its sandbox (`aud`), and its daemon insists on that. One token is used for
half its life: signing takes 0.6 ms, more than all else that the gateway does for a request. A daemon that took a secret with its claim
gets the same token signed with that (HS256): its first request came 1.5 ms later by RSA.
"""

import base64
import hmac
from typing import Any, Final

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hekla.sandbox.sessions.records import Session

ISSUER: Final = "agentcube-router"
LIFE_S: Final = 60.0
MOST_KEPT: Final = 20_000


class Mint:
    """One key, and the tokens that are still good."""

    def __init__(self, private_pem: bytes) -> None:
        key = serialization.load_pem_private_key(private_pem, password=None)
        if not isinstance(key, rsa.RSAPrivateKey):
            raise TypeError("the key that signs tokens for sandboxes must be an RSA key")
        self._key = key
        self.public_pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()  # fmt: skip
        self._kept: dict[str, tuple[float, str, bytes]] = {}
        """By session: until when it is said, for which sandbox, and the line."""

    def line(self, session: Session, now: float) -> bytes:
        """The Authorization header for a session's daemon."""
        until, sandbox_uid, line = self._kept.get(session.id, (0.0, "", b""))
        if until > now and sandbox_uid == session.sandbox_uid:  # another gateway may have woken it elsewhere
            return line
        if len(self._kept) >= MOST_KEPT:
            self._kept = {one: kept for one, kept in self._kept.items() if kept[0] > now}
        body = {
            "iss": ISSUER, "aud": session.sandbox_uid, "session_id": session.id, "user_sub": session.owner,
            "iat": int(now), "exp": int(now + LIFE_S),
        }  # fmt: skip
        if session.token_key:
            token = _signed(body, session.token_key)
        else:
            token = jwt.encode(body, self._key, algorithm="RS256").encode()
        line = b"authorization: Bearer %b\r\n" % token
        self._kept[session.id] = (now + LIFE_S / 2, session.sandbox_uid, line)
        return line

    def forget(self, session: str) -> None:
        """Sign anew for a session: its sandbox is another one now."""
        self._kept.pop(session, None)


_HEAD: Final = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=") + b"."


def _signed(body: dict[str, Any], key: str) -> bytes:
    """By hand: PyJWT takes 90 us, this 10."""
    signed = _HEAD + base64.urlsafe_b64encode(msgspec.json.encode(body)).rstrip(b"=")
    return signed + b"." + base64.urlsafe_b64encode(hmac.digest(key.encode(), signed, "sha256")).rstrip(b"=")


def new_private_key() -> bytes:
    """A fresh key, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
