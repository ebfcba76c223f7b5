"""Who owns which field: metadata.managedFields, kept beside the object and worked out only when it matters.

Most objects are written by one program and never applied server-side. For them only the writer's name is kept, as a
*rest* entry without fieldsV1: it owns whatever nobody else owns in its part of the object (status, or all but status).
That costs nothing per write. The sets themselves are computed when a second writer appears, when somebody applies, or
when one object is read alone. Bytes that hold a rest entry begin with a space, so that telling them apart is one
comparison; they are JSON all the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document, encode
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import loose_value
from hekla.apiserver.field_sets import NONE, Paths, difference, fields_of_all, fields_v1, paths_in, paths_of
from hekla.apiserver.registry import Served
from hekla.apiserver.status import bad_request
from hekla.apiserver.store import Key, Stored

APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"
REMEMBERED_BYTES = 32 * 1024 * 1024
"""Computed managedFields that are kept, least lately computed first out: those of some 20,000 pods."""

STRIPPED = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields",
            "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds",
        )
    }
)  # fmt: skip
"""Fields that nobody owns: they are the server's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One owner. `paths` None: a rest entry."""

    manager: str
    operation: str
    api_version: str
    time: str = ""
    subresource: str = ""
    paths: Paths | None = None

    def is_by(self, other: "Entry") -> bool:
        """Whether both are the same owner's."""
        mine = (self.manager, self.operation, self.subresource)
        return mine == (other.manager, other.operation, other.subresource) and (
            self.operation == APPLY or self.api_version == other.api_version
        )

    def document(self) -> Document:
        """The entry as objects carry it."""
        said: Document = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            said["time"] = self.time
        if self.paths is not None:
            said |= {"fieldsType": "FieldsV1", "fieldsV1": fields_v1(self.paths)}
        if self.subresource:
            said["subresource"] = self.subresource
        return said


def read(managed_fields: bytes) -> list[Entry]:
    """The entries that are kept with an object."""
    return entries_of(loose_value(managed_fields)) if managed_fields else []


def entries_of(documents: object) -> list[Entry]:
    """Entries as a client sends them; raises 400."""
    if not isinstance(documents, list) or not all(isinstance(one, dict) for one in documents):
        raise bad_request("metadata.managedFields must be a list of entries")
    return [
        Entry(
            str(one.get("manager", "")),
            str(one.get("operation", UPDATE)),
            str(one.get("apiVersion", "")),
            str(one.get("time") or ""),
            str(one.get("subresource", "")),
            paths_in(one["fieldsV1"]) if isinstance(one.get("fieldsV1"), dict) else None,
        )
        for one in documents
        if one
    ]


def written(entries: Iterable[Entry]) -> bytes:
    """Entries as they are kept; owners of nothing are dropped."""
    kept = [entry for entry in entries if entry.paths is None or entry.paths]
    if not kept:
        return b""
    kept.sort(key=lambda entry: (entry.operation != APPLY, entry.time, entry.manager))
    text = encode([entry.document() for entry in kept])
    return (b" " if any(entry.paths is None for entry in kept) else b"") + text


def explicit(managed_fields: bytes) -> bytes:
    """What may be shown without working anything out."""
    return b"" if managed_fields[:1] == b" " else managed_fields


def owned(paths: Paths) -> Paths:
    """Without the fields that are the server's."""
    return paths - STRIPPED


def in_scope(paths: Paths, subresource: str, *, has_status: bool) -> Paths:
    """The part of the paths that an endpoint can write."""
    if not has_status:
        return paths
    if subresource == "status":
        return frozenset(path for path in paths if path[0] == "f:status")
    return frozenset(path for path in paths if path[0] != "f:status")


def made_explicit(entries: list[Entry], document: Document, served: Served) -> list[Entry]:
    """The entries with every rest worked out from the document."""
    if all(entry.paths is not None for entry in entries):
        return entries
    taken = frozenset[tuple[str, ...]]().union(*(entry.paths for entry in entries if entry.paths is not None))
    held = owned(paths_of(document, served.strategy.schema, with_parents=True)) - taken
    has_status = "status" in served.subresources
    return [
        entry
        if entry.paths is not None
        else replace(entry, paths=in_scope(held, entry.subresource, has_status=has_status))
        for entry in entries
    ]


Track = Callable[[bytes, Document | None, Document], bytes]


def tracker(backend: Backend, call: Call) -> Track:
    """How an update (not an apply) by this call changes managedFields."""
    served = call.served
    me = Entry(call.manager, UPDATE, served.kind.api_version, backend.now(), call.target.subresource)

    def track(managed_fields: bytes, old: Document | None, new: Document) -> bytes:
        asked = new["metadata"].get("managedFields")
        if old is None:
            return _only_writer(me)
        if asked is not None and (replaced := _replaced(managed_fields, asked, old, served)) is not None:
            return replaced
        if _is_mine_alone(managed_fields, me) or new == old:
            return managed_fields
        return _tracked(read(managed_fields), me, old, new, served)

    return track


@lru_cache(maxsize=256)
def _only_writer(entry: Entry) -> bytes:
    # the same for everything that a program creates within a second
    return written([entry])


def _is_mine_alone(managed_fields: bytes, me: Entry) -> bool:
    """Whether one rest entry of the writer's covers what it may write: the common case, without decoding."""
    if managed_fields[:1] != b" " or managed_fields.count(b'"fieldsV1"'):  # long ones are not kept
        return False
    return _covers(managed_fields, me.manager, me.operation, me.api_version, me.subresource)


@lru_cache(maxsize=4096)
def _covers(managed_fields: bytes, manager: str, operation: str, api_version: str, subresource: str) -> bool:
    # objects that were made within a second say the same, and one program changes them: reading it was 15 us of a change's 300
    entries, me = read(managed_fields), Entry(manager, operation, api_version, "", subresource)
    mine = [entry for entry in entries if entry.is_by(me)]
    return bool(mine) and all(entry.subresource != subresource or entry is mine[0] for entry in entries)


def _replaced(managed_fields: bytes, asked: object, old: Document, served: Served) -> bytes | None:
    """ManagedFields as a client set them on purpose: an empty list clears them, a changed one is taken."""
    wanted = entries_of(asked)
    if not wanted:
        return b""
    if any(entry.paths is None for entry in wanted):
        return None
    known = made_explicit(read(managed_fields), old, served)
    return None if _owners(wanted) == _owners(known) else written(wanted)


def are_as_before(fields: bytes, entries: list[Entry], document: Document, served: Served) -> bool:
    """Whether entries, which are explicit, say of an object what its stored ones do, but for times."""
    return bool(fields) and _owners(entries) == _owners(made_explicit(read(fields), document, served))


def _owners(entries: Iterable[Entry]) -> dict[tuple[str, str, str, str], Paths]:
    return {(e.manager, e.operation, e.subresource, e.api_version): e.paths or NONE for e in entries}


def _tracked(entries: list[Entry], me: Entry, old: Document, new: Document, served: Served) -> bytes:
    if not any(entry.subresource == me.subresource for entry in entries) and me.subresource == "status":
        # the first writer of a status owns whatever it holds
        return written([*entries, me])
    entries = made_explicit(entries or [], old, served)
    changed = difference(old, new, served.strategy.schema)
    lost = changed.written | changed.removed
    gained = owned(changed.written)
    if not gained and not any((entry.paths or NONE) & lost for entry in entries):
        return written(entries)
    mine = next((entry for entry in entries if entry.is_by(me)), replace(me, paths=NONE))
    others = [replace(entry, paths=(entry.paths or NONE) - lost) for entry in entries if not entry.is_by(me)]
    now = ((mine.paths or NONE) - changed.removed) | gained
    time = me.time if now != mine.paths else mine.time
    return written([*others, replace(me, paths=now, time=time)])


def _worked_out(fields: bytes, document: Document, served: Served) -> bytes:
    entries = read(fields)
    if any(entry.paths is not None for entry in entries):
        return written(made_explicit(entries, document, served))
    everything = fields_of_all(document, served.strategy.schema)
    for path in STRIPPED:
        if len(path) == 2:
            everything["f:metadata"].pop(path[1], None)
    shown = [_rest_document(entry, everything, served) for entry in entries]
    return encode([one for one in shown if one["fieldsV1"]])


def _rest_document(entry: Entry, everything: Document, served: Served) -> Document:
    is_status, has_status = entry.subresource == "status", "status" in served.subresources
    part = {
        name: tree
        for name, tree in everything.items()
        if name not in {"f:kind", "f:apiVersion"} and (not has_status or (name == "f:status") is is_status)
    }
    if not part.get("f:metadata", True):
        del part["f:metadata"]
    return entry.document() | {"fieldsType": "FieldsV1", "fieldsV1": part}


class ManagedFieldsView:
    """managedFields as one object's reader sees them: worked out once per object and revision, and remembered."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, tuple[int, bytes]] = OrderedDict()
        self._size = 0

    def of(self, served: Served, stored: Stored) -> bytes:
        """The bytes to show."""
        fields = stored.managed_fields
        if fields[:1] != b" ":
            return fields
        known = self._known.get(stored.key)
        if known is not None and known[0] == stored.revision:
            return known[1]
        shown = _worked_out(fields, decode_document(stored.body), served)
        self._remember(stored.key, (stored.revision, shown))
        return shown

    def _remember(self, key: Key, item: tuple[int, bytes]) -> None:
        replaced = self._known.pop(key, None)
        self._known[key] = item
        self._size += _weight(item) - (_weight(replaced) if replaced else 0)
        while self._size > REMEMBERED_BYTES:
            self._size -= _weight(self._known.popitem(last=False)[1])


def _weight(item: tuple[int, bytes]) -> int:
    return len(item[1]) + 400  # the key, the tuple and the table's own share
