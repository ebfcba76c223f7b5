"""What is wrong with the containers of a pod."""

from typing import NamedTuple

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_found_field,
    not_supported,
    required,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.environment import check_env, check_env_from
from hekla.apiserver.validation.mounts import check_mounts
from hekla.apiserver.validation.pod_claims import check_claim_uses
from hekla.apiserver.validation.probes import check_lifecycle, check_probe
from hekla.apiserver.validation.quantities import check_container_resources
from hekla.apiserver.validation.security import check_container_security

_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_TERMINATION = ("File", "FallbackToLogsOnError")
_RESTART = ("Always", "Never", "OnFailure")
_ACTIONS = ("Restart", "RestartAllContainers")
_NOT_OF_EPHEMERAL = (
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
)
_NOT_EPHEMERAL = "cannot be set for an Ephemeral Container"
_NOT_IN_INIT = "may not be set for init containers without restartPolicy=Always"
_SAME_PORT = "must match `containerPort` when `hostNetwork` is true"


class _Pod(NamedTuple):
    """What a container is checked against."""

    volumes: dict[str, Document]
    claims: list[str]
    restart: str
    grace_s: int
    has_host_users: bool
    is_template: bool


def check_containers(
    spec: Document, volumes: dict[str, Document], path: str, *, is_template: bool = False
) -> list[FieldError]:
    """Containers, init containers, ephemeral ones; a template may leave open what its pods are given when made."""
    if not spec.get("containers"):
        return [required(f"{path}.containers")]
    pod = _Pod(
        volumes=volumes,
        claims=[claim.get("name", "") for claim in spec.get("resourceClaims", ())],
        restart=spec.get("restartPolicy", ""),
        grace_s=spec.get("terminationGracePeriodSeconds", 30),
        has_host_users=spec.get("hostUsers") is not False,
        is_template=is_template,
    )
    errors, seen = list[FieldError](), set[str]()
    for key in ("containers", "initContainers", "ephemeralContainers"):
        known = set(seen)
        for index, container in enumerate(spec.get(key) or ()):
            where = f"{path}.{key}[{index}]"
            errors += _check_container(container, pod, where)
            name = container.get("name", "")
            if name and name in seen:
                errors.append(duplicate(f"{where}.name", name))
            seen.add(name)
            if key == "ephemeralContainers":
                errors += _check_ephemeral(container, known, where)
            else:
                errors += _check_restart(container, where)
                errors += _check_health(container, pod, where, is_init=key == "initContainers")
    return errors + _check_host_ports(spec, path, is_template=is_template)


def _check_container(container: Document, pod: _Pod, path: str) -> list[FieldError]:
    errors = _check_identity(container, path, is_template=pod.is_template)
    if "ports" in container:
        errors += _check_ports(container["ports"], f"{path}.ports")
    if "env" in container:
        errors += check_env(container["env"], pod.volumes, f"{path}.env")
    if "envFrom" in container:
        errors += check_env_from(container["envFrom"], f"{path}.envFrom")
    errors += check_mounts(container, pod.volumes, path)
    if container.get("imagePullPolicy", "Always") not in _PULL:
        errors.append(not_supported(f"{path}.imagePullPolicy", container["imagePullPolicy"], _PULL))
    resources = container.get("resources", {})
    errors += check_container_resources(resources, f"{path}.resources")
    if "claims" in resources:
        errors += check_claim_uses(resources["claims"], pod.claims, f"{path}.resources.claims")
    if "resizePolicy" in container:
        errors += _check_resize(container["resizePolicy"], pod.restart, f"{path}.resizePolicy")
    if "securityContext" in container:
        where = f"{path}.securityContext"
        errors += check_container_security(container["securityContext"], where, has_host_users=pod.has_host_users)
    return errors


def _check_identity(container: Document, path: str, *, is_template: bool) -> list[FieldError]:
    errors = []
    name, image = container.get("name", ""), container.get("image", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip() and not is_template:  # a template may have a blank that is filled in later
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    policy = container.get("terminationMessagePolicy", "File")
    if policy not in _TERMINATION:
        errors.append(not_supported(f"{path}.terminationMessagePolicy", policy, _TERMINATION))
    return errors


def _check_health(container: Document, pod: _Pod, path: str, *, is_init: bool) -> list[FieldError]:
    if is_init and container.get("restartPolicy") != "Always":
        keys = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
        return [forbidden_field(f"{path}.{key}", _NOT_IN_INIT) for key in keys if key in container]
    errors = check_lifecycle(container.get("lifecycle"), f"{path}.lifecycle", grace_s=pod.grace_s)
    errors += check_probe(container.get("livenessProbe"), f"{path}.livenessProbe")
    errors += check_probe(container.get("readinessProbe"), f"{path}.readinessProbe", is_readiness=True)
    return errors + check_probe(container.get("startupProbe"), f"{path}.startupProbe")


def _check_ports(ports: list[Document], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, port in enumerate(ports):
        where, name, number = f"{path}[{index}]", port.get("name", ""), port.get("containerPort", 0)
        if name:
            said = names.port_name(name)
            errors += [invalid(f"{where}.name", name, one) for one in said]
            if not said and name in seen:
                errors.append(duplicate(f"{where}.name", name))
            seen.add(name)
        if not number:
            errors.append(required(f"{where}.containerPort"))
        else:
            errors += [invalid(f"{where}.containerPort", number, said) for said in names.port_number(number)]
        if port.get("hostPort"):
            errors += [
                invalid(f"{where}.hostPort", port["hostPort"], said) for said in names.port_number(port["hostPort"])
            ]
        if not port.get("protocol"):
            errors.append(required(f"{where}.protocol"))
        elif port["protocol"] not in _PROTOCOLS:
            errors.append(not_supported(f"{where}.protocol", port["protocol"], _PROTOCOLS))
    return errors


def _check_host_ports(spec: Document, path: str, *, is_template: bool) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, container in enumerate(spec["containers"]):
        for at, port in enumerate(container.get("ports", ())):
            where, number = f"{path}.containers[{index}].ports[{at}]", port.get("hostPort", 0)
            is_open = is_template and not number  # its pods take the container's
            if spec.get("hostNetwork") and not is_open and number != port.get("containerPort", 0):
                errors.append(invalid(f"{where}.hostPort", number, _SAME_PORT))
            if number:
                taken = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{number}"
                if taken in seen:
                    errors.append(duplicate(f"{where}.hostPort", taken))
                seen.add(taken)
    return errors


def _check_restart(container: Document, path: str) -> list[FieldError]:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules", ())
    errors, where = [], f"{path}.restartPolicy"
    if policy is None:
        if rules:
            errors.append(required(where, "must specify restartPolicy when restart rules are used"))
    elif policy not in _RESTART:
        errors.append(not_supported(where, policy, _RESTART))
    for index, rule in enumerate(rules):
        where, codes = f"{path}.restartPolicyRules[{index}]", rule.get("exitCodes")
        if rule.get("action", "") not in _ACTIONS:
            errors.append(not_supported(f"{where}.action", rule.get("action", ""), _ACTIONS))
        if codes is None:
            errors.append(required(f"{where}.exitCodes", "must be specified"))
        elif codes.get("operator", "") not in ("In", "NotIn"):
            errors.append(not_supported(f"{where}.exitCodes.operator", codes.get("operator", ""), ("In", "NotIn")))
    return errors


def _check_resize(policies: list[Document], restart: str, path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(policies):
        resource, policy = one.get("resourceName", ""), one.get("restartPolicy", "")
        if resource in seen:
            errors.append(duplicate(f"{path}[{index}]", resource))
        seen.add(resource)
        for value, allowed in ((resource, ("cpu", "memory")), (policy, ("NotRequired", "RestartContainer"))):
            if not value:
                errors.append(required(path))
            elif value not in allowed:
                errors.append(not_supported(path, value, allowed))
        if restart == "Never" and policy != "NotRequired":
            errors.append(invalid(path, policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
    return errors


def _check_ephemeral(container: Document, known: set[str], path: str) -> list[FieldError]:
    """What a container for debugging may not have, and that its target is there."""
    target = container.get("targetContainerName", "")
    errors = [] if not target or target in known else [not_found_field(f"{path}.targetContainerName", target)]
    errors += [forbidden_field(f"{path}.{key}", _NOT_EPHEMERAL) for key in _NOT_OF_EPHEMERAL if container.get(key)]
    for index, mount in enumerate(container.get("volumeMounts", ())):
        where = f"{path}.volumeMounts[{index}]"
        errors += [
            forbidden_field(f"{where}.{key}", _NOT_EPHEMERAL) for key in ("subPath", "subPathExpr") if mount.get(key)
        ]
    return errors
