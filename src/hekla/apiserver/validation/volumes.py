"""What is wrong with a pod's volumes."""

from hekla.api.meta import Document
from hekla.apiserver.defaulting_pods import VOLUME_SOURCES as SOURCES
from hekla.apiserver.fielderrors import FieldError, duplicate, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.quantities import check_not_negative

_HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_NOT_A_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
_REFERENCES = {
    "persistentVolumeClaim": ("claimName",), "nfs": ("server", "path"), "csi": ("driver",), "secret": ("secretName",),
    "configMap": ("name",), "hostPath": ("path",), "iscsi": ("targetPortal", "iqn"), "azureFile": ("secretName", "shareName"),
    "flexVolume": ("driver",), "gcePersistentDisk": ("pdName",), "awsElasticBlockStore": ("volumeID",), "cinder": ("volumeID",),
}  # fmt: skip
"""What each kind of volume must name."""


def check_volumes(volumes: list[Document], path: str) -> list[FieldError]:
    """Names, and exactly one source each."""
    errors, seen = list[FieldError](), set[str]()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        errors += _check_sources(volume, where)
        if not name:
            errors.append(required(f"{where}.name"))
        else:
            errors += [invalid(f"{where}.name", name, said) for said in names.dns_label(name)]
        if name in seen:
            errors.append(duplicate(f"{where}.name", name))
        seen.add(name)
    return errors


def _check_sources(volume: Document, path: str) -> list[FieldError]:
    said = [key for key in volume if key in SOURCES]
    if not said:
        return [required(path, "must specify a volume type")]
    errors = [forbidden_field(f"{path}.{key}", "may not specify more than 1 volume type") for key in said[1:]]
    key = said[0]
    source, where = volume[key], f"{path}.{key}"
    errors += [required(f"{where}.{name}") for name in _REFERENCES.get(key, ()) if not source.get(name)]
    if key == "hostPath":
        errors += _check_host_path(source, where)
    elif key == "emptyDir" and source.get("sizeLimit"):
        errors += check_not_negative(source["sizeLimit"], f"{where}.sizeLimit")
    elif key in ("secret", "configMap", "downwardAPI"):
        errors += _check_files(source, where)
    elif key == "projected":
        errors += _check_projected(source, where)
    elif key == "ephemeral" and not source.get("volumeClaimTemplate"):
        errors.append(required(f"{where}.volumeClaimTemplate"))
    return errors


def _check_host_path(source: Document, path: str) -> list[FieldError]:
    errors = check_no_backsteps(source.get("path", ""), f"{path}.path")
    if source.get("type", "") not in _HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", source["type"], _HOST_PATH_TYPES))
    return errors


def _check_files(source: Document, path: str) -> list[FieldError]:
    errors = _check_mode(source.get("defaultMode"), f"{path}.defaultMode")
    for index, item in enumerate(source.get("items", ())):
        where = f"{path}.items[{index}]"
        if "fieldRef" not in item and "resourceFieldRef" not in item and not item.get("key"):
            errors.append(required(f"{where}.key"))
        if not item.get("path"):
            errors.append(required(f"{where}.path"))
        errors += check_relative(item.get("path", ""), f"{where}.path") + _check_mode(item.get("mode"), f"{where}.mode")
    return errors


def _check_projected(source: Document, path: str) -> list[FieldError]:
    errors = _check_mode(source.get("defaultMode"), f"{path}.defaultMode")
    for index, one in enumerate(source.get("sources", ())):
        where = f"{path}.sources[{index}]"
        if len(one) > 1:
            errors += [
                forbidden_field(f"{where}.{key}", "may not specify more than 1 volume type") for key in list(one)[1:]
            ]
        for key in ("secret", "configMap"):
            if key in one and not one[key].get("name"):
                errors.append(required(f"{where}.{key}.name"))
        for key in ("secret", "configMap", "downwardAPI"):
            if key in one:
                errors += _check_files(one[key], f"{where}.{key}")
        token = one.get("serviceAccountToken")
        if token is not None:
            errors += _check_token(token, f"{where}.serviceAccountToken")
    return errors


def _check_token(token: Document, path: str) -> list[FieldError]:
    errors = []
    if token.get("expirationSeconds", 3600) < 600:
        errors.append(
            invalid(
                f"{path}.expirationSeconds",
                token["expirationSeconds"],
                "may not specify a duration less than 10 minutes",
            )
        )
    if not token.get("path"):
        errors.append(required(f"{path}.path"))
    return errors + check_relative(token.get("path", ""), f"{path}.path")


def _check_mode(mode: int | None, path: str) -> list[FieldError]:
    return [] if mode is None or 0 <= mode <= 0o777 else [invalid(path, mode, _NOT_A_MODE)]


def check_relative(text: str, path: str) -> list[FieldError]:
    """A path below a volume."""
    errors = [invalid(path, text, "must be a relative path")] if text.startswith("/") else []
    return errors + check_no_backsteps(text, path)


def check_no_backsteps(text: str, path: str) -> list[FieldError]:
    """No way out of the directory."""
    return [invalid(path, text, "must not contain '..'")] if ".." in text.split("/") else []
