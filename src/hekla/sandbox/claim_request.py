"""What a SandboxClaim asks for beyond a Sandbox of its pool, and whether its template allows that: environment, volumes, metadata.

Pure checks; each refusal is a reason of the claim's condition Ready and a sentence. `sandbox_claim.py` acts on them.
"""

import re
from collections.abc import Iterator

import msgspec

from hekla.api.agents import SandboxClaim, SandboxTemplate, names
from hekla.api.agents.extensions import ClaimEnvVar, Injection
from hekla.api.meta import Document
from hekla.sandbox.blueprint import safe_blueprint

LABEL_DOMAINS = ("sandbox.users.io",)
"""Domains of labels that claims may put on pods, with all below them."""

_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "agents.x-k8s.io", "hekla.dev")
_ALLOWED_ANYWAY = (names.SAFE_TO_EVICT,)
_NAME = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$", re.ASCII)
_DOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", re.ASCII)
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$", re.ASCII)


class RefusedError(Exception):
    """A claim asks for what it may not have: a reason of its condition Ready, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


def check_metadata(claim: SandboxClaim) -> None:
    """Refuse labels and annotations that would make a pod look like what it is not; raises `RefusedError`."""
    for message in _bad_metadata(claim):
        raise RefusedError("InvalidMetadata", message)


def _bad_metadata(claim: SandboxClaim) -> Iterator[str]:
    wanted = claim.spec.additional_pod_metadata
    for key, value in wanted.labels.items():
        if trouble := _bad_key(key) or _bad_label(key, value):
            yield f'failed to validate label "{key}": {trouble}'
    for key in wanted.annotations:
        domain = key.partition("/")[0].lower() if "/" in key else ""
        trouble = _bad_key(key)
        if not trouble and key not in _ALLOWED_ANYWAY and _is_below(domain, _RESERVED_DOMAINS):
            trouble = f'restricted system domain: "{key}" is not allowed in AdditionalPodMetadata'
        if trouble:
            yield f'failed to validate annotation "{key}": {trouble}'


def _bad_key(key: str) -> str:
    domain, slash, name = key.rpartition("/")
    if len(name) > 63 or not _NAME.match(name):
        return f'its name "{name}" is not 1 to 63 letters, digits, "-", "_" or "."'
    if slash and (len(domain) > 253 or not _DOMAIN.match(domain)):
        return f'its prefix "{domain}" is no DNS subdomain'
    return ""


def _bad_label(key: str, value: str) -> str:
    if key.lower() == "app" and value.lower() == names.ROUTER_APP:
        return f'restricted system label value: "{key}"="{value}" is not allowed in AdditionalPodMetadata'
    domain, slash, _ = key.rpartition("/")
    if not slash:
        return (
            f"label \"{key}\" must have a domain prefix (e.g. '{LABEL_DOMAINS[0]}/my-label') "
            "to prevent opting into unintended policy domains"
        )
    if not _is_below(domain.lower(), LABEL_DOMAINS):
        return f'label domain "{domain.lower()}" is not in the allowlist ({", ".join(LABEL_DOMAINS)})'
    if len(value) > 63 or not _VALUE.match(value):
        return f'invalid label value: "{value}" is not up to 63 letters, digits, "-", "_" or "."'
    return ""


def _is_below(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == one or domain.endswith(f".{one}") for one in domains)


def wanted_blueprint(claim: SandboxClaim, template: SandboxTemplate) -> Document:
    """What the claim's own Sandbox says: its template, with what the claim adds; raises `RefusedError`."""
    blueprint = safe_blueprint(template)
    _add_metadata(blueprint, claim)
    check_env(claim, template)
    for variable in claim.spec.env:
        _set_variable(_container_of(variable, blueprint), variable)
    _add_volumes(blueprint, claim, template)
    return blueprint


def _add_metadata(blueprint: Document, claim: SandboxClaim) -> None:
    metadata = blueprint["podTemplate"].setdefault("metadata", {})
    wanted = claim.spec.additional_pod_metadata
    for kind, added in (("label", wanted.labels), ("annotation", wanted.annotations)):
        there = metadata.setdefault(f"{kind}s", {})
        for key, value in added.items():
            if there.get(key, value) != value:
                message = (
                    f'metadata override conflict: {kind} "{key}" is defined in template with value "{there[key]}", '
                    f'but claim requests "{value}"'
                )
                raise RefusedError("InvalidMetadata", message)
            there[key] = value


def check_env(claim: SandboxClaim, template: SandboxTemplate) -> None:
    """Refuse variables that the template does not let claims set; raises `RefusedError`."""
    policy = template.spec.env_vars_injection_policy
    if not claim.spec.env:
        return
    if policy not in (Injection.ALLOWED, Injection.OVERRIDES):
        raise _env("environment variable injection is not allowed by the template policy")
    spec = {"podTemplate": {"spec": template.spec.pod_template.spec}}
    for variable in claim.spec.env:
        container = _container_of(variable, spec)
        if policy == Injection.OVERRIDES:
            continue
        if container.get("envFrom"):
            raise _env(
                f'container "{container.get("name")}" uses EnvFrom sources; Allowed policy cannot safely prevent '
                "overriding EnvFrom-provided variables"
            )
        if any(one.get("name") == variable.name for one in container.get("env") or ()):
            raise _env(
                f'environment variable override is not allowed by the template policy for variable "{variable.name}"'
            )


def _env(message: str) -> RefusedError:
    return RefusedError("EnvVarsInjectionRejected", f"env vars injection rejected: {message}")


def _container_of(variable: ClaimEnvVar, blueprint: Document) -> Document:
    spec = blueprint["podTemplate"]["spec"]
    containers: list[Document] = spec.get("containers") or []
    everyone = [*containers, *(spec.get("initContainers") or ())]
    for one in everyone if variable.container_name else containers[:1]:
        if not variable.container_name or one.get("name") == variable.container_name:
            return one
    target = variable.container_name or "the first one"
    raise _env(f'target container "{target}" not found in template for environment variable "{variable.name}"')


def _set_variable(container: Document, variable: ClaimEnvVar) -> None:
    others = [one for one in container.get("env") or () if one.get("name") != variable.name]
    container["env"] = [*others, {"name": variable.name, "value": variable.value}]


def _add_volumes(blueprint: Document, claim: SandboxClaim, template: SandboxTemplate) -> None:
    wanted = claim.spec.volume_claim_templates
    if not wanted:
        return
    policy = template.spec.volume_claim_templates_policy
    if policy not in (Injection.ALLOWED, Injection.OVERRIDES):
        raise RefusedError("VolumeClaimTemplatesError", "volume claim templates are not allowed by the template policy")
    merged: dict[str, Document] = {
        one["metadata"].get("name", ""): one for one in blueprint.get("volumeClaimTemplates") or ()
    }
    seen: set[str] = set()
    for number, one in enumerate(wanted):
        name = one.metadata.name
        if not name:
            raise RefusedError("VolumeClaimTemplatesError", f"claim: name at index {number} is empty")
        if name in seen:
            raise RefusedError("VolumeClaimTemplatesError", f'claim: duplicate name "{name}"')
        if name in merged and policy != Injection.OVERRIDES:
            raise RefusedError("VolumeClaimTemplatesError", f'cannot override template volume "{name}"')
        seen.add(name)
        merged[name] = msgspec.to_builtins(one)
    blueprint["volumeClaimTemplates"] = list(merged.values())
