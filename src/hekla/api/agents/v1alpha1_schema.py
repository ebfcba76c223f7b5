"""agent-sandbox's kinds as v1alpha1 wrote them, told as what is different in v1beta1, in which they are stored.

Fields, defaults and limits are agent-sandbox's (commit 2fd412d); `v1alpha1_conversion.py` has what each field became. Only a server
that converts may serve this version: the embedded one does, so it is not in deploy/crds.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from hekla.api.meta import Document

VERSION = "v1alpha1"

_SWITCH: Document = {
    "description": "1: there is a pod. 0: there is none, while object, volumes and Service stay.",
    "type": "integer", "format": "int32", "minimum": 0, "maximum": 1, "default": 1,
}  # fmt: skip
_TEMPLATE: Document = {
    "description": "The SandboxTemplate, of the same namespace.",
    "type": "object", "properties": {"name": {"description": "Its name.", "type": "string"}}, "required": ["name"],
}  # fmt: skip
_POLICY: Document = {
    "description": "`none`: a Sandbox is made. `default`: one of any pool of the template. Else the name of a pool.",
    "type": "string", "default": "default",
}  # fmt: skip
_PODS: Document = {"description": "How many pods there are.", "type": "integer", "format": "int32", "minimum": 0}
_SCALE = {
    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What of a kind was different: fields of `spec` and `status` that were not there, and those that were."""

    spec_lacks: tuple[str, ...] = ()
    spec_has: Mapping[str, Document] = field(default_factory=dict)
    spec_required: tuple[str, ...] = ()
    status_lacks: tuple[str, ...] = ()
    status_has: Mapping[str, Document] = field(default_factory=dict)
    has_scale: bool = False


DIFFERENCES: Mapping[str, Difference] = {
    "Sandbox": Difference(
        spec_lacks=("operatingMode",), spec_has={"replicas": _SWITCH}, status_lacks=("nodeName",),
        status_has={"replicas": _PODS}, has_scale=True,
    ),
    "SandboxTemplate": Difference(spec_lacks=("volumeClaimTemplatesPolicy",)),
    "SandboxWarmPool": Difference(
        spec_has={"replicas": {"description": "How many wait.", "type": "integer", "format": "int32", "minimum": 0}},
        spec_required=("replicas",), status_lacks=("observedGeneration",), has_scale=True,
    ),
    "SandboxClaim": Difference(
        spec_lacks=("warmPoolRef", "volumeClaimTemplates"),
        spec_has={"sandboxTemplateRef": _TEMPLATE, "warmpool": _POLICY}, spec_required=("sandboxTemplateRef",),
    ),
}  # fmt: skip
"""By kind."""


def older_version(kind: str, group: str, newer: Document) -> Document:
    """The version v1alpha1 of a CustomResourceDefinition, from its version v1beta1."""
    difference = DIFFERENCES[kind]
    older: Document = {
        "name": VERSION, "served": True, "storage": False, "deprecated": True,
        "deprecationWarning": f"{group}/{VERSION} {kind} is deprecated; use {group}/{newer['name']} {kind} instead",
    }  # fmt: skip
    if kind == "SandboxWarmPool":  # the others had none
        older["additionalPrinterColumns"] = newer["additionalPrinterColumns"]
    schema = copy.deepcopy(newer["schema"])
    whole = schema["openAPIV3Schema"]["properties"]
    _edit(whole["spec"], difference.spec_lacks, difference.spec_has, difference.spec_required)
    if "status" in whole:
        _edit(whole["status"], difference.status_lacks, difference.status_has, ())
    older["schema"] = schema
    parts: Document = {key: value for key, value in (newer.get("subresources") or {}).items() if key == "status"}
    if difference.has_scale:
        parts["scale"] = dict(_SCALE)
    if parts:
        older["subresources"] = parts
    return older


def _edit(
    schema: Document, lacks: tuple[str, ...], has: Mapping[str, Document], required: tuple[str, ...]
) -> None:  # fmt: skip
    properties: Document = schema["properties"]
    for name in lacks:
        del properties[name]
    properties.update(copy.deepcopy(dict(has)))
    needed = [name for name in schema.get("required", ()) if name not in lacks and name not in has]
    if wanted := [*needed, *required]:
        schema["required"] = wanted
    else:
        schema.pop("required", None)
