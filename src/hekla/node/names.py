"""The names that pods can call each other by, as the lines of their /etc/hosts.

Pure. Services, headless Services and the pods behind them, in the forms that Kubernetes' DNS answers to:
`web`, `web.ns`, `web.ns.svc`, `web.ns.svc.cluster.local`, and `<hostname>.<subdomain>...` for pods of a headless
Service. A hosts file cannot answer for SRV records or wildcards, and a change takes a moment (`agent.py` joins changes).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hekla.api.core import Service
from hekla.api.discovery import EndpointSlice
from hekla.api.pods import Pod

DOMAIN = "cluster.local"
MAX_LINES = 20_000
"""Lines of one hosts file: the resolver reads it from the start for every name."""


def hostname_of(pod: Pod) -> str:
    """The host name a pod's containers see."""
    name = pod.spec.hostname or pod.metadata.name
    return name[:63].rstrip("-.")


@dataclass(slots=True)
class NameTable:
    """Names and addresses of the whole cluster, by namespace; rendered for one pod at a time."""

    services: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """namespace: (name relative to it, address), in order."""

    @classmethod
    def of(
        cls,
        services: Iterable[Service],
        pods: Iterable[Pod],
        slices: Iterable[EndpointSlice] = (),
        addresses: Mapping[str, str] | None = None,
    ) -> "NameTable":
        """The table; `addresses` are those of pods of this machine (by uid): statuses do not show them yet, or never do where we are guests."""
        by_namespace: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.status.phase not in ("Succeeded", "Failed"):
                by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
        by_service: dict[tuple[str, str], list[EndpointSlice]] = {}
        for each in slices:
            name = each.metadata.labels.get("kubernetes.io/service-name", "")
            by_service.setdefault((each.metadata.namespace, name), []).append(each)
        table = cls()
        for service in services:
            namespace, name = service.metadata.namespace, service.metadata.name
            entries = table.services.setdefault(namespace, [])
            neighbours = by_namespace.get(namespace, ())
            entries += _entries(service, neighbours, by_service.get((namespace, name), ()), addresses or {})
        return table

    def lines_for(self, namespace: str) -> Iterator[str]:
        """The lines that every pod of a namespace gets: its own names short and long, the others' with namespace."""
        for name, address in sorted(self.services.get(namespace, ())):
            yield f"{address}\t{name} {' '.join(_qualified(name, namespace))}"
        for other in sorted(self.services):
            if other != namespace:
                for name, address in sorted(self.services[other]):
                    yield f"{address}\t{' '.join(_qualified(name, other))}"


def _qualified(name: str, namespace: str) -> list[str]:
    full = f"{name}.{namespace}"
    return [f"{full}.svc.{DOMAIN}", full, f"{full}.svc"]


def _entries(
    service: Service, pods: Iterable[Pod], slices: Iterable[EndpointSlice], addresses: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    name, spec = service.metadata.name, service.spec
    if spec.type == "ExternalName":
        return
    if spec.cluster_ip and spec.cluster_ip != "None":
        yield name, spec.cluster_ip
        return
    seen: set[tuple[str, str]] = set()
    for pod in pods:
        own = addresses.get(pod.metadata.uid, "")
        address = pod.status.pod_ip or own if pod.spec.host_network else own or pod.status.pod_ip
        if not address or not _is_selected(spec.selector, pod):
            continue
        # a member is found by its name as soon as it has an address: a rendezvous must not wait for readiness
        if pod.spec.subdomain == name:
            yield from _once(seen, f"{hostname_of(pod)}.{name}", address)
        if spec.publish_not_ready_addresses or _is_ready(pod):
            yield from _once(seen, name, address)
    if not spec.selector:
        for endpoint in (each for one in slices for each in one.endpoints or ()):
            for address in endpoint.addresses:
                yield from _once(seen, name, address)
                if endpoint.hostname:
                    yield from _once(seen, f"{endpoint.hostname}.{name}", address)


def _once(seen: set[tuple[str, str]], name: str, address: str) -> Iterator[tuple[str, str]]:
    if (name, address) not in seen:
        seen.add((name, address))
        yield name, address


def _is_selected(selector: Mapping[str, str], pod: Pod) -> bool:
    return bool(selector) and all(pod.metadata.labels.get(key) == value for key, value in selector.items())


def _is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def hosts_file(pod: Pod, address: str, shared: Iterable[str]) -> str:
    """A pod's whole /etc/hosts: itself first, then what its namespace shares."""
    lines = ["# written by hekla; changes when Services and pods do", "127.0.0.1\tlocalhost", "::1\tlocalhost"]
    host, spec = hostname_of(pod), pod.spec
    names = [host]
    if spec.subdomain:
        names.insert(0, f"{host}.{spec.subdomain}.{pod.metadata.namespace}.svc.{DOMAIN}")
    lines.append(f"{address}\t{' '.join(names)}")
    lines += [f"{alias.ip}\t{' '.join(alias.hostnames)}" for alias in spec.host_aliases]
    for line in shared:
        if len(lines) >= MAX_LINES:
            lines.append(f"# cut here: more than {MAX_LINES} lines")
            break
        lines.append(line)
    return "\n".join(lines) + "\n"
