"""The claims of a job's volumes: made for it where it describes them, waited for where it names them."""

from collections.abc import Iterator

import msgspec

from hekla.api.core import PersistentVolumeClaim
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Patch, target_of
from hekla.workloads.job_pods import claim_name, owner_reference
from hekla.workloads.job_view import JobView


def ensure_claims(view: JobView) -> Iterator[Command]:
    """Create the claims that the job describes, and write their names into its spec as Volcano does."""
    for position, volume in enumerate(view.job.spec.volumes):
        if volume.volume_claim is not None and _claim(view, position) is None:
            yield Create(PersistentVolumeClaim, _new_claim(view, position, volume.volume_claim))
    if any(volume.volume_claim is not None and not volume.volume_claim_name for volume in view.job.spec.volumes):
        yield Patch(target_of(view.job), {"spec": {"volumes": _named_volumes(view)}})


def missing_claim(view: JobView) -> str:
    """A sentence on a claim that the job names and that does not exist; empty if all do."""
    for position, volume in enumerate(view.job.spec.volumes):
        if volume.volume_claim is None and _claim(view, position) is None:
            name = claim_name(view.job, position)
            return f"pvc {name} is not found, the job will be in the Pending state until the PVC is created"
    return ""


def claims(view: JobView) -> dict[str, str]:
    """The job's claims as its status lists them."""
    names = [claim_name(view.job, position) for position in range(len(view.job.spec.volumes))]
    return {f"volume-pvc-{name}": name for name in names}


def _claim(view: JobView, position: int) -> PersistentVolumeClaim | None:
    return view.world.get(PersistentVolumeClaim, view.job.metadata.namespace, claim_name(view.job, position))


def _new_claim(view: JobView, position: int, spec: Document) -> Document:
    metadata = {
        "name": claim_name(view.job, position),
        "namespace": view.job.metadata.namespace,
        "ownerReferences": [owner_reference(view.job)],
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _named_volumes(view: JobView) -> list[Document]:
    """All volumes with their claims' names: a merge patch replaces lists whole."""
    volumes = []
    for position, volume in enumerate(view.job.spec.volumes):
        document = {key: value for key, value in msgspec.to_builtins(volume).items() if value not in (None, "")}
        volumes.append(document | {"volumeClaimName": claim_name(view.job, position)})
    return volumes
