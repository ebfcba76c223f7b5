"""What every handler works with: the store, the table of resources, the rules, the clock and the dice.

`server.py` makes one; tests make one with a fixed clock and fixed names.
"""

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Operation, Reader, User
from hekla.apiserver.auth.attributes import AllowAll, Authorizer
from hekla.apiserver.bodies import decode_document
from hekla.apiserver.pod_templates import PodTemplates
from hekla.apiserver.registry import Registry
from hekla.apiserver.store import Key, Store, Stored

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' alphabet for generated names: no vowels, so that no words appear."""

CACHED_DOCUMENTS = 1_000
"""Decoded objects of small resources are kept with their bytes; a resource with more objects is decoded each time."""


MOST_SCOPES = 1_000
"""Combinations of kind, operation and subresource for which it is known which rules may want to be asked."""

SECOND = timedelta(seconds=1)
_NEVER = datetime.min.replace(tzinfo=UTC)

UIDS_AT_ONCE = 256
_RANDOM: list[str] = []


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def random_uid() -> str:
    """A new object's identity: a UUID of version 4."""
    if not _RANDOM:
        # drawn for many at once: asking the kernel for each was most of what a uid costs
        many = os.urandom(16 * UIDS_AT_ONCE).hex()
        _RANDOM.extend(many[start : start + 32] for start in range(0, len(many), 32))
    drawn = _RANDOM.pop()
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def random_suffix() -> str:
    """The five letters behind a generateName."""
    return "".join(random.choices(NAME_LETTERS, k=5))


def rfc3339(moment: datetime) -> str:
    """A time as objects carry it."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[: -len("+00:00")] + "Z"


_Scope = tuple[str, str, bool, Operation, str]
"""Plural, group, whether it is namespaced; operation, subresource."""


class _Candidates(NamedTuple):
    """The rules that may want a write of one scope."""

    rules: Sequence[AdmissionRule]
    to_ask: frozenset[int]
    """Places of those that have to be asked for each object."""


@dataclass(eq=False)
class Backend:
    """The parts behind the handlers."""

    store: Store
    registry: Registry
    rules: Sequence[AdmissionRule] = ()
    authorizer: Authorizer = field(default_factory=AllowAll)
    clock: Callable[[], datetime] = utc_now
    uids: Callable[[], str] = random_uid
    suffixes: Callable[[], str] = random_suffix
    _second: tuple[datetime, datetime, str] = (_NEVER, _NEVER, "")
    """The second that was told last: its beginning, the next one's, its text."""
    _candidates: dict[_Scope, _Candidates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pod_templates = PodTemplates(self.store, self)

    def now(self) -> str:
        """The time as objects carry it."""
        moment = self.clock()
        if not self._second[0] <= moment < self._second[1]:
            begin = moment.replace(microsecond=0)
            self._second = (begin, begin + SECOND, rfc3339(begin))
        return self._second[2]

    # ---- the Reader that admission rules look through

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document; not to be changed."""
        stored = self.store.get(Key(resource, namespace, name))
        return None if stored is None else self._document(stored)

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource; not to be changed."""
        return [self._document(stored) for stored in self.store.list(resource, namespace)]

    def _document(self, stored: Stored) -> Document:
        if stored._document is not None:
            return stored._document
        document: Document = decode_document(stored.body)
        if self.store.count(stored.key.resource) <= CACHED_DOCUMENTS:
            stored._document = document
        return document

    # ---- admission

    async def mutate(self, request: AdmissionRequest, reader: Reader | None = None) -> Sequence[AdmissionRule]:
        """Let every rule that wants to change the object; returns the rules that want to see it validated."""
        wanting = self._wanting(request)
        for rule in wanting:
            waiting: Awaitable[None] | None = rule.mutate(request, reader or self)
            if waiting is not None:
                request.has_waited = True
                await waiting
        return wanting

    def _wanting(self, request: AdmissionRequest) -> Sequence[AdmissionRule]:
        # asking all of some twenty rules took 5 us of a bind's 80, asking the four that looked into the object 3 of 40
        kind = request.kind
        scope = (kind.plural, kind.group, kind.is_namespaced, request.operation, request.subresource)
        candidates = self._candidates.get(scope)
        if candidates is None:
            if len(self._candidates) >= MOST_SCOPES:
                self._candidates.clear()
            candidates = self._candidates[scope] = _candidates(self.rules, request)
        if not candidates.to_ask:
            return candidates.rules
        return [
            rule for place, rule in enumerate(candidates.rules) if place not in candidates.to_ask or rule.wants(request)
        ]

    async def validate(
        self, rules: Sequence[AdmissionRule], request: AdmissionRequest, reader: Reader | None = None
    ) -> None:
        """Let every rule refuse."""
        for rule in rules:
            waiting = rule.validate(request, reader or self)
            if waiting is not None:
                request.has_waited = True
                await waiting


def _candidates(rules: Sequence[AdmissionRule], request: AdmissionRequest) -> _Candidates:
    """Those that want every write like this one, and those that want to be asked."""
    found = [
        (rule, is_by_kind) for rule in rules
        if not (is_by_kind := getattr(rule, "is_by_kind", False)) or rule.wants(request)
    ]  # fmt: skip
    to_ask = frozenset(place for place, (_, is_by_kind) in enumerate(found) if not is_by_kind)
    return _Candidates([rule for rule, _ in found], to_ask)


LOCAL_ADMIN = User("system:admin", ("system:masters", "system:authenticated"))
"""Who a caller without credentials is, where nobody is asked for any."""
