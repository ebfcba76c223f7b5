"""Sandboxes that wait in pools, by template, and those that are a session's: what `kube_stock.py` gives out, as an informer tells of them.

Each candidate is given to one order at a time, and to none again before the informer has told what became of it. A cache is behind:
an order that picked from it met what others had adopted again and again, and as no answer had to be waited for, nobody else had a turn.
"""

from typing import TypeVar

from hekla.api.agents import Sandbox, names
from hekla.sandbox.observing import is_true
from hekla.sandbox.owning import controller_of

_POOL = "SandboxWarmPool"
Key = TypeVar("Key")
_Shelf = dict[str, Sandbox]
"""By uid."""


def is_free(sandbox: Sandbox) -> bool:
    """Whether it waits in a pool, ready for whoever comes."""
    owner = controller_of(sandbox)
    return (
        sandbox.metadata.deletion_timestamp is None
        and names.SESSION_ID not in sandbox.metadata.labels
        and owner is not None
        and owner.kind == _POOL
        and is_true(sandbox.status.conditions, "Ready")
    )


class Candidates:
    """Who can be adopted, and who was."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], _Shelf] = {}
        """By namespace and template."""
        self._of_sessions: dict[str, _Shelf] = {}
        self._given: dict[str, Sandbox | None] = {}
        """Those that an order has, by uid, with what the informer told of each meanwhile."""

    def changed(self, old: Sandbox | None, new: Sandbox | None) -> None:
        """What an informer tells."""
        if old is not None:
            _drop(self._free, _template_of(old), old)
            _drop(self._of_sessions, _session_of(old), old)
        if new is None or not is_free(new):
            gone = new if new is not None else old
            assert gone is not None, "a change is of something"
            self._given.pop(gone.metadata.uid, None)
        elif new.metadata.uid in self._given:
            self._given[new.metadata.uid] = new
        else:
            self._free.setdefault(_template_of(new), {})[new.metadata.uid] = new
        if new is not None and new.metadata.deletion_timestamp is None and (session := _session_of(new)):
            self._of_sessions.setdefault(session, {})[new.metadata.uid] = new

    def of_session(self, session: str) -> Sandbox | None:
        """The one that carries a session's label."""
        return next(iter(self._of_sessions.get(session, {}).values()), None)

    def take(self, namespace: str, template: str) -> Sandbox | None:
        """The oldest that waits; it is the caller's until `let_go`, or for good once it is adopted."""
        shelf = self._free.get((namespace, template), {})
        oldest = min(shelf.values(), key=_age, default=None)
        if oldest is not None:
            _drop(self._free, (namespace, template), oldest)
            self._given[oldest.metadata.uid] = None
        return oldest

    def let_go(self, sandbox: Sandbox, *, is_as_it_was: bool = False) -> None:
        """It was not adopted. What the informer told meanwhile holds; if nothing, it waits again where it is as it was."""
        told = self._given.pop(sandbox.metadata.uid, None)
        if told is None and is_as_it_was:
            told = sandbox
        if told is not None:
            self._free.setdefault(_template_of(told), {})[told.metadata.uid] = told


def _drop(shelves: dict[Key, _Shelf], key: Key, one: Sandbox) -> None:
    shelf = shelves.get(key)
    if shelf is not None:
        shelf.pop(one.metadata.uid, None)
        if not shelf:
            del shelves[key]


def _template_of(sandbox: Sandbox) -> tuple[str, str]:
    return sandbox.metadata.namespace, sandbox.metadata.annotations.get(names.TEMPLATE_REF, "")


def _session_of(sandbox: Sandbox) -> str:
    return sandbox.metadata.labels.get(names.SESSION_ID, "")


def _age(sandbox: Sandbox) -> tuple[str, str]:
    return sandbox.metadata.creation_timestamp or "", sandbox.metadata.name
