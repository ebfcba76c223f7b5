"""Objects as documents for the test worlds: what kind they are, and how a merge patch changes them."""

from typing import Any

import msgspec

from hekla.api.meta import KINDS, Document, Kind, Resource


def kind_named(api_version: str, kind: str) -> Kind:
    """The declared kind of a document."""
    group, _, version = api_version.rpartition("/")
    for cls in KINDS.values():
        info = cls.kind_info
        if (info.group, info.version, info.kind) == (group, version, kind):
            return info
    raise KeyError(f"no kind {kind!r} of {api_version!r} is declared; import the module of hekla.api that declares it")


def as_document(obj: Resource | Document) -> tuple[Kind, Document]:
    """A deep copy of an object as a document, and its kind."""
    if isinstance(obj, Resource):
        info = type(obj).kind_info
        document = msgspec.json.decode(msgspec.json.encode(obj))
        return info, _without_unset({**document, "apiVersion": info.api_version, "kind": info.kind})
    return kind_named(obj["apiVersion"], obj["kind"]), msgspec.json.decode(msgspec.json.encode(obj))


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: what a merge patch makes of a value."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _without_unset(value: Any) -> Any:
    """A typed object names every field; a document only those that say something."""
    if isinstance(value, dict):
        cleaned = {key: _without_unset(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, "", {}, [])}
    if isinstance(value, list):
        return [_without_unset(item) for item in value]
    return value
