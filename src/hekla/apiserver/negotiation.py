"""What the caller wants to read, and what it has sent: Accept and Content-Type.

Protobuf is offered by Kubernetes and asked for first by Go clients; they list JSON behind it, and JSON is what they get.
"""

from functools import lru_cache
from typing import NamedTuple

from hekla.apiserver.status import StatusError, not_acceptable, unsupported_media

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
OFFERED = (JSON, YAML, PROTOBUF)
"""What Kubernetes lists in its refusals; the sentence is matched on by clients."""

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Wanted(NamedTuple):
    """The representation that was agreed on."""

    media_type: str = JSON
    shape: str = ""
    """`Table`, `PartialObjectMetadata`, `PartialObjectMetadataList`, `APIGroupDiscoveryList`; empty: the object itself."""

    version: str = ""
    group: str = ""


PLAIN = Wanted()
SHAPES = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})


def wanted(accept: str) -> Wanted:
    """The first thing on the Accept list that can be made; raises 406 if there is none."""
    found = agreed(accept)
    if found is None:
        raise not_acceptable(OFFERED)
    return found


@lru_cache(maxsize=256)
def agreed(accept: str) -> Wanted | None:
    """The same; None where there is nothing that can be made."""
    if not accept:
        return PLAIN
    for clause in accept.split(","):
        media_type, parameters = _parsed(clause)
        if media_type in {"*/*", "application/*"}:
            media_type = JSON
        if media_type not in {JSON, YAML, "text/yaml"}:
            continue
        shape = parameters.get("as", "")
        if shape and not _is_known_shape(shape, parameters):
            continue
        return Wanted(YAML if media_type != JSON else JSON, shape, parameters.get("v", ""), parameters.get("g", ""))
    return None


def _is_known_shape(shape: str, parameters: dict[str, str]) -> bool:
    if shape in SHAPES:
        return parameters.get("v", "v1") in {"v1", "v1beta1"}
    return shape == "APIGroupDiscoveryList" and parameters.get("v") in {"v2", "v2beta1"}


def _parsed(clause: str) -> tuple[str, dict[str, str]]:
    media_type, *rest = (part.strip() for part in clause.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media_type.lower(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def media_type_of(content_type: str) -> str:
    """A Content-Type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def document_type(content_type: str) -> str:
    """The Content-Type of a whole object; none means JSON. Raises 415."""
    media_type = media_type_of(content_type) or JSON
    if media_type in {YAML, "text/yaml", "application/x-yaml"}:
        return YAML
    if media_type != JSON:
        raise unsupported_media(OFFERED)
    return media_type


def patch_type(content_type: str, *, has_strategic: bool) -> str:
    """The Content-Type of a patch. Raises 415 in the words that Kubernetes has for each case."""
    media_type = media_type_of(content_type)
    known = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
    if media_type not in known:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    if media_type == STRATEGIC_PATCH and not has_strategic:
        raise unsupported_media([JSON_PATCH, MERGE_PATCH, APPLY_PATCH])
    return media_type
