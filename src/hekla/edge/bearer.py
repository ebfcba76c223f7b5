"""Bearer tokens of somebody else's issuer: is this JSON Web Token (RFC 7519) signed by a known key, for us, and still good?

`jwt` checks signatures; times are checked here, against the `now` that the caller gives. Only asymmetric algorithms are taken:
a shared secret in a public key set would let every client sign.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LONGEST_TOKEN: Final = 16_384
LEEWAY_S: Final = 60.0
"""How far an issuer's clock may run ahead of ours."""
MOST_KEYS: Final = 100


class BearerError(Exception):
    """A token that is not believed. BearerError > UnknownKeyError. The sentence is for the log and the bearer."""


class UnknownKeyError(BearerError):
    """Signed by a key that the set lacks: the issuer may have changed its keys since the set was fetched."""


@dataclass(frozen=True)
class Claims:
    """What a believed token says."""

    subject: str
    expires_at: float
    """Seconds since 1970."""
    all: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """Whose tokens are taken."""

    issuer: str
    audiences: tuple[str, ...] = ()
    """One of them must be the token's; none: any."""


class KeySet:
    """The keys of an issuer, by key id."""

    def __init__(self, keys: Mapping[str, jwt.PyJWK]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, text: bytes | str) -> "KeySet":
        """Read a JWK set; keys for other uses, symmetric ones and ones that cannot be read are left out."""
        try:
            listed = json.loads(text)["keys"]
        except (ValueError, KeyError, TypeError) as error:
            raise BearerError('the key set is not JSON with a list "keys"') from error
        if not isinstance(listed, list) or len(listed) > MOST_KEYS:
            raise BearerError(f'"keys" of the key set must be a list of at most {MOST_KEYS}')
        return cls({one.get("kid", ""): key for one in listed if (key := _readable(one)) is not None})

    def __len__(self) -> int:
        """How many keys can be used."""
        return len(self._keys)

    def of(self, key_id: str) -> jwt.PyJWK:
        """The key of that id; the only one, for a token that names none."""
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        try:
            return self._keys[key_id]
        except KeyError:
            raise UnknownKeyError(
                f'the token is signed by key "{key_id[:64]}", which its issuer does not list'
            ) from None


def verify(token: str, keys: KeySet, expected: Expected, now: float) -> Claims:
    """What the token says, or a BearerError; `now` in seconds since 1970."""
    if len(token) > LONGEST_TOKEN:
        raise BearerError(f"the token is longer than {LONGEST_TOKEN} characters")
    try:
        key = keys.of(str(jwt.get_unverified_header(token).get("kid", "")))
        body = jwt.decode(
            token,
            key=key,
            algorithms=list(ALGORITHMS),
            options={"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False},
        )
    except jwt.InvalidTokenError as error:
        raise BearerError(f"the token is not valid: {str(error).lower()}") from error
    _check_parties(body, expected)
    return Claims(str(body.get("sub", "")), _check_times(body, now), body)


def _check_parties(body: Mapping[str, Any], expected: Expected) -> None:
    if body.get("iss") != expected.issuer:
        raise BearerError(f'the token is issued by "{body.get("iss", "")}" and not by "{expected.issuer}"')
    named = body.get("aud", ())
    audiences = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    if expected.audiences and not audiences & set(expected.audiences):
        raise BearerError(f"the token is for none of the audiences {', '.join(expected.audiences)}")


def _check_times(body: Mapping[str, Any], now: float) -> float:
    expires = _seconds(body, "exp")
    if expires is None:
        raise BearerError("the token has no expiry (exp), and tokens that live for ever are not taken")
    if expires <= now:
        raise BearerError("the token has expired")
    for name in ("nbf", "iat"):
        begins = _seconds(body, name)
        if begins is not None and begins > now + LEEWAY_S:
            raise BearerError(f"the token is not valid yet ({name} is in the future)")
    return expires


def _seconds(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BearerError(f'the token\'s "{name}" is no number of seconds')
    return float(value)


def _readable(document: object) -> jwt.PyJWK | None:
    if not isinstance(document, dict) or document.get("use", "sig") != "sig" or document.get("kty") == "oct":
        return None
    try:
        return jwt.PyJWK(document)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None  # one key that we cannot read must not take the others' tokens away
