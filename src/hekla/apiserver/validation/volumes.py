"""What is wrong with a pod's volumes; `mounts.py` has how containers use them."""

from collections.abc import Callable

from hekla.api.meta import Document
from hekla.apiserver.defaulting_pods import VOLUME_SOURCES as SOURCES
from hekla.apiserver.fielderrors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_long,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.environment import VOLUME_FIELDS, check_field_ref, check_resource_ref
from hekla.apiserver.validation.paths import check_no_backsteps, check_relative, check_unreserved
from hekla.apiserver.validation.storage import check_claim_spec

_HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_PULL = ("Always", "IfNotPresent", "Never")
_NOT_A_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
_REFERENCES = {
    "persistentVolumeClaim": ("claimName",), "nfs": ("server", "path"), "secret": ("secretName",), "configMap": ("name",),
    "hostPath": ("path",), "iscsi": ("targetPortal", "iqn"), "azureFile": ("secretName", "shareName"),
    "flexVolume": ("driver",), "gcePersistentDisk": ("pdName",), "awsElasticBlockStore": ("volumeID",), "cinder": ("volumeID",),
    "gitRepo": ("repository",), "cephfs": ("monitors",), "rbd": ("monitors", "image"), "portworxVolume": ("volumeID",),
    "glusterfs": ("endpoints", "path"), "image": ("reference",),
}  # fmt: skip
"""What each kind of volume must name."""

_LONGEST_DRIVER = 63
_LONGEST_TOKEN_S = 1 << 32


def check_volumes(
    volumes: list[Document], path: str, *, is_template: bool = False
) -> tuple[list[FieldError], dict[str, Document]]:
    """Names, and exactly one source each; also the volumes that are right, by name, for those who mount them."""
    errors, right = list[FieldError](), dict[str, Document]()
    seen = set[str]()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        found = _check_sources(volume, where, is_template=is_template)
        if not name:
            found.append(required(f"{where}.name"))
        else:
            found += [invalid(f"{where}.name", name, said) for said in names.dns_label(name)]
        if name in seen:
            found.append(duplicate(f"{where}.name", name))
        if not found:
            seen.add(name)
            right[name] = volume
        errors += found
    return errors, right


def _check_sources(volume: Document, path: str, *, is_template: bool) -> list[FieldError]:
    said = [key for key in volume if key in SOURCES]
    if not said:
        return [required(path, "must specify a volume type")]
    errors = [forbidden_field(f"{path}.{key}", "may not specify more than 1 volume type") for key in said[1:]]
    key = said[0]
    source, where = volume[key], f"{path}.{key}"
    if not (key == "image" and is_template):  # its pods may be given the reference later
        errors += [required(f"{where}.{name}") for name in _REFERENCES.get(key, ()) if not source.get(name)]
    check = _CHECKS.get(key)
    return errors + check(source, where) if check else errors


def _check_host_path(source: Document, path: str) -> list[FieldError]:
    errors = check_no_backsteps(source.get("path", ""), f"{path}.path")
    if source.get("type", "") not in _HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", source["type"], _HOST_PATH_TYPES))
    return errors


def _check_empty_dir(source: Document, path: str) -> list[FieldError]:
    if source.get("sizeLimit", "").startswith("-"):
        return [forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")]
    return []


def _check_files(source: Document, path: str) -> list[FieldError]:
    errors = _check_mode(source.get("defaultMode"), f"{path}.defaultMode")
    for index, item in enumerate(source.get("items", ())):
        errors += _check_key_to_path(item, f"{path}.items[{index}]")
    return errors


def _check_key_to_path(item: Document, path: str) -> list[FieldError]:
    errors = [required(f"{path}.{name}") for name in ("key", "path") if not item.get(name)]
    errors += check_unreserved(item.get("path", ""), f"{path}.path")
    return errors + _check_mode(item.get("mode"), f"{path}.mode")


def _check_downward(source: Document, path: str) -> list[FieldError]:
    errors = _check_mode(source.get("defaultMode"), f"{path}.defaultMode")
    for item in source.get("items", ()):
        errors += _check_downward_file(item, path)  # Kubernetes leaves out which of the files
    return errors


def _check_downward_file(item: Document, path: str) -> list[FieldError]:
    errors = [] if item.get("path") else [required(f"{path}.path")]
    errors += check_unreserved(item.get("path", ""), f"{path}.path")
    if "fieldRef" in item:
        errors += check_field_ref(item["fieldRef"], VOLUME_FIELDS, f"{path}.fieldRef")
        if "resourceFieldRef" in item:
            said = "fieldRef and resourceFieldRef can not be specified simultaneously"
            errors.append(invalid(path, "resource", said))
    elif "resourceFieldRef" in item:
        errors += check_resource_ref(item["resourceFieldRef"], f"{path}.resourceFieldRef", is_of_volume=True)
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return errors + _check_mode(item.get("mode"), f"{path}.mode")


def _check_projected(source: Document, path: str) -> list[FieldError]:
    errors = _check_mode(source.get("defaultMode"), f"{path}.defaultMode")
    taken = set[str]()
    for index, one in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{index}]"
        for key in ("secret", "configMap", "downwardAPI"):
            if key in one:
                errors += _check_projection(key, one[key], where, path, taken)
        if "serviceAccountToken" in one:
            errors += _check_token(one["serviceAccountToken"], f"{where}.serviceAccountToken", path)
        if len(one) > 1:
            errors.append(forbidden_field(where, "may not specify more than 1 volume type per source"))
    return errors


def _check_projection(key: str, source: Document, where: str, path: str, taken: set[str]) -> list[FieldError]:
    is_downward, inner = key == "downwardAPI", f"{where}.{key}"
    errors = [] if is_downward or source.get("name") else [required(f"{inner}.name")]
    for index, item in enumerate(source.get("items", ())):
        file = item.get("path", "")
        if is_downward:
            errors += _check_downward_file(item, inner)
        else:
            errors += _check_key_to_path(item, f"{inner}.items[{index}]")
        if file and file in taken:
            errors.append(invalid(path, file if is_downward else source.get("name", ""), "conflicting duplicate paths"))
        taken.add(file)
    return errors


def _check_token(token: Document, where: str, path: str) -> list[FieldError]:
    seconds, file, errors = token.get("expirationSeconds", 3600), token.get("path", ""), []
    if seconds < 600:
        said = "may not specify a duration less than 10 minutes"
        errors.append(invalid(f"{where}.expirationSeconds", seconds, said))
    if seconds > _LONGEST_TOKEN_S:
        said = "may not specify a duration larger than 2^32 seconds"
        errors.append(invalid(f"{where}.expirationSeconds", seconds, said))
    return errors + (check_unreserved(file, f"{path}.path") if file else [required(f"{path}.path")])


def _check_nfs(source: Document, path: str) -> list[FieldError]:
    at = source.get("path", "")
    return [] if at.startswith("/") else [invalid(f"{path}.path", at, "must be an absolute path")]


def _check_csi(source: Document, path: str) -> list[FieldError]:
    driver, secret, errors = source.get("driver", ""), source.get("nodePublishSecretRef"), []
    if not driver:
        errors.append(required(f"{path}.driver"))
    else:
        if len(driver) > _LONGEST_DRIVER:
            errors.append(too_long(f"{path}.driver", _LONGEST_DRIVER))
        errors += [invalid(f"{path}.driver", driver, said) for said in names.dns_subdomain(driver.lower())]
    if secret is not None and not secret.get("name"):
        errors.append(required(f"{path}.nodePublishSecretRef.name"))
    elif secret is not None:
        errors += [invalid(f"{path}.name", secret["name"], said) for said in names.dns_subdomain(secret["name"])]
    return errors


def _check_ephemeral(source: Document, path: str) -> list[FieldError]:
    if "volumeClaimTemplate" not in source:
        return [required(f"{path}.volumeClaimTemplate")]
    return check_claim_spec(source["volumeClaimTemplate"].get("spec", {}), f"{path}.volumeClaimTemplate.spec")


def _check_image(source: Document, path: str) -> list[FieldError]:
    policy = source.get("pullPolicy", "Always")
    return [] if policy in _PULL else [not_supported(f"{path}.pullPolicy", policy, _PULL)]


def _check_git(source: Document, path: str) -> list[FieldError]:
    return check_relative(source.get("directory", ""), f"{path}.directory")


def _check_fibre_channel(source: Document, path: str) -> list[FieldError]:
    if not source.get("targetWWNs") and not source.get("wwids"):
        return [required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both")]
    return []


def _check_mode(mode: int | None, path: str) -> list[FieldError]:
    return [] if mode is None or 0 <= mode <= 0o777 else [invalid(path, mode, _NOT_A_MODE)]


_CHECKS: dict[str, Callable[[Document, str], list[FieldError]]] = {
    "hostPath": _check_host_path,
    "emptyDir": _check_empty_dir,
    "secret": _check_files,
    "configMap": _check_files,
    "downwardAPI": _check_downward,
    "projected": _check_projected,
    "nfs": _check_nfs,
    "csi": _check_csi,
    "ephemeral": _check_ephemeral,
    "image": _check_image,
    "gitRepo": _check_git,
    "fc": _check_fibre_channel,
}
