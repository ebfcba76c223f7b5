"""Sends pods to the nodes that an administrator keeps for them: Volcano's resource groups, by namespace or by annotation.

    resourceGroups:
    - resourceGroup: gpu                    # pods annotated volcano.sh/resource-group: gpu, or those that `object` names
      object: {key: namespace, value: [research]}
      schedulerName: volcano
      labels: {volcano.sh/nodetype: gpu}    # becomes the pod's nodeSelector
      tolerations: [{key: gpu, operator: Exists}]

The text is a ConfigMap's, looked up whenever a pod is made, so a change is in force with the next pod. The first group
that matches is the pod's. `admission_plain_pod.py` looks at the pod afterwards, when its scheduler is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import yaml

from hekla.api.meta import Document
from hekla.api.pod_scheduling import Affinity, Toleration
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.lib import plain_yaml
from hekla.lib.yaml_lines import Lines, YamlError, read_mapping

CONFIG_MAP, KEY = "volcano-admission-configmap", "volcano-admission.conf"
"""Where Volcano's charts keep the configuration, and under which key."""

HOME = "volcano-system"
"""The ConfigMap's namespace on the embedded platform; on a cluster it is that of the webhooks."""

RESOURCE_GROUP = "volcano.sh/resource-group"
_FIELDS = ("resourceGroup", "object", "schedulerName", "tolerations", "labels", "affinity")
_EXPECTED = "expected `resourceGroups:` and a list of groups below it"


class ResourceGroupError(ValueError):
    """A configuration that cannot be used; the sentence says where and why."""


@dataclass(frozen=True, kw_only=True)
class ResourceGroup:
    """Which pods, and what is written into them."""

    name: str
    namespaces: frozenset[str] = frozenset()
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Each of which makes a pod one of the group."""

    scheduler_name: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Document] = ()
    affinity: Document | None = None

    def takes(self, namespace: str, annotations: Mapping[str, str]) -> bool:
        """Whether a pod is one of the group's."""
        return namespace in self.namespaces or any(annotations.get(key) == one for key, one in self.annotations.items())


class JoinResourceGroup:
    """Completes pods of a group. What cannot be read changes nothing: the last good configuration stays in force."""

    def __init__(self, namespace: str = HOME) -> None:
        self._namespace = namespace
        self._groups: Sequence[ResourceGroup] = ()

    def __call__(self, request: AdmissionRequest, reader: Reader) -> None:
        """Complete a pod that is being made."""
        found = reader.get("configmaps", self._namespace, CONFIG_MAP) or {}
        try:
            self._groups = parse((found.get("data") or {}).get(KEY) or "")
        except ResourceGroupError as error:
            # Whoever makes pods has to know, for they land elsewhere than the administrator believes.
            request.warnings.append(
                f"configmap {self._namespace}/{CONFIG_MAP}: {error}; what it said before is in force"
            )
        pod = request.object or {}
        notes = (pod.get("metadata") or {}).get("annotations") or {}
        group = next((one for one in self._groups if one.takes(request.namespace, notes)), None)
        if group is not None and isinstance(pod.get("spec"), dict):
            join(pod["spec"], group)


def refuse_configuration(request: AdmissionRequest, reader: Reader) -> str:
    """Why the ConfigMap may not be written like this; empty if it may, or is another."""
    metadata = (request.object or {}).get("metadata") or {}
    if request.operation is Operation.DELETE or metadata.get("name") != CONFIG_MAP or request.namespace != HOME:
        return ""
    try:
        parse(((request.object or {}).get("data") or {}).get(KEY) or "")
    except ResourceGroupError as error:
        return f"{KEY}: {error}"
    return ""


def join(spec: Document, group: ResourceGroup) -> None:
    """Write a group's wishes into a pod's spec. The group's node labels and scheduler go before the pod's, so that nobody
    leaves a group by asking; an affinity of the pod's own stays, as in Volcano.
    """
    if group.node_labels:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **group.node_labels}
    if group.tolerations:
        own = spec.get("tolerations") or []
        spec["tolerations"] = [*own, *(dict(one) for one in group.tolerations if one not in own)]
    if group.affinity is not None and not spec.get("affinity"):
        spec["affinity"] = msgspec.json.decode(msgspec.json.encode(group.affinity))  # a copy of the pod's own
    if group.scheduler_name:
        spec["schedulerName"] = group.scheduler_name


@lru_cache(maxsize=4)
def parse(text: str) -> tuple[ResourceGroup, ...]:
    """The groups of a configuration, in order; raises ResourceGroupError."""
    if not text.strip():
        return ()
    try:
        found = read_mapping(text, _EXPECTED).get("resourceGroups")
    except YamlError as error:
        raise ResourceGroupError(f"line {error.line}: {error}") from None
    if not isinstance(found or [], list):
        raise ResourceGroupError(_EXPECTED)
    return tuple(_group(one, f"resourceGroups[{position}]") for position, one in enumerate(found or []))


def _group(found: object, where: str) -> ResourceGroup:
    if not isinstance(found, Lines):
        raise ResourceGroupError(f"{where} is {_shown(found)}; a group is a mapping of {', '.join(_FIELDS)}")
    for name in found:
        if name not in _FIELDS:
            raise ResourceGroupError(
                f'line {found.line_of(name)}: {where} knows no field "{name}"; there are {", ".join(_FIELDS)}'
            )
    name = _text(found, "resourceGroup", where)
    namespaces, annotations = _matching(found.get("object"), name, where)
    if not namespaces and not annotations:
        raise ResourceGroupError(f"{where} takes no pod; name the group in resourceGroup, or its pods in object")
    return ResourceGroup(
        name=name, namespaces=namespaces, annotations=annotations,
        scheduler_name=_text(found, "schedulerName", where),
        node_labels=_labels(found.get("labels"), f"{where}.labels"),
        tolerations=tuple(_typed(one, Toleration, f"{where}.tolerations") for one in _list(found, "tolerations", where)),
        affinity=_affinity(found.get("affinity"), f"{where}.affinity"),
    )  # fmt: skip


def _matching(found: object, name: str, where: str) -> tuple[frozenset[str], dict[str, str]]:
    """Namespaces, and annotations of which one is enough. Who names no key means the annotation with the group's name."""
    by_name = {RESOURCE_GROUP: name} if name else {}
    if found is None:
        return frozenset(), by_name
    if not isinstance(found, Lines):
        raise ResourceGroupError(f"{where}.object is {_shown(found)}; write {{key: namespace, value: [a, b]}}")
    key, values = found.get("key") or "", _list(found, "value", f"{where}.object")
    if key == "namespace":
        return frozenset(str(one) for one in values), {}
    if key not in ("", "annotation"):
        raise ResourceGroupError(f'{where}.object.key is "{key}"; use namespace or annotation')
    annotations = dict(by_name) if not key else {}
    for number, one in enumerate(values):
        for note, value in _annotation(one, f"{where}.object.value[{number}]"):
            annotations.setdefault(note, value)
    return frozenset(), annotations


def _annotation(said: object, where: str) -> Iterator[tuple[str, str]]:
    """`key: value` as YAML, in a string as Volcano has it, or as it is."""
    try:
        found = plain_yaml.load(said) if isinstance(said, str) else said
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise ResourceGroupError(f'{where} is {_shown(said)}; write an annotation like "{RESOURCE_GROUP}: gpu"')
    yield from ((str(key), str(value)) for key, value in found.items())


def _affinity(found: object, where: str) -> Document | None:
    """A mapping, or, as Volcano has it, JSON in a string."""
    if isinstance(found, str) and found:
        try:
            found = msgspec.json.decode(found)
        except msgspec.DecodeError as error:
            raise ResourceGroupError(f"{where} is not readable as JSON: {error}") from None
    return _typed(found, Affinity, where) if found else None


def _labels(found: object, where: str) -> dict[str, str]:
    if not isinstance(found or {}, dict):
        raise ResourceGroupError(f"{where} is {_shown(found)}; write labels of nodes as `key: value`")
    return {str(key): str(value) for key, value in (found or {}).items()}  # type: ignore[attr-defined]  # looked at above


def _typed(found: object, kind: type[Any], where: str) -> Document:
    try:
        msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ResourceGroupError(f"{where} is {_shown(found)}: {error}") from None
    document: Document = msgspec.to_builtins(found)
    return document


def _list(found: Lines, name: str, where: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value or [], list):
        raise ResourceGroupError(f"line {found.line_of(name)}: {where}.{name} is {_shown(value)}; write a list")
    return list(value or [])


def _text(found: Lines, name: str, where: str) -> str:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise ResourceGroupError(f"line {found.line_of(name)}: {where}.{name} is {_shown(value)}; write a text")
    return value or ""


def _shown(value: object) -> str:
    return repr(value)[:60]
