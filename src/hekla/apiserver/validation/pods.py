"""What is wrong with a pod, or with the pod template of a workload; `pod_updates.py` has what may change later."""

import re

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.containers import check_containers
from hekla.apiserver.validation.metadata import check_annotations, check_labels
from hekla.apiserver.validation.operating_system import check_operating_system
from hekla.apiserver.validation.placement import check_affinity, check_gates, check_spread, check_tolerations
from hekla.apiserver.validation.pod_annotations import check_pod_annotations
from hekla.apiserver.validation.pod_claims import check_pod_claims
from hekla.apiserver.validation.pod_network import check_pod_network
from hekla.apiserver.validation.quantities import check_container_resources, check_pod_resources
from hekla.apiserver.validation.security import check_pod_security
from hekla.apiserver.validation.volumes import check_volumes

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION = ("Never", "PreemptLowerPriority")
_LARGEST_DEADLINE = 2**31 - 1


def check_pod(pod: Document) -> list[FieldError]:
    """A new pod."""
    spec = pod.get("spec", {})
    errors = check_pod_annotations(pod, "metadata.annotations") + check_pod_spec(spec, "spec")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        errors.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    if spec.get("ephemeralContainers"):
        errors.append(forbidden_field("spec.ephemeralContainers", "cannot be set on create"))
    return errors


def check_pod_template_object(template: Document) -> list[FieldError]:
    """A PodTemplate object."""
    return check_pod_template(template.get("template", {}), "template")


def check_pod_template(template: Document, path: str) -> list[FieldError]:
    """The template of a workload."""
    metadata = template.get("metadata", {})
    errors = check_labels(metadata.get("labels", {}), f"{path}.labels")
    errors += check_annotations(metadata.get("annotations", {}), f"{path}.annotations")
    errors += check_pod_spec(template.get("spec", {}), f"{path}.spec", is_template=True)
    if template.get("spec", {}).get("ephemeralContainers"):
        errors.append(
            forbidden_field(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")
        )
    return errors


_valid: dict[bytes, None] = {}
_MOST_VALID = 512
"""How many specs are remembered as valid: a workload makes many pods of one spec, and encoding it takes a tenth."""


def check_pod_spec(spec: Document, path: str, *, is_template: bool = False) -> list[FieldError]:
    """Everything in a pod's spec."""
    text = _without_token_suffix(msgspec.json.encode(spec)) + (b"t" if is_template else b"")
    if text in _valid:
        return []
    errors = _check_pod_spec(spec, path, is_template=is_template)
    if not errors:
        if len(_valid) >= _MOST_VALID:
            _valid.pop(next(iter(_valid)))
        _valid[text] = None
    return errors


_token_volumes = re.compile(rb'"kube-api-access-[a-z0-9]{5}"').findall


def _without_token_suffix(text: bytes) -> bytes:
    """The same text for specs that differ only in the dice of their token's volume, which every pod has."""
    found = set(_token_volumes(text))
    # a zero byte cannot stand in JSON, so no other spec has this text; two suffixes may be a mount of no volume
    return text.replace(found.pop(), b"\0") if len(found) == 1 else text


def _check_pod_spec(spec: Document, path: str, *, is_template: bool) -> list[FieldError]:
    errors, volumes = list[FieldError](), dict[str, Document]()
    if "volumes" in spec:
        errors, volumes = check_volumes(spec["volumes"], f"{path}.volumes", is_template=is_template)
    if "resourceClaims" in spec:
        errors += check_pod_claims(spec["resourceClaims"], f"{path}.resourceClaims")
    errors += check_containers(spec, volumes, path, is_template=is_template)
    if "resources" in spec:
        errors += check_pod_resources(spec, f"{path}.resources")
    errors += _check_policies(spec, path)
    if "nodeSelector" in spec:
        errors += check_labels(spec["nodeSelector"], f"{path}.nodeSelector")
    errors += check_pod_security(spec, path)
    if "affinity" in spec:
        errors += check_affinity(spec["affinity"], f"{path}.affinity")
    errors += check_pod_network(spec, path)
    if "readinessGates" in spec:
        errors += _check_readiness_gates(spec["readinessGates"], f"{path}.readinessGates")
    if "schedulingGates" in spec:
        errors += check_gates(spec["schedulingGates"], f"{path}.schedulingGates")
    if "topologySpreadConstraints" in spec:
        errors += check_spread(spec["topologySpreadConstraints"], f"{path}.topologySpreadConstraints")
    errors += _check_names(spec, path)
    if "tolerations" in spec:
        errors += check_tolerations(spec["tolerations"], f"{path}.tolerations")
    if "overhead" in spec:
        errors += check_container_resources({"limits": spec["overhead"]}, f"{path}.overhead")
    return errors + check_operating_system(spec, path)


def _check_readiness_gates(gates: list[Document], path: str) -> list[FieldError]:
    return [
        invalid(f"{path}[{index}].conditionType", gate.get("conditionType", ""), said)
        for index, gate in enumerate(gates)
        for said in names.qualified_name(gate.get("conditionType", ""))
    ]


def _check_policies(spec: Document, path: str) -> list[FieldError]:
    errors = []
    for key, allowed in (("restartPolicy", _RESTART), ("dnsPolicy", _DNS)):
        if not spec.get(key):
            errors.append(required(f"{path}.{key}"))
        elif spec[key] not in allowed:
            errors.append(not_supported(f"{path}.{key}", spec[key], allowed))
    if "preemptionPolicy" in spec and spec["preemptionPolicy"] not in _PREEMPTION:
        errors.append(not_supported(f"{path}.preemptionPolicy", spec["preemptionPolicy"], _PREEMPTION))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _LARGEST_DEADLINE:
        errors.append(
            invalid(f"{path}.activeDeadlineSeconds", deadline, f"must be between 1 and {_LARGEST_DEADLINE}, inclusive")
        )
    return errors


def _check_names(spec: Document, path: str) -> list[FieldError]:
    errors = []
    for key in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if spec.get(key):
            errors += [invalid(f"{path}.{key}", spec[key], said) for said in names.dns_subdomain(spec[key])]
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            errors += [invalid(f"{path}.{key}", spec[key], said) for said in names.dns_label(spec[key])]
    return errors
