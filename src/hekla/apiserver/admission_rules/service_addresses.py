"""A Service gets a cluster address and node ports of its own, or those it asks for if they are free."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import ClassVar

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.defaulting_others import needs_cluster_ip, set_cluster_ip
from hekla.apiserver.fielderrors import FieldError, invalid, invalid_object
from hekla.apiserver.status import StatusError

NODE_PORTS = range(30_000, 32_768)
PROMISED = 1_024
"""Addresses and ports given to writes that may still be under way; older promises are in the store by then."""


@dataclass
class ServiceAddresses:
    """Allocates from one network and one range of ports."""

    network: IPv4Network
    dice: random.Random
    name: str = "ServiceAddresses"
    _promised: deque[tuple[str, int | str]] = field(default_factory=lambda: deque(maxlen=PROMISED))
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Services that are written."""
        is_write = request.operation in {Operation.CREATE, Operation.UPDATE}
        return is_write and request.kind.resource == "services" and not request.subresource

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Allocate what is missing, check what is asked for."""
        service = request.object
        assert service is not None
        if not _may_need_others(service):
            return
        others = [one for one in reader.list("services") if not _is_same(one, request)]
        if needs_cluster_ip(service):
            kept = _address_of(request.old) if request.old else ""
            set_cluster_ip(service, kept or self._free_address(others))
        errors = [*self._address_errors(service, request.old, others), *self._set_ports(request, others)]
        if errors:
            raise invalid_object(request.kind, request.name, errors)

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""

    def _free_address(self, others: list[Document]) -> str:
        taken = {_address_of(one) for one in others} | {one for kind, one in self._promised if kind == "address"}
        size = self.network.num_addresses
        # a random start, so that a service made anew does not inherit its predecessor's open connections
        start = self.dice.randrange(size)
        for step in range(size):
            address = self.network[(start + step) % size]
            if int(address) & 0xFF not in (0, 255) and str(address) not in taken:
                self._promised.append(("address", str(address)))
                return str(address)
        raise StatusError(507, "InternalError", f"every address of {self.network} is taken; delete a Service")

    def _address_errors(self, service: Document, old: Document | None, others: list[Document]) -> Iterator[FieldError]:
        address = _address_of(service)
        if address in ("", "None") or (old is not None and _address_of(old) == address):
            return
        why = ""
        try:
            parsed = ip_address(address)
        except ValueError:
            return  # the kind's own validation says it
        if not isinstance(parsed, IPv4Address) or parsed not in self.network:
            why = f"provided IP ({address}) is not in the valid range. The range of valid IPs is {self.network}"
        elif address in {_address_of(one) for one in others}:
            why = "provided IP is already allocated"
        if why:
            yield invalid("spec.clusterIPs", [address], f"failed to allocate IP {address}: {why}")

    def _set_ports(self, request: AdmissionRequest, others: list[Document]) -> Iterator[FieldError]:
        assert request.object is not None
        spec = request.object["spec"]
        if not _takes_node_ports(spec):
            return
        taken = {port.get("nodePort") for one in others for port in one["spec"].get("ports", ())}
        before = {
            _port_key(port): port.get("nodePort") for port in (request.old or {"spec": {}})["spec"].get("ports", ())
        }
        for index, port in enumerate(spec.get("ports", ())):
            wanted = port.get("nodePort") or before.get(_port_key(port))
            where = f"spec.ports[{index}].nodePort"
            if wanted and wanted not in NODE_PORTS:
                yield invalid(
                    where,
                    wanted,
                    f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS.start}-{NODE_PORTS.stop - 1}",
                )
            elif wanted and wanted in taken:
                yield invalid(where, wanted, "provided port is already allocated")
            else:
                port["nodePort"] = wanted or self._free_port(taken)
                taken.add(port["nodePort"])

    def _free_port(self, taken: set[int | None]) -> int:
        promised = {one for kind, one in self._promised if kind == "port"}
        start = self.dice.randrange(len(NODE_PORTS))
        for step in range(len(NODE_PORTS)):
            port = NODE_PORTS[(start + step) % len(NODE_PORTS)]
            if port not in taken and port not in promised:
                self._promised.append(("port", port))
                return port
        raise StatusError(507, "InternalError", f"all {len(NODE_PORTS)} node ports are taken; delete a Service")


def _may_need_others(service: Document) -> bool:
    """Whether anything is to be given that another service may have. A headless one gets nothing: to read all others for each cost
    thousands of them, which controllers make at once, a time that grew with their square, and nobody else was served meanwhile.
    """
    is_headless = not needs_cluster_ip(service) and _address_of(service) in ("", "None")
    return not is_headless or _takes_node_ports(service["spec"])


def _is_same(service: Document, request: AdmissionRequest) -> bool:
    metadata = service["metadata"]
    return bool(metadata["name"] == request.name and metadata["namespace"] == request.namespace)


def _address_of(service: Document) -> str:
    return str((service.get("spec") or {}).get("clusterIP") or "")


def _takes_node_ports(spec: Document) -> bool:
    kind = spec.get("type", "ClusterIP")
    return kind == "NodePort" or bool(kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True))


def _port_key(port: Document) -> tuple[object, object]:
    return port.get("port"), port.get("protocol", "TCP")
