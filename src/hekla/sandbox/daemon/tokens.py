"""Bearer tokens that the daemon believes: signed by the router with RSA (RS256), as AgentCube's are, and bound to this very sandbox.

A router that has shared a secret with this sandbox when it claimed it may sign with that instead (HS256, docs/adr/0024): 10 us on either
side where RSA takes 0.6 ms to sign and 0.3 to check. The secret is never the public key: whoever has that one can sign nothing.

Only the standard library is here, so the signature is checked by hand (RFC 8017, 8.2.2): the expected padding is built and compared
whole, never parsed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections import OrderedDict
from typing import Any

LEEWAY_S = 60.0
LONGEST_TOKEN = 8 * 1024
LONGEST_LIFE_S = 24 * 3600.0
MOST_REMEMBERED = 4096
OWN = "HS256"
SHORTEST_KEY = 64
"""Hexadecimal digits."""
_DIGESTS = {
    "RS256": ("sha256", bytes.fromhex("3031300d060960864801650304020105000420")),
    "RS384": ("sha384", bytes.fromhex("3041300d060960864801650304020205000430")),
    "RS512": ("sha512", bytes.fromhex("3051300d060960864801650304020305000440")),
}
_RSA = bytes.fromhex("300d06092a864886f70d0101010500")


class KeyFaultError(ValueError):
    """A key that is none of those that are taken."""


class Verifier:
    """Believes what one public key signed."""

    def __init__(self, pem: str, *, audience: str = "", session: str = "", own_key: str = "") -> None:
        """`audience` and `session` must be the token's where they are given: the router's tokens for other sandboxes are worth nothing here.

        `own_key` is the secret of the claim. With one that is shorter than its 256 bits nothing is ever signed.
        """
        self._modulus, self._exponent = rsa_key(pem)
        self._audience = audience
        self._session = session
        self._own_key = own_key.encode() if len(own_key) >= SHORTEST_KEY else b""
        self._used: OrderedDict[str, float] = OrderedDict()
        self._latest: tuple[str, dict[str, Any]] = ("", {})
        """The token whose signature was found right last, and what it says."""

    def refusal(self, token: str, now: float) -> str:
        """Why a token is not believed; empty: it is. A token that names itself (`jti`) is believed once."""
        latest, body = self._latest
        # a router says the same one for half a minute, and to check a signature is 0.5 of a request's 2.6 CPU-ms
        if not (token and token.isascii() and hmac.compare_digest(token, latest)):
            try:
                head, body, signed, signature = _read(token)
            except (ValueError, RecursionError):
                return "it is no token"
            algorithm = str(head.get("alg"))
            if algorithm == OWN and self._own_key:
                is_signed = hmac.compare_digest(hmac.digest(self._own_key, signed, "sha256"), signature)
            elif algorithm in _DIGESTS:
                is_signed = self._is_signed(algorithm, signed, signature)
            else:
                return "its algorithm is not taken"
            if not is_signed:
                return "its signature is wrong"
            self._latest = token, body
        return self._times(body, now) or self._parties(body) or self._once(body, now)

    def _is_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        size = (self._modulus.bit_length() + 7) // 8
        if len(signature) != size:
            return False
        opened = pow(int.from_bytes(signature, "big"), self._exponent, self._modulus).to_bytes(size, "big")
        name, prefix = _DIGESTS[algorithm]
        tail = prefix + hashlib.new(name, signed).digest()
        expected = b"\x00\x01" + b"\xff" * (size - len(tail) - 3) + b"\x00" + tail
        return hmac.compare_digest(opened, expected)

    @staticmethod
    def _times(body: dict[str, Any], now: float) -> str:
        times = {name: body.get(name) for name in ("exp", "iat", "nbf")}
        for name, value in times.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                return f"its {name} is no time"
        if times["exp"] is None:
            return "it has no expiry"
        if times["exp"] + LEEWAY_S <= now:
            return "it has expired"
        if times["exp"] > now + LONGEST_LIFE_S:
            return "it would live too long"
        if any(value > now + LEEWAY_S for value in (times["iat"], times["nbf"]) if value is not None):
            return "it is not valid yet"
        return ""

    def _parties(self, body: dict[str, Any]) -> str:
        named = body.get("aud")
        audiences = named if isinstance(named, list) else [named]
        if self._audience and self._audience not in audiences:
            return "it is for another sandbox"
        if self._session and body.get("session_id") != self._session:
            return "it is for another session"
        return ""

    def _once(self, body: dict[str, Any], now: float) -> str:
        name = body.get("jti")
        if not isinstance(name, str):
            return ""
        if name in self._used:
            return "it was used already"
        while self._used and (len(self._used) >= MOST_REMEMBERED or next(iter(self._used.values())) + LEEWAY_S < now):
            self._used.popitem(last=False)
        self._used[name] = float(body["exp"])
        return ""


def _read(token: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    if len(token) > LONGEST_TOKEN or not token.isascii():
        raise ValueError("too long")
    head, body, signature = token.split(".")
    documents = [json.loads(_decoded(part)) for part in (head, body)]
    if not all(isinstance(one, dict) for one in documents):
        raise ValueError("not objects")
    return documents[0], documents[1], f"{head}.{body}".encode(), _decoded(signature)


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def rsa_key(pem: str) -> tuple[int, int]:
    """Modulus and exponent of a public key (PKIX, "BEGIN PUBLIC KEY")."""
    lines = [line.strip() for line in pem.strip().splitlines()]
    if len(lines) < 3 or lines[0] != "-----BEGIN PUBLIC KEY-----" or lines[-1] != "-----END PUBLIC KEY-----":
        raise KeyFaultError("the key is no PEM public key")
    try:
        info, _ = _value(base64.b64decode("".join(lines[1:-1]), validate=True), 0x30)
        if not info.startswith(_RSA):
            raise KeyFaultError("the key is no RSA key")
        bits, _ = _value(info[len(_RSA) :], 0x03)
        pair, _ = _value(bits[1:], 0x30)
        modulus, rest = _value(pair, 0x02)
        exponent, _ = _value(rest, 0x02)
    except (binascii.Error, IndexError) as error:
        raise KeyFaultError("the key cannot be read") from error
    key = int.from_bytes(modulus, "big"), int.from_bytes(exponent, "big")
    if key[0].bit_length() < 2048 or key[1] < 3 or not key[1] % 2:
        raise KeyFaultError("the key is too weak: RSA of at least 2048 bits is taken")
    return key


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of a DER value, and what comes after it."""
    if data[0] != tag:
        raise KeyFaultError("the key cannot be read")
    length, start = data[1], 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < start + length:
        raise KeyFaultError("the key ends early")
    return data[start : start + length], data[start + length :]
