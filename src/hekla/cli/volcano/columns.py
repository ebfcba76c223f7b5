"""Rows of objects as text: in Volcano's columns, which scripts cut by position, or in ours, as wide as they must be."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hekla.api.meta import Document

BETWEEN = "   "


@dataclass(frozen=True)
class Column:
    """One column of ours."""

    title: str
    value: Callable[[Document], object]
    is_wide: bool = False
    """Shown with `-o wide` only."""


@dataclass(frozen=True)
class PeerColumn:
    """One column of Volcano's: of a fixed width, or as wide as its widest cell and a gap."""

    title: str
    value: Callable[[Document], object]
    width: int = 0
    gap: int = 3
    title_gap: int | None = None
    """The gap after a title that is the widest; the same as after a cell if nothing is said."""

    def wide_enough(self, cells: Iterable[str]) -> int:
        """How wide it is printed."""
        if self.width:
            return self.width
        after_title = self.gap if self.title_gap is None else self.title_gap
        return max([len(self.title) + after_title, *(len(cell) + self.gap for cell in cells)])


def peer_table(columns: Sequence[PeerColumn], documents: Sequence[Document]) -> str:
    """A table as vcctl prints it; a cell that is longer than a fixed width pushes the others to the right."""
    rows = [[str(column.value(one)) for column in columns] for one in documents]
    widths = [column.wide_enough(row[i] for row in rows) for i, column in enumerate(columns)]
    titles = [column.title for column in columns]
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]
    )


class Rows:
    """A table that goes on: later rows stand under the columns of the first ones."""

    def __init__(self, columns: Sequence[Column], *, wide: bool, namespaces: bool) -> None:
        own = [Column("Namespace", namespace_of)] if namespaces else []
        self._columns = [*own, *(one for one in columns if wide or not one.is_wide)]
        self._widths = [len(one.title) for one in self._columns]

    def table(self, documents: Sequence[Document]) -> str:
        """Titles and rows."""
        rows = [self._cells(one) for one in documents]
        self._widen(rows)
        return "\n".join(self._line(row) for row in [[one.title.upper() for one in self._columns], *rows])

    def row(self, document: Document) -> str:
        """One more row."""
        cells = self._cells(document)
        self._widen([cells])
        return self._line(cells)

    def _cells(self, document: Document) -> list[str]:
        return [str(one.value(document)) for one in self._columns]

    def _widen(self, rows: Sequence[Sequence[str]]) -> None:
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]

    def _line(self, cells: Sequence[str]) -> str:
        return BETWEEN.join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def name_of(document: Document) -> str:
    """The object's name."""
    return str(document["metadata"]["name"])


def namespace_of(document: Document) -> str:
    """The object's namespace; empty for one that has none."""
    return str(document["metadata"].get("namespace", ""))


def age_of(document: Document) -> str:
    """How long ago the object was created."""
    from datetime import UTC, datetime

    from hekla.apiserver.tables import age

    return age(document, datetime.now(UTC))


def status_number(field: str) -> Callable[[Document], int]:
    """A reader of one number of the status; 0 if it is not there."""

    def read(document: Document) -> int:
        return int((document.get("status") or {}).get(field) or 0)

    return read


def spec_text(field: str) -> Callable[[Document], str]:
    """A reader of one text of the spec; empty if it is not there."""

    def read(document: Document) -> str:
        return str((document.get("spec") or {}).get(field) or "")

    return read


def phase_of(document: Document) -> str:
    """`status.state.phase`, where jobs and flows keep it."""
    return str(((document.get("status") or {}).get("state") or {}).get("phase") or "")
