"""Who asks: an API key of ours or a bearer token of the configured issuer; without either nobody gets in.

A guard (`plan.Guard`). A token that was believed is remembered until it expires, so that a conversation pays for one signature. A
token signed by a key that we do not know waits while `key_fetching.py` asks the issuer for its keys: they may have changed.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from hekla.edge.bearer import BearerError, Claims, Expected, KeySet, UnknownKeyError, verify
from hekla.serving.router.plan import Refusal, Usage, Waiting
from hekla.serving.router.question import Question

MOST_REMEMBERED: Final = 10_000
SHORTEST_KEY: Final = 16

NOBODY: Final = Refusal(
    401, "authentication", 'give an API key or a token: "Authorization: Bearer ..." or "x-api-key: ..."'
)
WRONG_KEY: Final = Refusal(401, "authentication", "the API key is not known")
NO_KEYS_YET: Final = Refusal(503, "authentication", "the issuer's keys have not been fetched yet", 1.0)


class ApiKeyError(Exception):
    """A list of API keys that cannot be taken; the sentence names the user and never the key."""


class Ticket(Protocol):
    """A place among those who wait for the issuer's keys."""

    def abandon(self) -> None:
        """Wait no more."""


class Keys(Protocol):
    """Where the issuer's keys come from."""

    def current(self) -> KeySet | None:
        """The keys as last fetched; None: never yet."""

    def refresh(self, then: Callable[[], None]) -> Ticket | None:
        """Ask the issuer again, and call `then` whatever comes of it; None: it was asked a moment ago."""


def read_api_keys(keys: Mapping[str, str]) -> dict[bytes, str]:
    """Users by the digest of their key: the keys themselves are not kept."""
    users: dict[bytes, str] = {}
    for user, key in keys.items():
        if len(key) < SHORTEST_KEY:
            raise ApiKeyError(f'the API key of "{user}" has {len(key)} characters; at least {SHORTEST_KEY} are needed')
        if users.setdefault(_digest(key), user) != user:
            raise ApiKeyError(f'"{user}" and "{users[_digest(key)]}" have the same API key; give each user an own one')
    return users


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Authentication:
    """The guard. `wall` tells seconds since 1970, by which tokens expire."""

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        api_keys: Mapping[bytes, str] | None = None,
        expected: Expected | None = None,
        keys: Keys | None = None,
    ) -> None:
        self._wall = wall
        self._users = dict(api_keys or {})
        self._expected = expected
        self._keys = keys
        self._believed: OrderedDict[bytes, Claims] = OrderedDict()
        self.changes = 0
        """Counts lists of keys."""

    def set_api_keys(self, users: Mapping[bytes, str]) -> None:
        """Take another list; a key that is not in it does not open from now on."""
        self._users = dict(users)
        self.changes += 1

    def user_by_key(self, headers: Mapping[str, str]) -> str | None:
        """Whose API key it is; None: nobody's. Keys do not expire as tokens do."""
        secret = _secret(headers)
        return self._users.get(_digest(secret)) if secret else None

    def admit(self, question: Question, now: float) -> Refusal | Waiting | None:
        """Write down who asks, or refuse."""
        secret = _secret(question.headers)
        if not secret:
            return NOBODY
        digest = _digest(secret)
        # looked up by digest: comparing tells nothing of the key, whatever it takes
        user = self._users.get(digest)
        if user is None:
            if self._expected is None or secret.count(".") != 2:
                return WRONG_KEY
            return self._by_token(question, secret, digest, may_refresh=True)
        question.user = user
        return None

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Nothing was taken."""

    def _by_token(
        self, question: Question, token: str, digest: bytes, *, may_refresh: bool
    ) -> Refusal | Waiting | None:
        assert self._expected is not None
        assert self._keys is not None
        wall = self._wall()
        claims = self._believed.get(digest)
        if claims is None or claims.expires_at <= wall:
            self._believed.pop(digest, None)
            known = self._keys.current()
            if known is None and not may_refresh:
                return NO_KEYS_YET
            try:
                claims = verify(token, known or KeySet({}), self._expected, wall)
            except UnknownKeyError as error:
                held = self._once_keys_are_fresh(question, token, digest) if may_refresh else None
                return held if held is not None else Refusal(401, "authentication", str(error))
            except BearerError as error:
                return Refusal(401, "authentication", str(error))
            self._remember(digest, claims)
        question.user, question.claims = claims.subject, claims.all
        return None

    def _remember(self, digest: bytes, claims: Claims) -> None:
        self._believed[digest] = claims
        if len(self._believed) > MOST_REMEMBERED:
            self._believed.popitem(last=False)

    def _once_keys_are_fresh(self, question: Question, token: str, digest: bytes) -> "_Held | None":
        assert self._keys is not None
        held = _Held(lambda: self._by_token(question, token, digest, may_refresh=False))
        held.ticket = self._keys.refresh(held.look_again)
        return held if held.ticket is not None else None


class _Held(Waiting):
    """A request whose token is looked at once more when the keys are fresh."""

    def __init__(self, decide: Callable[[], Refusal | Waiting | None]) -> None:
        self._decide = decide
        self._resume: Callable[[Refusal | None], None] | None = None
        self.ticket: Ticket | None = None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        self._resume = resume

    def abandon(self) -> None:
        self._resume = None
        if self.ticket is not None:
            self.ticket.abandon()

    def look_again(self) -> None:
        if self._resume is not None:
            resume, self._resume = self._resume, None
            found = self._decide()
            assert found is None or isinstance(found, Refusal)
            resume(found)


def _secret(headers: Mapping[str, str]) -> str:
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    return headers.get("x-api-key", "")  # as Anthropic's clients send it
