"""The log table: how a change becomes a row, a batch a transaction, and the rows the current state again.

Used by `sqlite_store.py`: reading at the start by whoever opens, writing afterwards by its one writer thread. Every
row carries a checksum, because SQLite's own check sees a broken tree but not a broken body.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

import msgspec

from hekla.apiserver.sqlite_driver import Row, SqliteError
from hekla.apiserver.sqlite_files import StoreFiles, damaged
from hekla.apiserver.store import Change, Key, Stored

ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ROWS_AT_ONCE = 32
"""Rows of one statement. Each statement gives up the interpreter and has to win it back from a busy event loop, at up to
`app.serving.SWITCH_AFTER_S` a time; the statements of all sizes up to this stay prepared, in a megabyte."""

SCAN = "select rv, resource, namespace, name, created, is_deletion, crc, selectors, managed, body from log order by rv"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[msgspec.Raw, dict[str, str]]).decode
_labels = msgspec.json.Decoder(dict[str, str]).decode

MOST_SHARED = 4096
"""Sets of labels, and texts of managedFields, that are remembered while reading; objects of one template share them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One transaction's work."""

    changes: Sequence[Change]
    garbage: Sequence[tuple[int, int]] = ()
    """Rows that nobody needs any more, each after the revision of the change that made it so."""

    compacted: int = 0
    """The revision up to which the past has gaps once the garbage is gone."""


class Journal:
    """The log table of one open data directory."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._newest = 0
        self._has_failed = False
        self._label_sets: dict[bytes, dict[str, str]] = {}
        self._managed: dict[bytes, bytes] = {}

    def read(self) -> Iterator[tuple[Stored, bool]]:
        """Every row in order of revision, with whether it is a deletion."""
        for row in self._files.writer.scan(SCAN):
            self._newest = row[0]
            yield self._parsed(row), bool(row[5])
        self._label_sets.clear()
        self._managed.clear()

    def write(self, batch: Batch) -> None:
        """Make a batch durable, whole or not at all; raises SqliteError."""
        if self._has_failed:
            self._recover()
        try:
            self._transact(batch)
        except SqliteError:
            self._has_failed = True
            with suppress(SqliteError):  # SQLite may have rolled back by itself
                self._files.writer.run("rollback")
            raise
        if batch.changes:
            self._newest = batch.changes[-1].revision

    def distrust(self) -> None:
        """Begin anew with the next batch, because something unforeseen happened in the middle of one."""
        self._has_failed = True

    def finish(self) -> None:
        """Before the end: leave nothing in the log that was reported as lost."""
        if self._has_failed:
            self._recover()

    def _transact(self, batch: Batch) -> None:
        writer = self._files.writer
        if 0 < len(batch.changes) <= ROWS_AT_ONCE and not batch.garbage:
            writer.run(
                *_insert(batch.changes)
            )  # a transaction by itself: the interpreter is won back once, not seven times
            return
        writer.run("begin immediate")
        for statement, values in _inserts(batch.changes):
            writer.run(statement, values)
        if batch.garbage:
            writer.run_many("delete from log where rv = ?", [(row,) for _, row in batch.garbage])
            self._files.set_meta("compacted", batch.compacted)
        writer.run("commit")

    def _recover(self) -> None:
        """After a failure: a new connection, and nothing in the log that was reported as lost.

        A commit whose last fsync failed may have left whole frames behind, which a new connection would find.
        """
        self._files.reopen_writer()
        self._files.writer.run("delete from log where rv > ?", (self._newest,))
        self._has_failed = False

    def _parsed(self, row: Row) -> Stored:
        revision, resource, namespace, name, created, _, crc, selectors, managed, body = row
        if _crc(selectors, managed, body) != crc:
            raise damaged(
                self._files.path, f"the checksum of {resource} {namespace}/{name} at revision {revision} is wrong"
            )
        labels, fields = _decode(selectors)
        # what many objects say alike is kept once: a fifth of what 200,000 pods take
        key = Key(sys.intern(resource), sys.intern(namespace), sys.intern(name))
        fields = {field: sys.intern(value) for field, value in fields.items()}
        return Stored(key, revision, created, body, self._shared_text(managed), self._shared_labels(labels), fields)

    def _shared_text(self, managed: bytes) -> bytes:
        if len(self._managed) >= MOST_SHARED:
            self._managed.clear()
        return self._managed.setdefault(managed, managed)

    def _shared_labels(self, raw: msgspec.Raw) -> dict[str, str]:
        text = bytes(raw)
        labels = self._label_sets.get(text)
        if labels is None:
            if len(self._label_sets) >= MOST_SHARED:
                self._label_sets.clear()
            labels = self._label_sets[text] = _labels(text)
        return labels


def _inserts(changes: Sequence[Change]) -> Iterator[tuple[str, list[Any]]]:
    """As few statements as insert all changes."""
    for start in range(0, len(changes), ROWS_AT_ONCE):
        yield _insert(changes[start : start + ROWS_AT_ONCE])


def _insert(changes: Sequence[Change]) -> tuple[str, list[Any]]:
    """One statement that inserts them, and its values."""
    return _insert_of(len(changes)), [value for change in changes for value in _row(change)]


@cache
def _insert_of(rows: int) -> str:
    return "insert into log values" + ", ".join([ROW] * rows)


def _row(change: Change) -> Row:
    stored = change.current or change.last
    assert stored is not None, "a change leaves an object or its last state"
    selectors = _encode((stored.labels, stored.fields))
    crc = _crc(selectors, stored.managed_fields, stored.body)
    return (
        change.revision, *change.key, stored.create_revision, change.current is None, crc,
        selectors, stored.managed_fields, stored.body,
    )  # fmt: skip


def _crc(selectors: bytes, managed: bytes, body: bytes) -> int:
    return crc32(body, crc32(managed, crc32(selectors)))
