"""InferencePool of the Gateway API Inference Extension: engines that an HTTPRoute may point at.

`gateway.py` has the routes; `hekla.serving.router.gateway` follows them. The router is its own endpoint picker.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Limits
from hekla.api.foreign.references import GroupName, KindName, ObjectName, ParentReference, PortNumber
from hekla.api.meta import Column, Resource, resource
from hekla.api.volcano.topology import StrictCondition


class PoolSelector(Struct, kw_only=True, frozen=True, rename="camel"):
    """The engines, all in the pool's namespace."""

    match_labels: Annotated[dict[str, str], Limits(max_properties=64), REQUIRED] = {}
    """Labels that every pod has."""


class PoolPort(Struct, kw_only=True, frozen=True, rename="camel"):
    """A port of every engine."""

    number: Annotated[PortNumber, REQUIRED] = 0
    """The port."""


class EndpointPickerPort(Struct, kw_only=True, frozen=True, rename="camel"):
    """A port of the picker."""

    number: Annotated[PortNumber, REQUIRED] = 0
    """The port."""


class EndpointPickerRef(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who chooses among the engines for other gateways; this router chooses by itself."""

    group: Annotated[GroupName, DEFAULTED] = ""
    """Group of the picker."""

    kind: Annotated[KindName, DEFAULTED] = "Service"
    """Kind of the picker."""

    name: Annotated[ObjectName, REQUIRED] = ""
    """Its name."""

    port: EndpointPickerPort | None = None
    """Its port."""

    failure_mode: Annotated[str, Limits(enum=("FailOpen", "FailClose")), DEFAULTED] = "FailClose"
    """What becomes of requests when it does not answer."""


class InferencePoolSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """The engines."""

    selector: Annotated[PoolSelector, REQUIRED] = field(default_factory=PoolSelector)
    """Which pods they are."""

    target_ports: Annotated[list[PoolPort], Limits(min_items=1, max_items=8, list_type="atomic"), REQUIRED] = []
    """Where they listen; one of several is an engine of its own."""

    app_protocol: Annotated[str, Limits(enum=("http", "kubernetes.io/h2c"))] = ""
    """How they are spoken to; absent: http."""

    endpoint_picker_ref: EndpointPickerRef | None = None
    """Who chooses for other gateways."""


class PoolParentStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What one Gateway made of the pool."""

    parent_ref: Annotated[ParentReference, REQUIRED] = field(default_factory=ParentReference)
    """The Gateway."""

    controller_name: str = ""
    """Who writes this."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted, ResolvedRefs."""


class InferencePoolStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What Gateways made of the pool."""

    parents: Annotated[list[PoolParentStatus], Limits(max_items=32, list_type="atomic")] = []
    """Each."""


@resource(
    "inference.networking.k8s.io/v1",
    plural="inferencepools",
    short=("infpool",),
    has_status=True,
    columns=(Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),),
)
class InferencePool(Resource, kw_only=True, frozen=True, rename="camel"):
    """Engines that an HTTPRoute may point at."""

    spec: Annotated[InferencePoolSpec, REQUIRED] = field(default_factory=InferencePoolSpec)
    """The engines."""

    status: InferencePoolStatus = field(default_factory=InferencePoolStatus)
    """What Gateways made of them."""
