"""The objects that a job's plug-ins want: made when the job starts, following it when it is scaled, gone when it has finished.

Of Secrets only the metadata is read: nobody here has to know keys. What part of one follows the job is told apart by
its digest in an annotation.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

from hekla.api.core import ConfigMap, Secret
from hekla.api.meta import Document, Resource
from hekla.kube.commands import Command, Create, Delete, Patch, target_of
from hekla.kube.metadata_kinds import metadata_only
from hekla.workloads import keys
from hekla.workloads.job_plugins.plugin import JobPlugin, Owned
from hekla.workloads.job_pods import owner_reference
from hekla.workloads.job_view import JobView

SecretHead = metadata_only(Secret.kind_info)
"""Secrets as they are read here."""


def ensure_objects(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Command]:
    """Create what is missing; bring ConfigMaps and Secrets up to date. What has the name and another owner is left alone."""
    for plugin in plugins:
        for wanted in plugin.objects(view.job):
            found = _found(view, wanted)
            if found is None:
                yield Create(wanted.kind, _whole(view, wanted), filled_by=wanted.filled_by)
            elif view.owns(found) and not _is_up_to_date(found, wanted):
                yield Patch(target_of(found), _change(wanted))


def delete_objects(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Command]:
    """Delete what was made for the job."""
    for plugin in plugins:
        for wanted in plugin.objects(view.job):
            found = _found(view, wanted)
            if found is not None and view.owns(found) and found.metadata.deletion_timestamp is None:
                yield Delete(target_of(found), reason="the job has finished")


def _found(view: JobView, wanted: Owned) -> Resource | None:
    kind = SecretHead if wanted.kind is Secret else wanted.kind
    return view.world.get(kind, view.job.metadata.namespace, wanted.document["metadata"]["name"])


def _whole(view: JobView, wanted: Owned) -> Document:
    info = wanted.kind.kind_info
    metadata: Document = {
        "name": wanted.document["metadata"]["name"], "namespace": view.job.metadata.namespace,
        "ownerReferences": [owner_reference(view.job)],
    }  # fmt: skip
    if wanted.kind is Secret:
        metadata["annotations"] = {keys.CONTENT_DIGEST: _digest(wanted.document["data"])}
    return {"apiVersion": info.api_version, "kind": info.kind, **wanted.document, "metadata": metadata}


def _is_up_to_date(found: Resource, wanted: Owned) -> bool:
    if isinstance(found, ConfigMap):
        return bool(found.data == wanted.document["data"])
    if wanted.kind is Secret:
        return found.metadata.annotations.get(keys.CONTENT_DIGEST) == _digest(wanted.document["data"])
    return True


def _change(wanted: Owned) -> Document:
    data = wanted.document["data"]
    if wanted.kind is Secret:
        return {"metadata": {"annotations": {keys.CONTENT_DIGEST: _digest(data)}}, "data": data}
    return {"data": data}


def _digest(data: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
