"""Kinds that are served in two forms and stored in one: an event is one object, whichever API it came by; so is a Sandbox."""

from collections.abc import Callable
from typing import NamedTuple

from hekla.api.agents.v1alpha1_conversion import OLDER_KINDS
from hekla.api.agents.v1alpha1_schema import VERSION
from hekla.api.meta import Document
from hekla.apiserver import autoscaler_conversion

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

_AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
OF_VERSIONS = {
    (_AUTOSCALERS, "v1"): Conversion(
        _AUTOSCALERS, to_storage=autoscaler_conversion.to_stored, from_storage=autoscaler_conversion.from_stored
    )
}
"""By resource and version: built-in kinds whose versions differ in more than their name."""

OF_CUSTOM_KINDS = {
    (resource, VERSION): Conversion(resource, to_storage=ways.to_newer, from_storage=ways.to_older)
    for resource, ways in OLDER_KINDS.items()
}
"""By resource and version: what is stored as v1beta1. A definition of these kinds needs no webhook for it."""
