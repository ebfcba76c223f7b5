"""Objects as tables: what `kubectl get` prints. `printers.py` and `printers_workloads.py` know the built-in kinds' columns."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hekla.api.meta import Column, Document
from hekla.api.schema import for_object_meta
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document
from hekla.apiserver.documents import loose_value
from hekla.apiserver.jsonpath import find
from hekla.apiserver.listing import Page
from hekla.apiserver.managed_fields import explicit
from hekla.apiserver.registry import Served
from hekla.apiserver.status import bad_request
from hekla.apiserver.store import Stored


class Cell(NamedTuple):
    """One column of a built-in kind."""

    name: str
    type: str = "string"
    priority: int = 0
    description: str = ""
    """Or the path of the field whose description is shown: `.spec.nodeName`."""


Row = Callable[[Document, datetime], list[Any]]
"""The cells of one object, the name first."""


class Printer(NamedTuple):
    """How a kind is printed."""

    columns: tuple[Cell, ...]
    row: Row


WIDE = 1
AGE = Cell("Age", description=".metadata.creationTimestamp")
CREATED = Cell("Created At", "date", description=".metadata.creationTimestamp")
NAME = Cell("Name", description=".metadata.name")


def table_of(backend: Backend, served: Served, page: Page, include: str, *, is_list: bool) -> Document:
    """The Table of a page of objects."""
    if include not in {"", "None", "Metadata", "Object"}:
        raise bad_request(f'unrecognized includeObject value: "{include[:60]}"')
    printer = _printer(served)
    now = backend.clock()
    rows = [_row(served, stored, printer, now, include or "Metadata") for stored in page.items]
    metadata: Document = {"resourceVersion": str(page.revision)}
    if page.continue_token:
        metadata["continue"] = page.continue_token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(served, cell) for cell in printer.columns],
        "rows": rows,
    }


SCALE_COLUMNS = (
    NAME,
    Cell("Desired", "integer", description="How many replicas are asked for."),
    Cell("Available", "integer", description="How many there are."),
    AGE,
)


def scale_table(backend: Backend, served: Served, scale: Document) -> Document:
    """The Table of a Scale."""
    counts = (scale["spec"].get("replicas", 0), scale["status"]["replicas"])
    row = {"cells": [scale["metadata"]["name"], *counts, age(scale, backend.clock())]}
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": scale["metadata"]}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]},
        "columnDefinitions": [_definition(served, cell) for cell in SCALE_COLUMNS],
        "rows": [{**row, "object": head}],
    }


def _row(served: Served, stored: Stored, printer: Printer, now: datetime, include: str) -> Document:
    document: Document = decode_document(stored.body)
    row: Document = {"cells": printer.row(document, now)}
    fields = explicit(stored.managed_fields)
    if fields and include != "None":
        document["metadata"]["managedFields"] = loose_value(fields)
    if include == "Object":
        shown = served.document(stored.body)
        row["object"] = shown | {"metadata": document["metadata"]}
    elif include == "Metadata":
        head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        row["object"] = {**head, "metadata": document["metadata"]}
    else:
        row["object"] = None
    return row


def _definition(served: Served, cell: Cell) -> Document:
    description = _described(served, cell.description)
    shape = "name" if cell.name == "Name" and cell.type == "string" else ""
    return {
        "name": cell.name,
        "type": cell.type,
        "format": shape,
        "description": description,
        "priority": cell.priority,
    }


def _described(served: Served, text: str) -> str:
    """A column's description; a path stands for what the schema says of the field."""
    if not text.startswith("."):
        return text
    _, first, *rest = text.split(".")
    schema = for_object_meta() if first == "metadata" else served.strategy.schema.properties.get(first)
    for part in rest:
        schema = schema.properties.get(part) if schema is not None else None
    return schema.description if schema is not None else ""


def _printer(served: Served) -> Printer:
    from hekla.apiserver.printers import PRINTERS, by_default

    if served.is_custom or served.columns:
        return _declared(served)
    return PRINTERS.get(served.resource, by_default)


def _declared(served: Served) -> Printer:
    """The printer of a kind whose columns were declared with it."""
    columns = served.columns or (Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),)
    cells = [NAME]
    for column in columns:
        told = column.description or f"Custom resource definition column (in JSONPath format): {column.json_path}"
        is_age = column.json_path == ".metadata.creationTimestamp" and not served.columns
        cells.append(Cell(column.name, column.type, column.priority, AGE.description if is_age else told))

    def row(document: Document, now: datetime) -> list[Any]:
        return [document["metadata"]["name"], *(declared_cell(document, column, now) for column in columns)]

    return Printer(tuple(cells), row)


def declared_cell(document: Document, column: Column, now: datetime) -> Any:
    """What a column that was declared with its kind shows of an object."""
    values = find(document, column.json_path)
    if not values:
        return None
    value = values[0]
    match column.type:
        case "integer":
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return since(value, now) if isinstance(value, str) else "<unknown>"
    return shown(value)  # the first of several, as Kubernetes shows it


def shown(value: Any) -> str:
    """A value in a cell."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        from hekla.apiserver.bodies import encode

        return encode(value).decode()
    return "" if value is None else str(value)


def age(document: Document, now: datetime) -> str:
    """How long ago an object was created."""
    return since(document["metadata"].get("creationTimestamp"), now)


def since(moment: Any, now: datetime) -> str:
    """How long ago something was, as short as kubectl says it."""
    then = parsed_time(moment)
    return "<unknown>" if then is None else duration((now - then).total_seconds())


def parsed_time(moment: Any) -> datetime | None:
    """An RFC 3339 time; None for anything else."""
    if not isinstance(moment, str) or not moment:
        return None
    try:
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def duration(seconds: float) -> str:
    """Seconds in at most two units, the way Kubernetes rounds them."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole >= -1 else "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"
