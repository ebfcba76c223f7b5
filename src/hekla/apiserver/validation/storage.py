"""What is wrong with claims, volumes and classes of storage."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.quantities import check_amounts
from hekla.apiserver.validation.selectors import check_label_selector
from hekla.lib import quantity

_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_VOLUME_MODES = ("Block", "Filesystem")
_ONLY = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"


def check_claim(claim: Document) -> list[FieldError]:
    """A claim."""
    return check_claim_spec(claim.get("spec", {}), "spec")


def check_claim_spec(spec: Document, path: str) -> list[FieldError]:
    """How much, in which way."""
    errors = []
    if not spec.get("accessModes"):
        errors.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    errors += _check_modes(spec.get("accessModes", []), f"{path}.accessModes")
    errors += check_label_selector(spec.get("selector"), f"{path}.selector")
    storage = spec.get("resources", {}).get("requests", {}).get("storage")
    if storage is None:
        errors.append(required(f"{path}.resources[storage]"))
    elif quantity.parse(storage).value <= 0:
        errors.append(invalid(f"{path}.resources[storage]", storage, "must be greater than zero"))
    if spec.get("storageClassName"):
        errors += [
            invalid(f"{path}.storageClassName", spec["storageClassName"], said)
            for said in names.dns_subdomain(spec["storageClassName"])
        ]
    if spec.get("volumeMode", "Filesystem") not in _VOLUME_MODES:
        errors.append(not_supported(f"{path}.volumeMode", spec["volumeMode"], _VOLUME_MODES))
    return errors


def _check_modes(modes: list[str], path: str) -> list[FieldError]:
    errors = [not_supported(path, mode, _MODES) for mode in modes if mode not in _MODES]
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        errors.append(forbidden_field(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


def check_claim_update(new: Document, old: Document) -> list[FieldError]:
    """A claim may grow, and be bound."""
    wanted, before = _fixed(new["spec"]), _fixed(old["spec"])
    if not before.get("volumeName"):
        wanted.pop("volumeName", None)
        if "storageClassName" not in before:
            wanted.pop("storageClassName", None)
    errors = [] if wanted == before else [forbidden_field("spec", _ONLY)]
    size, earlier = _size(new["spec"]), _size(old["spec"])
    if size < earlier:
        said = "field can not be less than status.capacity"
        errors.append(forbidden_field("spec.resources.requests.storage", said))
    return errors


def _fixed(spec: Document) -> Document:
    return {key: value for key, value in spec.items() if key not in ("resources", "volumeAttributesClassName")}


def _size(spec: Document) -> int:
    return quantity.to_int(spec.get("resources", {}).get("requests", {}).get("storage", "0"))


def check_volume(volume: Document) -> list[FieldError]:
    """A volume."""
    spec = volume.get("spec", {})
    errors = [] if spec.get("accessModes") else [required("spec.accessModes")]
    errors += _check_modes(spec.get("accessModes", []), "spec.accessModes")
    if "storage" not in spec.get("capacity", {}):
        errors.append(
            not_supported("spec.capacity", spec.get("capacity"), ("storage",))
            if spec.get("capacity")
            else required("spec.capacity")
        )
    errors += check_amounts(spec.get("capacity", {}), "spec.capacity")
    if spec.get("persistentVolumeReclaimPolicy") not in ("Delete", "Recycle", "Retain"):
        errors.append(
            not_supported(
                "spec.persistentVolumeReclaimPolicy",
                spec.get("persistentVolumeReclaimPolicy", ""),
                ("Delete", "Recycle", "Retain"),
            )
        )
    if "hostPath" in spec and not spec["hostPath"].get("path"):
        errors.append(required("spec.hostPath.path"))
    return errors


def check_storage_class(storage_class: Document) -> list[FieldError]:
    """A storage class."""
    errors = [] if storage_class.get("provisioner") else [required("provisioner")]
    mode = storage_class.get("volumeBindingMode")
    if mode not in ("Immediate", "WaitForFirstConsumer"):
        errors.append(not_supported("volumeBindingMode", mode, ("Immediate", "WaitForFirstConsumer")))
    policy = storage_class.get("reclaimPolicy")
    if policy not in ("Delete", "Retain"):
        errors.append(not_supported("reclaimPolicy", policy, ("Delete", "Retain")))
    return errors


def check_storage_class_update(new: Document, old: Document) -> list[FieldError]:
    """A class keeps what its volumes were made by."""
    keys = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
    return [forbidden_field(key, f"updates to {key} are forbidden.") for key in keys if new.get(key) != old.get(key)]
