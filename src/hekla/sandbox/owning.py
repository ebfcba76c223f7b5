"""Names and hashes that tie Sandboxes to what they own and to what owns them; agent-sandbox computes the same ones."""

from hekla.api.meta import Document, OwnerReference, Resource

_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619


def name_hash(name: str) -> str:
    """FNV-1a over 32 bits, as eight hex digits: what labels carry in place of a name, which may be too long for them."""
    number = _FNV_OFFSET
    for byte in name.encode():
        number = (number ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"{number:08x}"


def owner_reference(owner: Resource) -> Document:
    """How an object names its controller."""
    info = owner.kind_info
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Resource) -> OwnerReference | None:
    """Whose the object is, if anybody's."""
    return next((owner for owner in obj.metadata.owner_references if owner.controller), None)


def is_controlled_by(obj: Resource, owner: Resource) -> bool:
    """Whether `owner` is the controller of an object."""
    return any(one.controller and one.uid == owner.metadata.uid for one in obj.metadata.owner_references)


def is_reserved(key: str) -> bool:
    """Whether a label or annotation is the controllers' own, and none that people may set on pods."""
    return key.startswith(("agents.x-k8s.io/", "extensions.agents.x-k8s.io/"))
