"""How answers are printed: documents as JSON or YAML, Tables as aligned columns."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from hekla.cli.main import EXIT_USAGE, CommandError


def print_document(document: Any, form: str) -> None:
    """Print a document as `json`, `yaml` or `name`."""
    if form == "json":
        typer.echo(json.dumps(document, indent=4, ensure_ascii=False))
    elif form == "yaml":
        typer.echo(as_yaml(document), nl=False)
    elif form == "name":
        for one in document.get("items", [document]):
            typer.echo(resource_name(one))
    else:
        raise CommandError(f'-o "{form}" is not known; use json, yaml, name or wide', EXIT_USAGE)


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
    table = [[header.upper() for header in headers], *cells] if show_headers else cells
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
