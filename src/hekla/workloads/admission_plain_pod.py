"""Tells a plain pod, as it is made, which PodGroup it will belong to, so that the scheduler waits for the whole gang.

Only pods of a gang are marked (`plain_gang.py` says which); all others are scheduled at once, without a PodGroup.
"""

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.workloads import keys
from hekla.workloads.ours import Ours
from hekla.workloads.plain_gang import (
    OWNERS,
    asks_for_gang,
    controller_of,
    gang_by_labels,
    gang_of_owner,
    group_of,
    notes_of,
)


def group_plain_pod(request: AdmissionRequest, reader: Reader, ours: Ours) -> None:
    """Write the name of its group on a pod that belongs to a gang and names none."""
    pod = request.object or {}
    if pod.get("spec", {}).get("schedulerName") not in ours.schedulers or group_of(notes_of(pod)):
        return
    name = _group_name(pod, request.namespace, reader)
    if name:
        metadata = pod["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), keys.GROUP_NAME: name}


def _group_name(pod: Document, namespace: str, reader: Reader) -> str:
    metadata = pod.get("metadata", {})
    gang = gang_by_labels(metadata.get("labels") or {})
    if gang is not None:
        return gang.name
    owner = controller_of(metadata)
    kind = OWNERS.get((owner.get("apiVersion", ""), owner.get("kind", ""))) if owner is not None else None
    if owner is None or kind is None:
        return ""
    found = reader.get(kind.kind_info.resource, namespace, owner.get("name", ""))
    if found is None or found["metadata"].get("uid") != owner.get("uid"):
        return ""  # the controller, which is told of everything in the end, marks the pod if it has to be
    return gang_of_owner(owner["uid"]) if asks_for_gang(notes_of(found), notes_of(pod)) else ""
