"""Endpoint slices: the addresses behind a service."""

from msgspec import Struct

from hekla.api.meta import Resource, resource
from hekla.api.selectors import ObjectReference


class EndpointConditions(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether an endpoint is ready, serving, terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A zone that should use the endpoint."""

    name: str = ""


class ForNode(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A node that should use the endpoint."""

    name: str = ""


class EndpointHints(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Who should use the endpoint."""

    for_nodes: list[ForNode] = []
    for_zones: list[ForZone] = []


class Endpoint(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One backend of a service."""

    addresses: list[str] = []
    conditions: EndpointConditions | None = None
    deprecated_topology: dict[str, str] = {}
    hints: EndpointHints | None = None
    hostname: str = ""
    node_name: str = ""
    target_ref: ObjectReference | None = None
    zone: str = ""


class EndpointPort(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One port of a slice."""

    app_protocol: str = ""
    name: str = ""
    port: int = 0
    protocol: str = ""


@resource("discovery.k8s.io/v1", plural="endpointslices")
class EndpointSlice(Resource, kw_only=True, frozen=True, rename="camel"):
    """Some of the endpoints of a service."""

    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None
