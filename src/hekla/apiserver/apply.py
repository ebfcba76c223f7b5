"""Server-side apply: merge what a manager wants, drop what it no longer wants, refuse what others own.

The sets of paths are `field_sets.py`'s, the entries `managed_fields.py`'s; the steps are those of
structured-merge-diff: merge, prune, compare, conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import Schema
from hekla.apiserver.field_sets import (
    NONE,
    Path,
    Paths,
    by_element,
    difference,
    field_schema,
    is_atomic,
    path_text,
    paths_of,
    root_field,
    with_named_parents,
)
from hekla.apiserver.managed_fields import APPLY, UPDATE, Entry, owned
from hekla.apiserver.status import StatusError


@dataclass(frozen=True)
class Applied:
    """What an apply makes of an object: the object, and who owns what in it."""

    document: Document
    entries: list[Entry]


def apply(live: Document, config: Document, schema: Schema, entries: list[Entry], me: Entry, *, force: bool) -> Applied:
    """Apply `config` for the manager `me`; `entries` are explicit. Raises 409 with every conflict."""
    wanted = owned(paths_of(config, schema))
    before = next((entry for entry in entries if entry.is_by(me)), None)
    others = [entry for entry in entries if not entry.is_by(me)]
    merged = _merge_root(live, config, schema)
    last = (before.paths if before else None) or NONE
    merged = _pruned(merged, schema, last, wanted, others)
    changed = difference(live, merged, schema)
    others = _settle(others, owned(changed.written), changed.removed, force=force)
    mine = replace(me, paths=wanted)
    if before is not None and before.paths == wanted and not owned(changed.written | changed.removed):
        mine = before
    return Applied(merged, [*others, mine])


def applied_at_creation(config: Document, schema: Schema, me: Entry) -> list[Entry]:
    """Who owns what in an object that an apply creates."""
    return [replace(me, paths=owned(paths_of(config, schema)))]


def _settle(others: list[Entry], written: Paths, removed: Paths, *, force: bool) -> list[Entry]:
    """Take from others what is written and removed; raises 409 where that needs force and there is none."""
    conflicts = [(entry, path) for entry in others for path in sorted((entry.paths or NONE) & written, key=_place)]
    if conflicts and not force:
        raise _refused(conflicts)
    return [replace(entry, paths=(entry.paths or NONE) - written - removed) for entry in others]


def _place(path: Path) -> list[tuple[bool, str]]:
    """Where a path comes among others: what lies in a map itself before what lies deeper."""
    return [(at < len(path) - 1, element) for at, element in enumerate(path)]


# ---- merging


def _merge_root(live: Document, config: Document, schema: Schema) -> Document:
    merged = dict(live)
    for name, value in config.items():
        merged[name] = _merged(live.get(name), value, root_field(schema, name))
    return merged


def _merged(live: Any, config: Any, schema: Schema | None) -> Any:
    if live is None or is_atomic(config, schema):
        return config
    if isinstance(config, dict) and isinstance(live, dict):
        result = dict(live)
        for name, value in config.items():
            result[name] = _merged(live.get(name), value, field_schema(schema, name))
        return result
    if isinstance(config, list) and isinstance(live, list) and schema is not None:
        return _merged_list(live, config, schema)
    return config


def _merged_list(live: list[Any], config: list[Any], schema: Schema) -> list[Any]:
    """Both lists' items: those of `config` in its order, the others where they stood."""
    before, after = by_element(live, schema), by_element(config, schema)
    inner = schema.items if schema.list_type == "map" else None
    result: list[Any] = []
    waiting = [(element, item) for element, item in before.items()]
    for element, item in after.items():
        while waiting and waiting[0][0] not in after:
            result.append(waiting.pop(0)[1])
        known = before.get(element)
        result.append(item if inner is None or known is None else _merged(known, item, inner))
        waiting = waiting if not waiting or waiting[0][0] not in after else waiting[1:]
    return result + [item for element, item in waiting if element not in after]


# ---- pruning


def _pruned(merged: Document, schema: Schema, last: Paths, wanted: Paths, others: Sequence[Entry]) -> Document:
    """Without what this manager set before, sets no more, and nobody else owns."""
    if not last:
        return merged
    held = with_named_parents(wanted.union(*((entry.paths or NONE) for entry in others)))
    dropped = with_named_parents(last) - held
    for path in sorted(dropped, key=len):
        if path[0] != "f:metadata" or len(path) > 1:
            merged = _without(merged, path, schema)
    return merged


def _without(document: Document, path: Path, schema: Schema) -> Document:
    name = path[0][2:]
    if name not in document:
        return document
    result = dict(document)
    if len(path) == 1:
        del result[name]
    else:
        result[name] = _removed(document[name], path[1:], root_field(schema, name))
    return result


def _removed(value: Any, path: Path, schema: Schema | None) -> Any:
    element = path[0]
    if element.startswith("f:") and isinstance(value, dict):
        name = element[2:]
        if name not in value:
            return value
        if len(path) == 1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: _removed(value[name], path[1:], field_schema(schema, name))}
    if isinstance(value, list) and schema is not None and not is_atomic(value, schema):
        named = by_element(value, schema)
        if element not in named:
            return value
        if len(path) == 1:
            return [item for key, item in named.items() if key != element]
        return [_removed(item, path[1:], schema.items) if key == element else item for key, item in named.items()]
    return value


# ---- conflicts


def _refused(conflicts: list[tuple[Entry, Path]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {_shown(entry)}", "field": path_text(path)}
        for entry, path in conflicts
    ]
    return StatusError(409, "Conflict", _sentence(conflicts), details={"causes": causes})


def _sentence(conflicts: list[tuple[Entry, Path]]) -> str:
    if len(conflicts) == 1:
        entry, path = conflicts[0]
        return f"Apply failed with 1 conflict: conflict with {_shown(entry)}: {path_text(path)}"
    lines: list[str] = []
    for shown in sorted({_shown(entry) for entry, _ in conflicts}):
        lines.append(f"conflicts with {shown}:")
        lines += [f"- {path_text(path)}" for entry, path in conflicts if _shown(entry) == shown]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def _shown(entry: Entry) -> str:
    text = f'"{entry.manager}"'
    if entry.subresource:
        text += f' with subresource "{entry.subresource}"'
    return f"{text} using {entry.api_version}" if entry.operation == UPDATE else text


__all__ = ["APPLY", "Applied", "applied_at_creation", "apply"]
