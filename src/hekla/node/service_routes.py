"""Which address and port of a Service leads to which endpoints: decided from Services and EndpointSlices.

Pure; `service_proxy.py` listens and carries the bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from hekla.api.core import Service, ServicePort
from hekla.api.discovery import EndpointSlice

SERVICE_NAME = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, order=True)
class Listen:
    """Where a Service is reached."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where connections to one `Listen` go."""

    service: str
    backends: tuple[tuple[str, int], ...]
    stays_with_client: bool = False
    """sessionAffinity ClientIP: one client, one endpoint."""


def routes_of(services: Iterable[Service], slices: Iterable[EndpointSlice]) -> dict[Listen, Route]:
    """Every route there should be. A cluster address that is not loopback cannot be served here and is left out."""
    by_service: dict[tuple[str, str], list[EndpointSlice]] = {}
    for each in slices:
        key = (each.metadata.namespace, each.metadata.labels.get(SERVICE_NAME, ""))
        by_service.setdefault(key, []).append(each)
    routes: dict[Listen, Route] = {}
    for service in services:
        meta, spec = service.metadata, service.spec
        if spec.type == "ExternalName" or not spec.cluster_ip or spec.cluster_ip == "None":
            continue
        for port in spec.ports:
            if (port.protocol or "TCP") != "TCP":
                continue
            backends = tuple(sorted(set(_backends(by_service.get((meta.namespace, meta.name), ()), port, service))))
            route = Route(f"{meta.namespace}/{meta.name}", backends, spec.session_affinity == "ClientIP")
            for listen in _listens(service, port):
                routes[listen] = route
    return routes


def backends_for(service: Service, slices: Iterable[EndpointSlice], wanted_port: str) -> tuple[tuple[str, int], ...]:
    """The endpoints behind one port of a Service, named by its name or its number; "" if it has but one."""
    ports = [one for one in service.spec.ports if wanted_port in (one.name, str(one.port))]
    if not wanted_port and len(service.spec.ports) == 1:
        ports = list(service.spec.ports)
    its_name = service.metadata.name
    own = [each for each in slices if each.metadata.labels.get(SERVICE_NAME) == its_name]
    return tuple(sorted({backend for port in ports for backend in _backends(own, port, service)}))


def _listens(service: Service, port: ServicePort) -> Iterator[Listen]:
    if ip_address(service.spec.cluster_ip).is_loopback:
        yield Listen(service.spec.cluster_ip, port.port)
    if port.node_port:
        yield Listen("127.0.0.1", port.node_port)


def _backends(slices: Iterable[EndpointSlice], port: ServicePort, service: Service) -> Iterator[tuple[str, int]]:
    for each in slices:
        number = next((one.port for one in each.ports or () if one.name == port.name and one.port), 0)
        for endpoint in each.endpoints or ():
            is_ready = endpoint.conditions is None or endpoint.conditions.ready is not False
            if number and (is_ready or service.spec.publish_not_ready_addresses):
                yield from ((address, number) for address in endpoint.addresses)
