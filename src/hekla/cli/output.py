"""How answers are printed: documents as JSON or YAML or what a template picks of them, Tables as aligned columns."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from hekla.cli.jsonpath import column_rows, rendered
from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.cli.terminal import harmless

COLUMNS, TEMPLATE = "custom-columns=", "jsonpath="


def print_document(document: Any, form: str, *, headers: bool = True) -> None:
    """Print a document as `json`, `yaml`, `name`, `jsonpath=TEMPLATE` or `custom-columns=NAME:PATH,...`."""
    if form == "json":
        typer.echo(json.dumps(document, indent=4, ensure_ascii=False))
    elif form == "yaml":
        typer.echo(as_yaml(document), nl=False)
    elif form == "name":
        for one in document.get("items", [document]):
            typer.echo(resource_name(one))
    elif form.startswith(TEMPLATE):
        typer.echo(rendered(form.removeprefix(TEMPLATE), document), nl=False)
    elif form.startswith(COLUMNS):
        rows = column_rows(form.removeprefix(COLUMNS), document.get("items", [document]))
        typer.echo(aligned(rows if headers else rows[1:]))
    else:
        known = "json, yaml, name, wide, jsonpath={PATH} or custom-columns=NAME:PATH"
        raise CommandError(f'-o "{form}" is not known; use {known}', EXIT_USAGE)


def as_yaml(document: Any) -> str:
    """YAML as people write it: block style, order kept, nothing folded, a text of several lines under a bar."""
    import yaml

    return str(
        yaml.dump(document, Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=4096)
    )


@cache
def _dumper() -> Any:
    import yaml

    known = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("Dumper", (known,), {"ignore_aliases": lambda _self, _data: True})

    def text(writer: Any, data: str) -> Any:
        # what has tabs or spaces at the end of a line cannot stand under a bar; the emitter quotes it by itself
        return writer.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    dumper.add_representer(str, text)  # type: ignore[attr-defined]  # a class made here, of one chosen at run time
    return dumper


def resource_name(document: dict[str, Any]) -> str:
    """`job.batch.volcano.sh/train`, as kubectl names what it did."""
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    kind = str(document.get("kind", "")).lower()
    return f"{kind}{'.' + group if group else ''}/{document['metadata']['name']}"


def columns_text(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, show_headers: bool = True) -> str:
    """Cells aligned in columns three spaces apart, as kubectl prints them."""
    cells = [[str(cell) if cell is not None else "<none>" for cell in row] for row in rows]
    return aligned([[header.upper() for header in headers], *cells] if show_headers else cells)


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Rows of texts with columns three spaces apart."""
    if not table:
        return ""
    table = [[harmless(cell) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
