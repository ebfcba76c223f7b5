"""What is wrong with the environment of a container, and with the fields that a downward API names."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, invalid, not_found_field, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.paths import check_no_backsteps
from hekla.lib import quantity

_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
VOLUME_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
"""What a file of a volume may show of its pod."""

_KNOWN_FIELDS = frozenset({*_FIELDS, *VOLUME_FIELDS, "spec.restartPolicy", "spec.schedulerName", "status.phase"})
_RESOURCES = (
    "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage",
    "requests.memory",
)  # fmt: skip
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_BYTE_DIVISORS = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_SPOKEN = {"memory": "memory", "ephemeral-storage": "local ephemeral storage"}


def check_env(variables: list[Document], volumes: dict[str, Document], path: str) -> list[FieldError]:
    """Names and sources of variables; `volumes` are the pod's, by name."""
    errors = []
    for index, env in enumerate(variables):
        name = env.get("name", "")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif said := names.env_name(name):
            errors += [invalid(f"{path}[{index}].name", name, one) for one in said]
        if "valueFrom" in env:
            errors += _check_value_from(env, volumes, f"{path}[{index}].valueFrom")
    return errors


def check_env_from(sources: list[Document], path: str) -> list[FieldError]:
    """Whole config maps and secrets; Kubernetes does not say which of the sources names none or two."""
    errors = []
    for index, one in enumerate(sources):
        where = f"{path}[{index}]"
        said = [key for key in ("configMapRef", "secretRef") if key in one]
        if one.get("prefix"):
            errors += [invalid(f"{where}.prefix", one["prefix"], text) for text in names.env_name(one["prefix"])]
        for key in said:
            name = one[key].get("name", "")
            if not name:
                errors.append(required(f"{where}.{key}.name"))
            else:
                errors += [invalid(f"{where}.{key}.name", name, text) for text in names.dns_subdomain(name, True)]
        if not said:
            errors.append(invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(said) > 1:
            errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _check_value_from(env: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    source = env["valueFrom"]
    said = [key for key in _ENV_SOURCES if key in source]
    errors = [error for key in said for error in _check_source(key, source[key], volumes, f"{path}.{key}")]
    if not said:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        errors.append(invalid(path, "", f"must specify one of: {listed}"))
    elif env.get("value"):
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(said) > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _check_source(key: str, source: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    match key:
        case "fieldRef":
            return check_field_ref(source, _FIELDS, path)
        case "resourceFieldRef":
            return check_resource_ref(source, path)
        case "fileKeyRef":
            return _check_file_key(source, volumes, path)
        case _:
            return _check_key_ref(source, path)


def _check_key_ref(source: Document, path: str) -> list[FieldError]:
    name, key = source.get("name", ""), source.get("key", "")
    errors = [invalid(f"{path}.name", name, said) for said in names.dns_subdomain(name)]
    if not key:
        return [*errors, required(f"{path}.key")]
    return errors + [invalid(f"{path}.key", key, said) for said in names.config_key(key)]


def _check_file_key(source: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    errors = [required(f"{path}.{name}") for name in ("volumeName", "path", "key") if not source.get(name)]
    volume = source.get("volumeName", "")
    if source.get("key"):
        errors += [invalid(f"{path}.key", source["key"], said) for said in names.env_name(source["key"])]
    if volume:
        errors += [invalid(f"{path}.volumeName", volume, said) for said in names.dns_label(volume)]
    errors += check_no_backsteps(source.get("path", ""), f"{path}.path")
    if volume not in volumes:
        errors.append(not_found_field(f"{path}.volumeName", volume))
    elif "emptyDir" not in volumes[volume]:
        errors.append(invalid(f"{path}.volumeName", volume, "referenced volume must be of type emptyDir"))
    return errors


def check_field_ref(source: Document, allowed: tuple[str, ...], path: str) -> list[FieldError]:
    """A field of the pod."""
    wanted, version = source.get("fieldPath", ""), source.get("apiVersion", "v1")
    where = f"{path}.fieldPath"
    if not wanted:
        return [required(where)]
    if version != "v1":
        return [invalid(where, wanted, f"error converting fieldPath: unsupported pod version: {version}")]
    head, bracket, key = wanted.partition("['")
    if bracket and key.endswith("']"):
        if head not in ("metadata.labels", "metadata.annotations"):
            said = f"error converting fieldPath: field label does not support subscript: {wanted}"
            return [invalid(where, wanted, said)]
        key = key[:-2].lower() if head == "metadata.annotations" else key[:-2]
        return [invalid(path, key, said) for said in names.qualified_name(key)]
    if wanted == "spec.host":  # what clients of long ago call it
        wanted = "spec.nodeName"
    if wanted not in _KNOWN_FIELDS:
        return [invalid(where, wanted, f"error converting fieldPath: field label not supported: {wanted}")]
    return [] if wanted in allowed else [not_supported(where, wanted, allowed)]


def check_resource_ref(source: Document, path: str, *, is_of_volume: bool = False) -> list[FieldError]:
    """An amount that a container asked for, and the unit it is shown in."""
    resource = source.get("resource", "")
    errors = []
    if is_of_volume and not source.get("containerName"):
        errors.append(required(f"{path}.containerName"))
    elif not resource:
        errors.append(required(f"{path}.resource"))
    elif resource not in _RESOURCES and not resource.startswith(_HUGE_PAGES):
        errors.append(not_supported(f"{path}.resource", resource, _RESOURCES))
    return errors + _check_divisor(resource, source.get("divisor", "0"), f"{path}.divisor")


def _check_divisor(resource: str, divisor: str, path: str) -> list[FieldError]:
    if not quantity.parse(divisor).value:
        return []
    _, _, kind = resource.partition(".")
    if kind == "cpu":
        said = "only divisor's values 1m and 1 are supported with the cpu resource"
        return [] if divisor in ("1m", "1") else [invalid(path, resource, said)]
    spoken = "hugepages" if kind.startswith("hugepages-") else _SPOKEN.get(kind)
    if spoken is None or divisor in _BYTE_DIVISORS:
        return []
    said = f"only divisor's values {', '.join(_BYTE_DIVISORS)} are supported with the {spoken} resource"
    return [invalid(path, resource, said)]
