"""Which fields a field selector may name, per kind, and how they are read from a document.

Kubernetes lets every kind be selected by name and namespace and only a few by more; custom resources declare theirs.
The values are taken once per write and kept beside the object, so that selecting decodes nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial

from hekla.api.meta import Document, Kind
from hekla.apiserver.status import StatusError, bad_request
from hekla.apiserver.store import Stored

FieldsOf = Callable[[Document], dict[str, str]]

_EVENT = (
    "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
    "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
    "reportingComponent", "source", "type",
)  # fmt: skip

BUILTIN: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "events": _EVENT,
    "events.events.k8s.io": _EVENT,
    "replicasets.apps": ("status.replicas",),
    "replicationcontrollers": ("status.replicas",),
    "jobs.batch": ("status.successful",),
    "certificatesigningrequests.certificates.k8s.io": ("spec.signerName",),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
}  # fmt: skip

_SPECIAL = {
    "status.podIPs": lambda document: document.get("status", {}).get("podIP", ""),
    "source": lambda document: (
        (document.get("source") or {}).get("component", "") or document.get("reportingComponent", "")
    ),
    "status.successful": lambda document: (document.get("status") or {}).get("succeeded", 0),
}
_ZERO = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.replicas": "0"}


def selectable_for(kind: Kind) -> tuple[str, ...]:
    """The fields of a built-in kind beyond name and namespace."""
    return BUILTIN.get(kind.resource, ())


def fields_for(kind: Kind) -> FieldsOf:
    """How those fields are read."""
    return reader(selectable_for(kind))


def reader(names: tuple[str, ...]) -> FieldsOf:
    """A function that takes these fields from a document."""
    return partial(_read, tuple((name, tuple(name.split("."))) for name in names))


def _read(names: tuple[tuple[str, tuple[str, ...]], ...], document: Document) -> dict[str, str]:
    metadata = document["metadata"]
    found = {"metadata.name": metadata["name"], "metadata.namespace": metadata.get("namespace", "")}
    for name, path in names:
        value = _SPECIAL[name](document) if name in _SPECIAL else _at(document, path)
        found[name] = value if type(value) is str else _text(value, name)
    return found


def _at(document: Document, path: tuple[str, ...]) -> object:
    value: object = document
    for part in path:
        if type(value) is not dict:
            return None
        value = value.get(part)
    return value


def _text(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _ZERO.get(name, "") if value is None else str(value)


def field_of(stored: Stored) -> Callable[[str], str]:
    """How a field selector asks one stored object."""

    def ask(name: str) -> str:
        if name == "metadata.name":
            return stored.key.name
        if name == "metadata.namespace":
            return stored.key.namespace
        fields: Mapping[str, str] = stored.fields or {}
        return fields.get(name, "")

    return ask


def known_fields(selectable: tuple[str, ...], *, is_namespaced: bool) -> Callable[[str], bool]:
    """Whether a field may be selected on."""
    always = {"metadata.name", "metadata.namespace"} if is_namespaced else {"metadata.name"}
    return (always | set(selectable)).__contains__


def refusal(kind: Kind, selectable: tuple[str, ...], *, is_custom: bool = False) -> Callable[[str], StatusError]:
    """The sentence for a field that may not be selected on."""

    def refuse(name: str) -> StatusError:
        if is_custom or kind.resource in BUILTIN:
            return bad_request(f"field label not supported: {name}")
        known = ["metadata.name"] + (["metadata.namespace"] if kind.is_namespaced else []) + list(selectable)
        listed = ", ".join(f'"{one}"' for one in known)
        return bad_request(f'"{name}" is not a known field selector: only {listed}')

    return refuse
