"""Reconciles Service into EndpointSlices, and into the older Endpoints: the addresses behind a name.

A pod is an endpoint when it has an address and its node exists; it serves when it is ready and not leaving. Named
target ports may differ between pods, so slices are grouped by the ports they resolve to.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hekla.api.core import Endpoints, Service, ServicePort
from hekla.api.discovery import EndpointSlice
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.controlplane.owning import controller_reference
from hekla.controlplane.pod_state import has_ended, is_leaving, is_ready
from hekla.kube.commands import Command, Create, Delete, Patch, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import rfc3339

MANAGER = "endpointslice-controller.k8s.io"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME = "kubernetes.io/service-name"
ENDPOINTS_MANAGER = "endpoint-controller"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
HEADLESS = "service.kubernetes.io/headless"
CHANGED_AT = "endpoints.kubernetes.io/last-change-trigger-time"
MAX_ENDPOINTS = 100
"""Endpoints of one slice: a change of one pod rewrites no more than this."""

MAX_ADDRESSES = 1000
"""Addresses of an Endpoints object; more are left to the slices, as Kubernetes does."""

NODE_PATIENCE_S = 15.0
"""How soon to look again for the node of a pod that has an address already."""

Ports = tuple[tuple[str, str, int, str], ...]
"""(name, protocol, number, appProtocol) of each port."""


def _services_of(pod: Pod, world: World) -> Iterator[tuple[str, str]]:
    """The services that select a pod."""
    for service in world.selecting(Service, pod.metadata.namespace, pod.metadata.labels):
        yield service.metadata.namespace, service.metadata.name


def _same_name(obj: Endpoints | Service) -> Iterator[tuple[str, str]]:
    yield obj.metadata.namespace, obj.metadata.name


@reconciler(Service, owns=(EndpointSlice,), reads=(Node,), finds={Pod: _services_of}, name="endpointslice")
def reconcile_endpoint_slices(service: Service, world: World, now: datetime) -> Iterator[Command]:
    """Fill slices of at most 100 endpoints; reuse those that are there."""
    if not service.spec.selector or service.spec.type == "ExternalName" or service.metadata.deletion_timestamp:
        return
    slices = [
        one
        for one in world.owned(EndpointSlice, service.metadata.uid)
        if one.metadata.labels.get(MANAGED_BY) == MANAGER
    ]
    for address_type in _address_types(service):
        present = [one for one in slices if one.address_type == address_type]
        yield from _fill(service, present, _wanted(service, world, address_type), address_type, now)
    if any(_is_nowhere(pod, world) for pod in world.list(Pod, service.metadata.namespace, service.spec.selector)):
        yield RequeueAfter(NODE_PATIENCE_S)


def _is_nowhere(pod: Pod, world: World) -> bool:
    """Whether its node is not known yet; a node that comes wakes no services by itself."""
    return bool(pod.spec.node_name) and world.get(Node, "", pod.spec.node_name) is None


def _fill(
    service: Service,
    present: Sequence[EndpointSlice],
    wanted: Sequence[tuple[Ports, list[Document]]],
    address_type: str,
    now: datetime,
) -> Iterator[Command]:
    for number, (ports, endpoints) in enumerate(wanted):
        content: Document = {"endpoints": endpoints or None, "ports": [_port(port) for port in ports] or None}
        if number >= len(present):
            yield Create(EndpointSlice, _slice_document(service, content, address_type, now))
        elif (
            _differs(present[number], content)
            or not _labels(service).items() <= present[number].metadata.labels.items()
        ):
            # `null` would remove the field, and an absent list of a slice is not valid.
            patch = {key: value or [] for key, value in content.items()}
            metadata = {"labels": _labels(service), "annotations": {CHANGED_AT: rfc3339(now)}}
            yield Patch(target_of(present[number]), {**patch, "metadata": metadata})
    for one in present[len(wanted) :]:
        yield Delete(target_of(one), reason="no endpoints are left for it")


def _wanted(service: Service, world: World, address_type: str) -> list[tuple[Ports, list[Document]]]:
    groups: dict[Ports, list[Document]] = {}
    for pod in world.list(Pod, service.metadata.namespace, service.spec.selector):
        address = _address(pod, address_type)
        node = world.get(Node, "", pod.spec.node_name) if pod.spec.node_name else None
        if not address or has_ended(pod) or node is None:
            continue
        groups.setdefault(_ports(service, pod), []).append(_endpoint(service, pod, node, address))
    chunks = [
        (ports, endpoints[start : start + MAX_ENDPOINTS])
        for ports, endpoints in sorted(groups.items())
        for start in range(0, len(endpoints), MAX_ENDPOINTS)
    ]
    # A service always has a slice, so that readers can tell "none" from "not yet".
    return chunks or [((), [])]


def _endpoint(service: Service, pod: Pod, node: Node, address: str) -> Document:
    serving, leaving = is_ready(pod), is_leaving(pod)
    ready = service.spec.publish_not_ready_addresses or (serving and not leaving)
    endpoint: Document = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": leaving},
        "nodeName": pod.spec.node_name,
        "targetRef": _reference(pod),
    }
    if pod.spec.hostname and pod.spec.subdomain == service.metadata.name:
        endpoint["hostname"] = pod.spec.hostname
    zone = node.metadata.labels.get("topology.kubernetes.io/zone")
    if zone:
        endpoint["zone"] = zone
    return endpoint


def _slice_document(service: Service, content: Document, address_type: str, now: datetime) -> Document:
    return {
        "metadata": {
            "generateName": f"{service.metadata.name}-",
            "namespace": service.metadata.namespace,
            "labels": _labels(service),
            "annotations": {CHANGED_AT: rfc3339(now)},
            "ownerReferences": [controller_reference(service)],
        },
        "addressType": address_type,
        **content,
    }


def _labels(service: Service) -> dict[str, str]:
    labels = {**service.metadata.labels, MANAGED_BY: MANAGER, SERVICE_NAME: service.metadata.name}
    if service.spec.cluster_ip == "None":
        labels[HEADLESS] = ""
    return labels


def _differs(present: EndpointSlice, content: Document) -> bool:
    return any(
        (_said(msgspec.to_builtins(getattr(present, key))) or None) != (_said(content[key]) or None)
        for key in ("endpoints", "ports")
    )


# ---- the older Endpoints


@reconciler(Service, wakes={Endpoints: _same_name}, finds={Pod: _services_of}, name="endpoints")
def reconcile_endpoints(service: Service, world: World, now: datetime) -> Iterator[Command]:
    """One Endpoints object of the service's name, for clients that know nothing newer."""
    if not service.spec.selector or service.spec.type == "ExternalName" or service.metadata.deletion_timestamp:
        return
    subsets = _subsets(service, world)
    namespace, name = service.metadata.namespace, service.metadata.name
    present = world.get(Endpoints, namespace, name)
    labels = {**service.metadata.labels, ENDPOINTS_MANAGED_BY: ENDPOINTS_MANAGER}
    if service.spec.cluster_ip == "None":
        labels[HEADLESS] = ""
    if present is None:
        metadata: Document = {"name": name, "namespace": namespace, "labels": labels}
        if subsets:
            metadata["annotations"] = {CHANGED_AT: rfc3339(now)}
        yield Create(Endpoints, {"metadata": metadata, **({"subsets": subsets} if subsets else {})})
    elif (
        _said(msgspec.to_builtins(present.subsets)) != _said(subsets)
        or not labels.items() <= present.metadata.labels.items()
    ):
        metadata = {"labels": labels, "annotations": {CHANGED_AT: rfc3339(now)}}
        yield Patch(target_of(present), {"subsets": subsets or None, "metadata": metadata})


@reconciler(Endpoints, wakes={Service: _same_name}, name="endpoints-orphan")
def reconcile_endpoints_orphan(endpoints: Endpoints, world: World, _now: datetime) -> Iterator[Command]:
    """Remove the Endpoints of a Service that is gone: they have no owner, so nothing else collects them."""
    meta = endpoints.metadata
    if meta.labels.get(ENDPOINTS_MANAGED_BY) != ENDPOINTS_MANAGER:
        return
    if world.get(Service, meta.namespace, meta.name) is None:
        yield Delete(target_of(endpoints), reason="its service is gone")


def _subsets(service: Service, world: World) -> list[Document]:
    groups: dict[Ports, tuple[list[Document], list[Document]]] = {}
    for pod in world.list(Pod, service.metadata.namespace, service.spec.selector):
        address = _address(pod, _address_types(service)[0])
        if not address or has_ended(pod) or is_leaving(pod):
            continue
        entry: Document = {"ip": address, "targetRef": _reference(pod)}
        if pod.spec.node_name:
            entry["nodeName"] = pod.spec.node_name
        if pod.spec.hostname and pod.spec.subdomain == service.metadata.name:
            entry["hostname"] = pod.spec.hostname
        is_up = is_ready(pod) or service.spec.publish_not_ready_addresses
        groups.setdefault(_ports(service, pod), ([], []))[0 if is_up else 1].append(entry)
    return [_subset(ports, *addresses) for ports, addresses in sorted(groups.items())]


def _subset(ports: Ports, ready: list[Document], not_ready: list[Document]) -> Document:
    subset: Document = {}
    for key, entries in (("addresses", ready), ("notReadyAddresses", not_ready)):
        if entries:
            subset[key] = sorted(entries, key=lambda entry: str(entry["ip"]))[:MAX_ADDRESSES]
    if ports:
        subset["ports"] = [_port(port) for port in ports]
    return subset


# ---- what both share


def _address_types(service: Service) -> list[str]:
    return [family for family in service.spec.ip_families if family in ("IPv4", "IPv6")] or ["IPv4"]


def _address(pod: Pod, address_type: str) -> str:
    candidates = [one.ip for one in pod.status.pod_ips] or [pod.status.pod_ip]
    return next((ip for ip in candidates if ip and (":" in ip) == (address_type == "IPv6")), "")


def _ports(service: Service, pod: Pod) -> Ports:
    found = []
    for port in service.spec.ports:
        number = _number(port, pod)
        if number is not None:
            found.append((port.name, port.protocol or "TCP", number, port.app_protocol or ""))
    return tuple(found)


def _number(port: ServicePort, pod: Pod) -> int | None:
    target = port.target_port if port.target_port not in (None, 0, "") else port.port
    if isinstance(target, int):
        return target
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for one in container.ports:
            if one.name == target and (one.protocol or "TCP") == (port.protocol or "TCP"):
                return one.container_port
    return None


def _port(port: tuple[str, str, int, str]) -> Document:
    name, protocol, number, app_protocol = port
    document: Document = {"name": name, "port": number, "protocol": protocol}
    return document | ({"appProtocol": app_protocol} if app_protocol else {})


def _reference(pod: Pod) -> Document:
    return {"kind": "Pod", "namespace": pod.metadata.namespace, "name": pod.metadata.name, "uid": pod.metadata.uid}


def _said(value: Any) -> Any:
    """What a value says, without empty fields: two spellings of the same are equal. False is a statement here."""
    if isinstance(value, dict):
        return {key: said for key, item in value.items() if (said := _said(item)) not in (None, "", {}, [])}
    if isinstance(value, list):
        return [_said(item) for item in value]
    return value
