"""What the API server stands on: one revision log, whose row number is the resourceVersion.

`sqlite_store.py` keeps it on disk, `memory_store.py` in memory; both pass `hekla.testing.conformance.stores`.
Everything here is called from the server's one event loop. A write is decided at once (so that two writers cannot
both win) and answered when it is durable. Two views follow from that: `get` and `list` show what was decided, which
is what a writer must build on; `get_durable` and `list_durable` show what can no longer be lost, which is what a
reader may be told. Watchers see durable changes only.

StoreError
├── RevisionMismatchError   the object changed since the writer read it
├── CompactedError          that much of the past is no longer kept
├── StoreFullError          the disk refused a write
│   └── UndoneError         what was read was decided, but the disk refused it: read again
├── StoreBusyError          too many writes are waiting for the disk
├── StoreClosedError        the store was closed
└── StoreOpenError          the data directory cannot be used
    ├── StoreLockedError        another process holds it
    ├── StoreVersionError       a newer Hekla wrote it
    ├── StorePermissionError    it may not be read or written
    └── StoreCorruptError       it is damaged
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from hekla.api.meta import Document

GENESIS = 100
"""The revision of an empty store. Above 1, because Kubernetes answers 410 to a watch from resourceVersion 1."""


class StoreError(Exception):
    """Base of what a store raises."""


class RevisionMismatchError(StoreError):
    """The object is not at the revision the writer expected; `current` is what is there (None: nothing)."""

    def __init__(self, key: "Key", current: "Stored | None") -> None:
        super().__init__(f"{key.resource} {key.namespace}/{key.name} has changed")
        self.key, self.current = key, current


class CompactedError(StoreError):
    """A watch or a list asks for a revision that is no longer kept; `oldest` still is."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {wanted} ({oldest})")
        self.wanted, self.oldest = wanted, oldest


class StoreFullError(StoreError):
    """The disk refused a write; nothing of it is visible, and reads go on."""


class UndoneError(StoreFullError):
    """A decided revision never became durable: whoever read it must read again."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"revision {revision} could not be written to disk and was undone; read again")
        self.revision = revision


class StoreBusyError(StoreError):
    """Too many bytes wait for the disk; nothing was decided, the writer may try again later."""


class StoreClosedError(StoreError):
    """The store was closed; nothing was decided."""


class StoreOpenError(StoreError):
    """The data directory cannot be used; the sentence names it and what to do."""


class StoreLockedError(StoreOpenError):
    """Another process, `pid`, works on the same data directory."""

    def __init__(self, sentence: str, pid: int) -> None:
        super().__init__(sentence)
        self.pid = pid


class StoreVersionError(StoreOpenError):
    """A newer version wrote this data directory."""


class StorePermissionError(StoreOpenError):
    """The data directory may not be read or written by this user."""


class StoreCorruptError(StoreOpenError):
    """The data is damaged."""


class Key(NamedTuple):
    """Where an object lives. `resource` is `plural.group` (`pods`, `jobs.batch`); versions share storage."""

    resource: str
    namespace: str
    name: str


class Stored(Struct, eq=False, gc=False):
    """One object at one revision. Never changed after it was made.

    Invisible to the garbage collector, as it is in no cycle: with 100,000 of them each full collection took 0.3 s.
    """

    key: Key
    revision: int
    """Of its last change; what the body says in metadata.resourceVersion."""

    create_revision: int
    body: bytes
    """The object as JSON, in its storage version, without managedFields."""

    managed_fields: bytes = b""
    """metadata.managedFields as JSON, kept apart so that the hot bytes stay small; empty: none."""

    labels: dict[str, str] = {}
    """metadata.labels, which selectors are matched against."""

    fields: dict[str, str] = {}
    """Selectable fields by name, such as `spec.nodeName`; metadata.name and metadata.namespace if nothing was given."""

    _document: Document | None = None

    @property
    def size(self) -> int:
        """Bytes that the object takes."""
        return len(self.body) + len(self.managed_fields)


class Change(Struct, frozen=True, gc=False):
    """One revision, as watchers see it: `previous` None is a creation, `current` None a deletion."""

    revision: int
    key: Key
    current: Stored | None
    previous: Stored | None
    last: Stored | None
    """For a deletion, the object's last state with the deletion's resourceVersion in its body."""


Render = Callable[[int], tuple[bytes, bytes]]
"""From the revision a write gets to (body, managed_fields); called once, at once."""

OnChanges = Callable[[Sequence[Change]], None]
"""Told of durable changes, in order, in batches. Runs on the event loop and must not block."""


class Subscription(Protocol):
    """A watcher's place in the log."""

    def close(self) -> None:
        """Stop; the callback is not called again."""


class EarlyListener(Protocol):
    """Who hears of creations before they are durable, so that what it writes because of them is in the same commit.

    What it writes is ordered behind them, so it is never durable without them. It may act on them in no other way.
    """

    def created(self, objects: Sequence[Stored], newest: Mapping[str, int]) -> "asyncio.Future[None] | None":
        """These are about to be made durable; the commit waits a moment for the future, which it may cancel.

        `newest` is the last revision of each resource that has to be known first: all are durable, and perhaps not told yet.
        """

    def undone(self, objects: Sequence[Stored]) -> None:
        """These could not be made durable, and are not there."""


class Store(Protocol):
    """A revision log with its current state in memory."""

    @property
    def revision(self) -> int:
        """The newest durable revision: what a list made of `list_durable` is at."""

    @property
    def decided(self) -> int:
        """The newest decided revision; equal to `revision` while no write waits for the disk."""

    @property
    def oldest(self) -> int:
        """The oldest revision from which a watch can still start."""

    def get(self, key: Key) -> Stored | None:
        """The object as last written (decided, perhaps not yet durable: see `settled`)."""

    def list(self, resource: str, namespace: str = "") -> Sequence[Stored]:
        """All objects in order of (namespace, name), decided; do not change the sequence."""

    def get_durable(self, key: Key) -> Stored | None:
        """The object as it can no longer be lost: what to answer a reader, without waiting."""

    def list_durable(self, resource: str, namespace: str = "") -> Sequence[Stored]:
        """All objects in order of (namespace, name) exactly as of `revision`; do not change the sequence."""

    def list_at(self, resource: str, namespace: str = "", *, revision: int) -> Sequence[Stored]:
        """The same as of an older revision (a list's next page); CompactedError if it is older than `oldest`."""

    def count(self, resource: str) -> int:
        """How many objects there are (decided)."""

    def version_of(self, resource: str) -> int:
        """Another number after each write of a resource, decided or undone: what was made of its objects may be out of date."""

    def resources(self) -> Sequence[str]:
        """The resources that have objects, in order."""

    async def settled(self, revision: int) -> None:
        """Return when that revision is durable: what has been read is never lost. Returns at once if it already is.

        Raises UndoneError if the disk refused it.
        """

    def put_soon(
        self,
        key: Key,
        render: Render,
        *,
        expected: int | None,
        labels: dict[str, str],
        fields: dict[str, str] | None = None,
    ) -> "tuple[Stored, asyncio.Future[None]]":
        """What `put` does, decided at once: the object, and what is done when it is durable or could not be made so.

        For many writes that are to share a commit. Each future must be looked at.
        """

    async def put(
        self,
        key: Key,
        render: Render,
        *,
        expected: int | None,
        labels: dict[str, str],
        fields: dict[str, str] | None = None,
    ) -> Stored:
        """Write one object and return once it is durable.

        `expected` is the revision it must be at: 0 for "must not exist", None for "whatever it is".
        Raises RevisionMismatchError before anything is written, StoreFullError if the disk refuses.
        The check and the place in the order are taken before the first await. Cancelling the caller does not
        cancel the write.
        """

    async def delete(self, key: Key, render: Render, *, expected: int | None) -> Stored:
        """Remove one object; `render` gives its last state as watchers will see it, which is returned.

        Raises RevisionMismatchError also if there is no such object.
        """

    def changes(self, resource: str, after: int) -> Sequence[Change]:
        """Durable changes of a resource with a revision above `after`; CompactedError if that is below `oldest`."""

    def subscribe(self, callback: OnChanges, *, resource: str, since: int | None = None) -> Subscription:
        """Call back with durable changes of a resource ("" for all), in order, in batches; first those after `since`.

        What is known already comes before `subscribe` returns. None: from now on. Raises CompactedError if
        `since` is older than `oldest`.
        """

    def listen_early(self, listener: EarlyListener, *, resource: str, after: Collection[str]) -> Subscription:
        """Have a listener hear of a resource's creations before they are durable. There is one at a time.

        It hears nothing early from a batch that also changes one of the resources `after`: those have to be known first.
        """

    async def close(self) -> None:
        """Make everything durable and stop."""
