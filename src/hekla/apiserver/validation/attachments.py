"""What is wrong with volumes' attachments and with the drivers of a node."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, duplicate, invalid, required, too_long
from hekla.apiserver.validation import names

_LONGEST_DRIVER, _LONGEST_NODE_ID = 63, 256


def check_attachment(attachment: Document) -> list[FieldError]:
    """Which volume, to which node, by whom."""
    spec = attachment.get("spec", {})
    errors = _check_driver(spec.get("attacher", ""), "spec.attacher")
    node, source = spec.get("nodeName", ""), spec.get("source") or {}
    errors += [invalid("spec.nodeName", node, said) for said in names.dns_subdomain(node)]
    volume, path = source.get("persistentVolumeName"), "spec.source"
    if (volume is None) == (source.get("inlineVolumeSpec") is None):
        return [*errors, required(path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")]
    if volume is not None:
        path = f"{path}.persistentVolumeName"
        errors += [] if volume else [required(path, "must specify non empty persistentVolumeName")]
        errors += [invalid(path, volume, said) for said in names.dns_subdomain(volume)]
    return errors


def check_csi_node(node: Document) -> list[FieldError]:
    """The drivers that run on a node, each once."""
    errors, seen = list[FieldError](), set[str]()
    for index, driver in enumerate(node.get("spec", {}).get("drivers") or ()):
        path, name = f"spec.drivers[{index}]", driver.get("name", "")
        errors += _check_driver(name, f"{path}.name") + _check_node_driver(driver, path)
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
    return errors


def _check_node_driver(driver: Document, path: str) -> list[FieldError]:
    node_id, errors = driver.get("nodeID", ""), list[FieldError]()
    if not node_id:
        errors.append(required(f"{path}.nodeID"))
    elif len(node_id) > _LONGEST_NODE_ID:
        errors.append(invalid(f"{path}.nodeID", node_id, f"must be {_LONGEST_NODE_ID} characters or less"))
    seen = set[str]()
    for key in driver.get("topologyKeys") or ():
        errors += [] if key else [required(path)]
        errors += [duplicate(path, key)] if key in seen else [invalid(path, key, said) for said in names.qualified_name(key)]  # fmt: skip
        seen.add(key)
    count = (driver.get("allocatable") or {}).get("count", 0)
    if count < 0:
        errors.append(invalid(f"{path}.allocatable.count", count, "must be greater than or equal to 0"))
    return errors


def _check_driver(name: str, path: str) -> list[FieldError]:
    if not name:
        return [required(path)]
    errors = [too_long(path, _LONGEST_DRIVER)] if len(name) > _LONGEST_DRIVER else []
    return errors + [invalid(path, name, said) for said in names.dns_subdomain(name.lower())]
