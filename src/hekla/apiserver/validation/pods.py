"""What is wrong with a pod, or with the pod template of a workload; `pod_updates.py` has what may change later."""

import ipaddress
import re

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.containers import check_containers, check_ids
from hekla.apiserver.validation.metadata import check_annotations, check_labels
from hekla.apiserver.validation.placement import check_affinity, check_gates, check_spread, check_tolerations
from hekla.apiserver.validation.quantities import check_amounts, check_container_resources
from hekla.apiserver.validation.volumes import check_volumes

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION = ("Never", "PreemptLowerPriority")
_LARGEST_DEADLINE = 2**31 - 1


def check_pod(pod: Document) -> list[FieldError]:
    """A new pod."""
    spec = pod.get("spec", {})
    errors = check_pod_spec(spec, "spec")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        errors.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
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
    errors = check_volumes(spec["volumes"], f"{path}.volumes") if "volumes" in spec else []
    errors += check_containers(spec, path, is_template=is_template)
    if "resources" in spec:
        errors += check_container_resources(spec["resources"], f"{path}.resources")
    errors += _check_policies(spec, path)
    if "nodeSelector" in spec:
        errors += check_labels(spec["nodeSelector"], f"{path}.nodeSelector")
    errors += check_ids(spec.get("securityContext", {}), f"{path}.securityContext")
    if "affinity" in spec:
        errors += check_affinity(spec["affinity"], f"{path}.affinity")
    if "schedulingGates" in spec:
        errors += check_gates(spec["schedulingGates"], f"{path}.schedulingGates")
    if "topologySpreadConstraints" in spec:
        errors += check_spread(spec["topologySpreadConstraints"], f"{path}.topologySpreadConstraints")
    errors += _check_names(spec, path)
    if "tolerations" in spec:
        errors += check_tolerations(spec["tolerations"], f"{path}.tolerations")
    if "hostAliases" in spec:
        errors += _check_host_aliases(spec["hostAliases"], f"{path}.hostAliases")
    if "overhead" in spec:
        errors += check_amounts(spec["overhead"], f"{path}.overhead")
    return errors


def _check_policies(spec: Document, path: str) -> list[FieldError]:
    errors = []
    for key, allowed in (("restartPolicy", _RESTART), ("dnsPolicy", _DNS)):
        if not spec.get(key):
            errors.append(required(f"{path}.{key}"))
        elif spec[key] not in allowed:
            errors.append(not_supported(f"{path}.{key}", spec[key], allowed))
    if spec.get("dnsPolicy") == "None" and not spec.get("dnsConfig", {}).get("nameservers"):
        errors.append(
            required(
                f"{path}.dnsConfig.nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None"
            )
        )
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


def _check_host_aliases(aliases: list[Document], path: str) -> list[FieldError]:
    errors = []
    for index, alias in enumerate(aliases):
        where, address = f"{path}[{index}]", alias.get("ip", "")
        if not is_ip(address):
            errors.append(
                invalid(f"{where}.ip", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
            )
        for name in alias.get("hostnames", ()):
            errors += [invalid(f"{where}.hostnames", name, said) for said in names.dns_subdomain(name)]
    return errors


def is_ip(text: str) -> bool:
    """Whether a text is an address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
