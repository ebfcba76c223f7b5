"""Who asks: an API key of ours, or a bearer token of the configured issuer. Without either nobody creates, lists or ends anything.

Keys stand in a file, one `owner: key` a line; `owner@namespace` binds a key to one namespace, and `admin` sees everybody's sessions (`admin@namespace`: those of that namespace).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from hekla.edge.bearer import BearerError, Claims, Expected, KeySet, UnknownKeyError, verify
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Sees, Sight, Within

MOST_REMEMBERED: Final = 10_000
SHORTEST_KEY: Final = 16
ADMIN: Final = "admin"
BELIEVED_S: Final = 60.0
"""How long a verified token is believed without looking at its issuer's keys again: so much later one of a key that was withdrawn is refused."""
LONGEST_LIFE_S: Final = 7 * 24 * 3600.0
"""A token that is good for longer is nobody's session: it is refused, as one without an expiry is."""


class KeyFileError(Exception):
    """A list of keys that cannot be taken; the sentence names the line and never the key."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    owner: str
    namespace: str = ""
    """The only one that it may use; empty: any."""

    @property
    def is_admin(self) -> bool:
        """Whether everybody's sessions are its own."""
        return self.owner == ADMIN

    @property
    def sees(self) -> Sees:
        """Whose sessions it sees, and where."""
        whose = Sight.ALL if self.is_admin else self.owner
        return Within(self.namespace, whose) if self.namespace else whose

    def may_use(self, namespace: str) -> bool:
        """Whether it may use a namespace."""
        return not self.namespace or self.namespace == namespace


class IssuerKeys(Protocol):
    """Where the issuer's keys come from."""

    def current(self) -> KeySet | None:
        """The keys as last fetched; None: never yet."""

    async def refreshed(self) -> KeySet | None:
        """The keys as they are now, asked anew unless that was done a moment ago."""


def read_keys(text: str) -> dict[bytes, Principal]:
    """Principals by the digest of their key: the keys themselves are not kept."""
    found: dict[bytes, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        who, colon, key = (part.strip() for part in line.partition(":"))
        if not colon or not who or not key:
            raise KeyFileError(f'line {number} is not "owner: key"')
        if len(key) < SHORTEST_KEY:
            raise KeyFileError(f'the key of "{who}" has {len(key)} characters; at least {SHORTEST_KEY} are needed')
        owner, _, namespace = who.partition("@")
        if found.setdefault(digest_of(key), Principal(owner, namespace)) != Principal(owner, namespace):
            raise KeyFileError(f'"{who}" has the same key as somebody else; give each an own one')
    return found


def digest_of(secret: str) -> bytes:
    """What of a secret is kept."""
    return hashlib.sha256(secret.encode()).digest()


def bearer_of(header: str) -> str:
    """The token of an Authorization header; RefusedError in AgentCube's words where there is none."""
    if not header:
        raise RefusedError(401, "UNAUTHORIZED", "missing authorization header")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise RefusedError(401, "UNAUTHORIZED", "invalid authorization header format")
    if not token.strip():
        raise RefusedError(401, "UNAUTHORIZED", "empty bearer token")
    return token.strip()


class Guard:
    """Finds out who asks. `wall` tells seconds since 1970, by which tokens expire."""

    def __init__(
        self,
        keys: Mapping[bytes, Principal],
        *,
        wall: Callable[[], float],
        expected: Expected | None = None,
        issuer: IssuerKeys | None = None,
        role_claim: str = "",
        required_role: str = "",
    ) -> None:
        self._keys = dict(keys)
        self._wall, self._expected, self._issuer = wall, expected, issuer
        self._role_claim, self._required_role = role_claim, required_role
        self._believed: OrderedDict[bytes, tuple[float, Claims]] = OrderedDict()
        """Claims by the digest of their token, and until when."""

    @property
    def needs_token(self) -> bool:
        """Whether an issuer is configured: then the id of a session alone opens nothing."""
        return self._expected is not None

    def set_keys(self, keys: Mapping[bytes, Principal]) -> None:
        """Take another list; a key that is not in it does not open from now on."""
        self._keys = dict(keys)

    def by_key(self, secret: str) -> Principal | None:
        """Whose key this is; looked up by digest, so comparing tells nothing of it."""
        return self._keys.get(digest_of(secret))

    def known(self, headers: Mapping[str, str]) -> Principal | None:
        """Who shows a key; None: `by_headers` finds out who it is, or says why nobody."""
        given = headers.get("x-api-key", "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return self.by_key(given or (token.strip() if scheme.lower() == "bearer" else ""))

    async def by_headers(self, headers: Mapping[str, str]) -> Principal:
        """Who asks, by X-API-Key or Authorization; RefusedError."""
        given = headers.get("x-api-key", "")
        token = given or bearer_of(headers.get("authorization", ""))
        if (principal := self.by_key(token)) is not None:
            return principal
        if self._expected is None or self._issuer is None or given or token.count(".") != 2:
            raise RefusedError(401, "UNAUTHORIZED", "invalid or expired token")
        return self._principal(await self._claims(token))

    async def _claims(self, token: str) -> Claims:
        digest, now = digest_of(token), self._wall()
        until, known = self._believed.get(digest, (0.0, None))
        if known is not None and until > now:
            return known
        assert self._expected is not None
        assert self._issuer is not None
        try:
            claims = verify(token, self._issuer.current() or KeySet({}), self._expected, now)
        except UnknownKeyError:
            claims = await self._with_fresh_keys(token, now)
        except BearerError:
            raise RefusedError(401, "UNAUTHORIZED", "invalid or expired token") from None
        if claims.expires_at > now + LONGEST_LIFE_S:
            raise RefusedError(401, "UNAUTHORIZED", "invalid or expired token")
        self._believed[digest] = min(claims.expires_at, now + BELIEVED_S), claims
        while len(self._believed) > MOST_REMEMBERED:
            self._believed.popitem(last=False)
        return claims

    async def _with_fresh_keys(self, token: str, now: float) -> Claims:
        assert self._expected is not None
        assert self._issuer is not None
        keys = await self._issuer.refreshed()
        if keys is None:
            raise RefusedError(503, "UNAVAILABLE", "the issuer's keys have not been fetched yet", retry_after_s=1.0)
        try:
            return verify(token, keys, self._expected, now)
        except BearerError:
            raise RefusedError(401, "UNAUTHORIZED", "invalid or expired token") from None

    def _principal(self, claims: Claims) -> Principal:
        if not claims.subject:
            raise RefusedError(401, "UNAUTHORIZED", "invalid or expired token")
        roles = _roles(claims, self._role_claim) if self._role_claim else set()
        if self._required_role and self._required_role not in roles:
            raise RefusedError(403, "FORBIDDEN", f"insufficient permissions: missing role {self._required_role}")
        # a subject that calls itself "admin" is not: the role makes one
        return Principal(
            ADMIN if ADMIN in roles else f"user:{claims.subject}" if claims.subject == ADMIN else claims.subject
        )


def _roles(claims: Claims, path: str) -> set[str]:
    """Roles at a literal key, or at a dotted path."""
    found: object = claims.all.get(path)
    if found is None:
        found = claims.all
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return set(found.split())
    return {one for one in found if isinstance(one, str)} if isinstance(found, list) else set()
