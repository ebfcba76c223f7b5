"""Events in their newer form."""

from msgspec import Struct

from hekla.api.core import EventSource
from hekla.api.meta import Resource, resource
from hekla.api.selectors import ObjectReference


class EventSeries(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How often it was seen."""

    count: int = 0
    last_observed_time: str | None = None


@resource("events.k8s.io/v1", plural="events", short=("ev",))
class Event(Resource, kw_only=True, frozen=True, rename="camel"):
    """Something that happened to an object."""

    action: str = ""
    deprecated_count: int = 0
    deprecated_first_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None
    deprecated_source: EventSource | None = None
    event_time: str | None = None
    note: str = ""
    reason: str = ""
    regarding: ObjectReference | None = None
    related: ObjectReference | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None
    type: str = ""
