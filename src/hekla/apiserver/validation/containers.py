"""What is wrong with the containers of a pod."""

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
from hekla.apiserver.validation.probes import check_lifecycle, check_probe
from hekla.apiserver.validation.quantities import check_container_resources
from hekla.apiserver.validation.volumes import check_relative

_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_TERMINATION = ("FallbackToLogsOnError", "File")
_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_NOT_IN_INIT = "may not be set for init containers without restartPolicy=Always"
_SAME_PORT = "must match `containerPort` when `hostNetwork` is true"
_LARGEST_ID = 2**31 - 1


def check_containers(spec: Document, path: str, *, is_template: bool = False) -> list[FieldError]:
    """Containers, init containers, ephemeral ones; a template may leave open what its pods are given when made."""
    volumes = {volume.get("name", "") for volume in spec.get("volumes", ())}
    if not spec.get("containers"):
        return [required(f"{path}.containers")]
    errors, seen = list[FieldError](), set[str]()
    for key in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            where = f"{path}.{key}[{index}]"
            errors += _check_container(container, volumes, where)
            name = container.get("name", "")
            if name and name in seen:
                errors.append(duplicate(f"{where}.name", name))
            seen.add(name)
            errors += _check_health(container, where, is_init=key == "initContainers")
    return errors + _check_host_ports(spec, path, is_template=is_template)


def _check_container(container: Document, volumes: set[str], path: str) -> list[FieldError]:
    errors = []
    name, image = container.get("name", ""), container.get("image", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("terminationMessagePolicy", "File") not in _TERMINATION:
        errors.append(
            not_supported(f"{path}.terminationMessagePolicy", container["terminationMessagePolicy"], _TERMINATION)
        )
    if "ports" in container:
        errors += _check_ports(container["ports"], f"{path}.ports")
    if "env" in container:
        errors += _check_env(container["env"], f"{path}.env")
    if "envFrom" in container:
        errors += _check_env_from(container["envFrom"], f"{path}.envFrom")
    if "volumeMounts" in container:
        errors += _check_mounts(container["volumeMounts"], volumes, f"{path}.volumeMounts")
    if container.get("imagePullPolicy", "Always") not in _PULL:
        errors.append(not_supported(f"{path}.imagePullPolicy", container["imagePullPolicy"], _PULL))
    errors += check_container_resources(container.get("resources", {}), f"{path}.resources")
    if "securityContext" in container:
        errors += _check_security(container["securityContext"], f"{path}.securityContext")
    return errors


def _check_health(container: Document, path: str, *, is_init: bool) -> list[FieldError]:
    policy = container.get("restartPolicy")
    if is_init and policy != "Always":
        errors = (
            []
            if policy is None or policy in ("Never", "OnFailure")
            else [not_supported(f"{path}.restartPolicy", policy, ("Always",))]
        )
        keys = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
        return errors + [forbidden_field(f"{path}.{key}", _NOT_IN_INIT) for key in keys if key in container]
    errors = check_lifecycle(container.get("lifecycle"), f"{path}.lifecycle")
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


def _check_env(variables: list[Document], path: str) -> list[FieldError]:
    errors = []
    for index, env in enumerate(variables):
        name = env.get("name", "")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif said := names.env_name(name):
            errors += [invalid(f"{path}[{index}].name", name, one) for one in said]
        if "valueFrom" in env:
            errors += _check_value_from(env, f"{path}[{index}].valueFrom")
    return errors


def _check_value_from(env: Document, path: str) -> list[FieldError]:
    source = env["valueFrom"]
    said = [key for key in _ENV_SOURCES if key in source]
    errors = [error for key in said for error in _check_env_source(key, source[key], f"{path}.{key}")]
    if env.get("value"):
        if said:
            errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif not said:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        errors.append(invalid(path, "", f"must specify one of: {listed}"))
    elif len(said) > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _check_env_source(key: str, source: Document, path: str) -> list[FieldError]:
    if key == "fieldRef":
        return _check_field_ref(source, path)
    if key == "resourceFieldRef":
        return [] if source.get("resource") else [required(f"{path}.resource")]
    if key == "fileKeyRef":
        return [required(f"{path}.{name}") for name in ("volumeName", "path", "key") if not source.get(name)]
    errors = [] if source.get("name") else [required(f"{path}.name")]
    if not source.get("key"):
        return [*errors, required(f"{path}.key")]
    return errors + [invalid(f"{path}.key", source["key"], said) for said in names.config_key(source["key"])]


def _check_field_ref(source: Document, path: str) -> list[FieldError]:
    wanted = source.get("fieldPath", "")
    if not wanted:
        return [required(f"{path}.fieldPath")]
    head, bracket, key = wanted.partition("['")
    if head in ("metadata.labels", "metadata.annotations") and bracket and key.endswith("']"):
        return [invalid(f"{path}.fieldPath", key[:-2], said) for said in names.qualified_name(key[:-2].lower())]
    return [] if wanted in _FIELDS else [not_supported(f"{path}.fieldPath", wanted, sorted(_FIELDS))]


def _check_env_from(sources: list[Document], path: str) -> list[FieldError]:
    errors = []
    for index, one in enumerate(sources):
        where = f"{path}[{index}]"
        said = [key for key in ("configMapRef", "secretRef") if key in one]
        if one.get("prefix"):
            errors += [invalid(f"{where}.prefix", one["prefix"], text) for text in names.env_name(one["prefix"])]
        errors += [required(f"{where}.{key}.name") for key in said if not one[key].get("name")]
        if not said:
            errors.append(invalid(where, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(said) > 1:
            errors.append(invalid(where, "", "may not have more than one field specified at a time"))
    return errors


def _check_mounts(mounts: list[Document], volumes: set[str], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, mount in enumerate(mounts):
        where, name, at = f"{path}[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{where}.name"))
        elif name not in volumes:
            errors.append(not_found_field(f"{where}.name", name))
        if not at:
            errors.append(required(f"{where}.mountPath"))
        elif at in seen:
            errors.append(invalid(f"{where}.mountPath", at, "must be unique"))
        seen.add(at)
        errors += check_relative(mount.get("subPath", ""), f"{where}.subPath")
        errors += check_relative(mount.get("subPathExpr", ""), f"{where}.subPathExpr")
        if mount.get("subPath") and mount.get("subPathExpr"):
            errors.append(
                invalid(f"{where}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive")
            )
    return errors


def _check_security(context: Document, path: str) -> list[FieldError]:
    errors = check_ids(context, path)
    if context.get("allowPrivilegeEscalation") is False and context.get("privileged"):
        errors.append(invalid(path, context, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
    return errors


def check_ids(context: Document, path: str) -> list[FieldError]:
    """User and group numbers."""
    said = f"must be between 0 and {_LARGEST_ID}, inclusive"
    keys = ("runAsUser", "runAsGroup", "fsGroup")
    return [
        invalid(f"{path}.{key}", context[key], said)
        for key in keys
        if key in context and not 0 <= context[key] <= _LARGEST_ID
    ]
