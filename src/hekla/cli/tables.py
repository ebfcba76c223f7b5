"""Prints the server's Tables as kubectl does: priority columns only when wide, the namespace first when asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hekla.cli.output import columns_text

if TYPE_CHECKING:
    from hekla.api.meta import Document


def table_text(tables: "Sequence[Document]", *, wide: bool, namespaces: bool, headers: bool, prefix: str = "") -> str:
    """Rows of several Tables of one kind under one heading; empty when there are none. `prefix` goes before names."""
    titles: list[str] = []
    rows: list[list[Any]] = []
    for table in tables:
        if table.get("kind") != "Table":
            table = _by_name(table)
        # a watch sends the columns with its first event only
        columns = table.get("columnDefinitions") or []
        shown = [i for i, column in enumerate(columns) if wide or not column.get("priority")]
        titles = titles or [columns[i]["name"] for i in shown]
        for row in table.get("rows") or ():
            cells = [row["cells"][i] for i in (shown or range(len(row["cells"])))]
            if prefix and cells:
                cells[0] = f"{prefix}{cells[0]}"
            rows.append([_namespace(row), *cells] if namespaces else cells)
    if not rows:
        return ""
    titles = titles or [""] * (len(rows[0]) - namespaces)
    return columns_text(["Namespace", *titles] if namespaces else titles, rows, show_headers=headers)


def _namespace(row: "Document") -> str:
    return str((row.get("object") or {}).get("metadata", {}).get("namespace", ""))


def _by_name(document: "Document") -> "Document":
    """A Table of names, for a server that makes none."""
    items = document.get("items", [document])
    rows = [{"cells": [item["metadata"]["name"]], "object": item} for item in items]
    return {"kind": "Table", "columnDefinitions": [{"name": "Name"}], "rows": rows}
