"""Kinds that are served in two groups and stored once: an event is one object, whichever API it came by."""

from collections.abc import Callable
from typing import NamedTuple

from hekla.api.meta import Document

_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
"""Names in events.k8s.io/v1 and in v1."""


class Conversion(NamedTuple):
    """How a served form and the stored form become each other. Documents may be changed."""

    resource: str
    """Under which the objects are stored."""

    to_storage: Callable[[Document], Document]
    from_storage: Callable[[Document], Document]


def _renamed(names: dict[str, str], api_version: str) -> Callable[[Document], Document]:
    def convert(document: Document) -> Document:
        return {names.get(name, name): value for name, value in document.items()} | {"apiVersion": api_version}

    return convert


CONVERSIONS = {
    "events.events.k8s.io": Conversion(
        "events",
        to_storage=_renamed(_EVENT_FIELDS, "v1"),
        from_storage=_renamed({old: new for new, old in _EVENT_FIELDS.items()}, "events.k8s.io/v1"),
    )
}
"""By the resource that is served."""
