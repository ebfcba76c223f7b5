"""Writes a status only when it says something new, and conditions as Kubernetes writes them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from hekla.api.meta import Document, Resource
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.timestamps import rfc3339


def set_status(obj: Resource, wanted: Document) -> Iterator[Command]:
    """The status, whole, if it differs from what is there; a value of None stands for an absent field."""
    current = msgspec.to_builtins(getattr(obj, "status"))  # noqa: B009  # `Resource` itself declares no status
    if any(_plain(current.get(key)) != _plain(value) for key, value in wanted.items()):
        yield SetStatus(target_of(obj), wanted)


def new_condition(
    kind: str, status: str, reason: str, message: str, now: datetime, old: Document | None, **more: Any
) -> Document:
    """A condition; the time of its transition stays where its status does."""
    changed_at = rfc3339(now)
    if old is not None and old["status"] == status and old.get("lastTransitionTime"):
        changed_at = old["lastTransitionTime"]
    return {
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": changed_at, **more,
    }  # fmt: skip


def conditions_of(obj: Resource) -> dict[str, Document]:
    """The conditions that are there, as documents by type."""
    found = getattr(obj, "status").conditions  # noqa: B009  # `Resource` itself declares no status
    return {one.type: _plain(msgspec.to_builtins(one)) for one in found}


def _plain(value: Any) -> Any:
    """A value without what only says that nothing is said."""
    if isinstance(value, dict):
        cleaned = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item is not None} or None
    if isinstance(value, list):
        return [_plain(item) for item in value] or None
    return value if value not in (0, "", False) else None
