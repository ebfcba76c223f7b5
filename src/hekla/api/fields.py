"""What a field of a kind promises beyond its type: limits, a default, a format, how lists merge.

    replicas: Annotated[int, Limits(minimum=0, format="int32")] = 0

`crd.py` writes these into the schema of a custom resource, and the API server holds writers to them. Reading does not:
an informer that refused an object because some older server let it in would stand still for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A CEL rule of the schema and what it says when broken."""

    rule: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a schema says of a value. None and empty mean: nothing."""

    minimum: int | None = None
    maximum: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    min_properties: int | None = None
    max_properties: int | None = None
    pattern: str = ""
    format: str = ""
    enum: tuple[str, ...] = ()
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    map_type: str = ""
    rules: tuple[Rule, ...] = ()
    is_int_or_string: bool = False
    schema_of: str = ""
    """Name of a published Kubernetes type whose schema stands here, such as `io.k8s.api.core.v1.PodTemplateSpec`."""

    is_required: bool = False
    """Whether a writer must give the field, whatever a reader takes for absent."""

    is_defaulted: bool = False
    """Whether the server writes the field's default into objects that lack it."""


def merged(several: Iterable[Limits]) -> Limits:
    """One `Limits` that says all that these say; the later one wins where both speak."""
    said: dict[str, object] = {}
    for one in several:
        said |= {field.name: value for field in fields(one) if (value := getattr(one, field.name)) != field.default}
    return Limits(**said)  # type: ignore[arg-type]  # names and values come from Limits itself


REQUIRED = Limits(is_required=True)
DEFAULTED = Limits(is_defaulted=True)
CONDITIONS = Limits(list_type="map", list_keys=("type",))
"""A list of conditions, merged by their types."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

Int32 = Annotated[int, Limits(format="int32")]
Count = Annotated[int, Limits(format="int32", minimum=0)]
"""A number of things."""

Port = Annotated[int, Limits(minimum=0, maximum=65535)]
DnsLabel = Annotated[str, Limits(max_length=63, pattern=f"^{_LABEL}$")]
DnsSubdomain = Annotated[str, Limits(max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
Time = Annotated[str | None, Limits(format="date-time")]
"""RFC 3339 text, as on the wire."""

Duration = str
"""Text such as `1h30m`, as Go writes it."""

Quantity = Annotated[str | int | float, Limits(is_int_or_string=True, pattern=QUANTITY_PATTERN)]
"""An amount of a resource: `500m`, `8Gi`, 2."""

ResourceList = dict[str, Quantity]
"""Amounts by resource name."""
