"""The headless Service of a Sandbox: it finds the pod by the hash of the Sandbox's name, and names the pod's ports."""

from typing import Any

import msgspec

from hekla.api.agents import Sandbox, names
from hekla.api.core import Service
from hekla.api.meta import Document
from hekla.sandbox.owning import name_hash, owner_reference


def service_document(sandbox: Sandbox) -> Document:
    """The Service to make."""
    meta = sandbox.metadata
    selector = {names.SANDBOX_NAME_HASH: name_hash(meta.name)}
    metadata = {
        "name": meta.name,
        "namespace": meta.namespace,
        "labels": selector,
        "ownerReferences": [owner_reference(sandbox)],
    }
    spec: Document = {"clusterIP": "None", "selector": selector}
    if ports := service_ports(sandbox):
        spec["ports"] = ports
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def service_patch(there: Service, sandbox: Sandbox) -> Document:
    """What must change in a Service that is there; empty if nothing does."""
    selector = {names.SANDBOX_NAME_HASH: name_hash(sandbox.metadata.name)}
    patch: Document = {}
    if not selector.items() <= there.metadata.labels.items():
        patch["metadata"] = {"labels": selector}
    spec: Document = {}
    if there.spec.selector != selector:
        spec["selector"] = {**dict.fromkeys(there.spec.selector), **selector}
    ports = service_ports(sandbox)
    if sandbox.spec.service and [_identity(msgspec.to_builtins(one)) for one in there.spec.ports] != [
        _identity(one) for one in ports
    ]:
        spec["ports"] = ports
    return patch | ({"spec": spec} if spec else {})


def _identity(port: Document) -> tuple[Any, ...]:
    return port["name"], port["protocol"], port["port"], port["targetPort"]


def service_ports(sandbox: Sandbox) -> list[Document]:
    """Each port of the pod's containers once; the first name given to a port counts, and a name is given once."""
    named: dict[tuple[int, str], str] = {}
    taken: set[str] = set()
    for port in _container_ports(sandbox.spec.pod_template.spec):
        key = (port["containerPort"], port.get("protocol") or "TCP")
        name = port.get("name") or ""
        if not named.setdefault(key, "") and name and name not in taken:
            named[key] = name
            taken.add(name)
    ports = []
    for number, protocol in sorted(named):
        name = named[number, protocol] or _free(f"p-{number}-{protocol.lower()}", taken)
        taken.add(name)
        ports.append({"name": name, "protocol": protocol, "port": number, "targetPort": number})
    return ports


def _container_ports(spec: Document) -> list[Document]:
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    return [
        port
        for container in [*(spec.get("containers") or ()), *sidecars]
        for port in container.get("ports") or ()
        if port.get("containerPort")
    ]


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
