"""Jobs made from templates: by CronJobs and JobFlows. What a template does not say is left for admission to fill in."""

from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from hekla.api.meta import Document, Resource
from hekla.api.volcano import Job
from hekla.api.volcano.batch import JobPhase as Phase

SUCCEEDED = frozenset({Phase.COMPLETED})
FAILED = frozenset({Phase.FAILED, Phase.TERMINATED})
"""Phases that a job never leaves. One that was aborted may be resumed, so it is not among them."""


def job_from(
    owner: Resource, name: str, spec: Document, *, labels: dict[str, str], annotations: dict[str, str]
) -> Document:
    """The document of a job that `owner` controls."""
    info, own = Job.kind_info, type(owner).kind_info
    reference = {
        "apiVersion": own.api_version, "kind": own.kind, "name": owner.metadata.name, "uid": owner.metadata.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    metadata: Document = {
        "name": name, "namespace": owner.metadata.namespace, "labels": labels, "annotations": annotations,
        "ownerReferences": [reference],
    }  # fmt: skip
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}


def said(value: Any) -> Any:
    """A typed value as the document it came from: without the fields that have their default."""
    if isinstance(value, Struct):
        fields = msgspec.structs.fields(value)
        return {one.encode_name: said(getattr(value, one.name)) for one in fields if not _is_default(value, one)}
    if isinstance(value, list):
        return [said(one) for one in value]
    if isinstance(value, dict):
        return {key: said(one) for key, one in value.items()}
    return msgspec.to_builtins(value)


def _is_default(value: Struct, field: Any) -> bool:
    given = getattr(value, field.name)
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return bool(given == default)
