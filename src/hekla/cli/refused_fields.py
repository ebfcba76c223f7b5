"""What a server refuses about single fields of a manifest, in words: which object, which field, its value, and the nearest field.

An API server names the path of a field that it does not know, or whose type is wrong, and nothing else; its schema and the manifest
have the rest. What may be secret is not printed, since terminals and logs of CI keep it: nothing of a Secret, no environment, no
annotation, nothing under a name like `password`, and no mapping, list or text where nobody knows what the field was to be.
"""

import json
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hekla.api.meta import Document, Kind
    from hekla.cli.connection import Connection
    from hekla.cli.manifests import Manifest
    from hekla.cli.resources import Catalogue
    from hekla.cli.schemas import Schemas
    from hekla.kube.errors import ApiError

UNKNOWN = "field not declared in schema"
MOST_OF_A_VALUE = 60
"""Characters of a value that a sentence shows."""

_APPLIED = re.compile(r"(?:^|: |\n\s*)\.(\S+): (field not declared in schema|expected [^\n]*)")
_CREATED = re.compile(r'unknown field "([^"]+)"')
_GOT = re.compile(r", got &[^\n]*")
"""How a server ends its sentence about a type: with the value, in Go's notation."""
_PRIVATE = re.compile(r"(^|\.)(env|annotations)([.\[]|$)|pass|secret|token|credential|key", re.IGNORECASE)
"""Paths whose values are not printed."""
_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


async def tell_refusal(
    connection: "Connection", catalogue: "Catalogue", manifest: "Manifest", error: "ApiError"
) -> None:
    """Say on standard error why a manifest was refused: field by field where that is it, else in the server's own words."""
    from hekla.cli.connection import about, refusal_text
    from hekla.cli.names import queue_meant

    kind = catalogue.of_document(manifest.document, manifest.source).kind
    what = about(manifest.source, manifest.document)
    fields = await field_refusals(connection, kind, manifest.document, error)
    error.message = await queue_meant(connection, error.message)
    for line in [f"hekla: {what}{one}" for one in fields] or [_GOT.sub("", refusal_text(error, what))]:
        print(line, file=sys.stderr)  # noqa: T201  # the command line's own voice


async def field_refusals(connection: "Connection", kind: "Kind", document: "Document", error: "ApiError") -> list[str]:
    """A sentence for each field; none where the refusal is about something else, or the schema cannot be had."""
    from hekla.cli.schemas import schemas_of
    from hekla.kube.errors import KubeError

    found = list(_fields(error.message))
    try:
        schemas = await schemas_of(connection, kind) if found else None
    except KubeError:
        return []
    return [_sentence(schemas, kind, document, path, what) for path, what in found] if schemas else []


def _fields(message: str) -> Iterator[tuple[str, str]]:
    """Paths, and what is wrong with each."""
    yield from _APPLIED.findall(message)
    for path in _CREATED.findall(message):
        yield path, UNKNOWN


def _sentence(schemas: "Schemas", kind: "Kind", document: "Document", path: str, what: str) -> str:
    from hekla.cli.schemas import without_field

    place = _place(document, path)
    is_private = place is None or _is_private(kind, path)
    field, value = place or (path.rpartition(".")[2], None)
    if what != UNKNOWN:
        shown = "" if is_private else f" is {_shown(value)}"
        return f"{path}{shown}: {_GOT.sub('', what)}"
    above = path.removesuffix(field).removesuffix(".")
    known = _schema_at(schemas, kind, above).get("properties") or {}
    shown = f" (written is {field}: {_shown(value)})" if isinstance(value, int | float) and not is_private else ""
    return without_field(above or "it", field, known) + shown


def _is_private(kind: "Kind", path: str) -> bool:
    return kind.kind == "Secret" or bool(_PRIVATE.search(path))


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_OF_A_VALUE else f"{text[:MOST_OF_A_VALUE]}..."


def _schema_at(schemas: "Schemas", kind: "Kind", path: str) -> "Document":
    schema = schemas.of_kind(kind)
    for name, _ in _STEP.findall(path):
        if name:  # what stands in brackets is an item, whose schema is that of the list
            schema = schemas.below((schema.get("properties") or {}).get(name, {}))[1]
    return schema


def _place(document: Any, path: str) -> tuple[str, Any] | None:
    """The last key of a path, and what the manifest has there; None if the path leads nowhere. Keys may have dots themselves."""
    found, key = document, ""
    steps = _STEP.findall(path)
    while steps:
        name, item = steps[0]
        if name and isinstance(found, dict):
            names = [one for one, _ in takewhile(itemgetter(0), steps)]
            joined = (".".join(names[:many]) for many in range(len(names), 0, -1))
            longest = next((one for one in joined if one in found), None)
            if longest is None:
                return None
            key, found = longest, found[longest]
            steps = steps[longest.count(".") + 1 :]
        elif item and isinstance(found, list):
            key, found, steps = f"[{item}]", _item(found, item), steps[1:]
            if found is None:
                return None
        else:
            return None
    return key, found


def _item(items: list[Any], which: str) -> Any:
    """`0`, or `name="worker"` as lists with keys are named."""
    if which.isdigit():
        return items[int(which)] if int(which) < len(items) else None
    key, _, value = which.partition(",")[0].partition("=")
    return next((one for one in items if isinstance(one, dict) and json.dumps(one.get(key)) == value), None)
