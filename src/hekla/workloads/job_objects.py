"""The objects that a job's plug-ins want: made when the job starts, following it when it is scaled, gone when it has finished."""

from collections.abc import Iterator, Sequence

from hekla.api.core import ConfigMap
from hekla.kube.commands import Command, Create, Delete, Patch, target_of
from hekla.workloads.job_plugins.plugin import JobPlugin
from hekla.workloads.job_pods import owner_reference
from hekla.workloads.job_view import JobView


def ensure_objects(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Command]:
    """Create what is missing; bring ConfigMaps up to date. What has the name and another owner is left alone."""
    namespace = view.job.metadata.namespace
    for plugin in plugins:
        for kind, wanted in plugin.objects(view.job):
            name, info = wanted["metadata"]["name"], kind.kind_info
            found = view.world.get(kind, namespace, name)
            if found is None:
                metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner_reference(view.job)]}
                head = {"apiVersion": info.api_version, "kind": info.kind}
                yield Create(kind, {**head, **wanted, "metadata": metadata})
            elif isinstance(found, ConfigMap) and found.data != wanted["data"] and view.owns(found):
                yield Patch(target_of(found), {"data": wanted["data"]})


def delete_objects(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Command]:
    """Delete what was made for the job."""
    for plugin in plugins:
        for kind, wanted in plugin.objects(view.job):
            found = view.world.get(kind, view.job.metadata.namespace, wanted["metadata"]["name"])
            if found is not None and view.owns(found) and found.metadata.deletion_timestamp is None:
                yield Delete(target_of(found), reason="the job has finished")
