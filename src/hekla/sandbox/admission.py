"""Who was just taken from a pool is not evicted as idle capacity: the embedded server's rule for it.

A claim is on disk before its pod is told, up to half a second later (`sandbox.py`), and until then the scheduler takes the pod for
idle. The Sandbox knows better, and it is looked at when the eviction arrives. On a cluster a scheduler's eviction within that time
goes through, as one does that was decided just before the claim.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from hekla.api.agents import Sandbox
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Operation, Reader
from hekla.apiserver.status import forbidden
from hekla.sandbox.owning import controller_of
from hekla.sandbox.sandbox_pod import is_protected


@dataclass(frozen=True)
class TakenSandboxes:
    """Refuses the scheduler's eviction of a pod whose Sandbox has an owner by now."""

    name: str = "TakenSandboxes"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Deletions of pods."""
        is_pod = request.kind.resource == "pods" and not request.subresource
        return request.operation is Operation.DELETE and is_pod

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is changed."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Refuse for as long as the pod does not say itself that it gives way to nobody."""
        if request.old is None or not _is_preempted(request.old):
            return
        pod = msgspec.convert(request.old, Pod)
        owner = controller_of(pod)
        if owner is None or owner.kind != Sandbox.kind_info.kind:
            return
        document = reader.get(Sandbox.kind_info.resource, request.namespace, owner.name)
        if (
            document is None
            or document["metadata"]["uid"] != owner.uid
            or document["metadata"].get("deletionTimestamp")
        ):
            return
        if not is_protected(msgspec.convert(document, Sandbox), pod):
            why = f"Sandbox {owner.name!r} has been taken from its pool and is no idle capacity any more; choose another victim"
            raise forbidden("pods", "", request.name, why)


def _is_preempted(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "DisruptionTarget" and one.get("reason") == "PreemptionByScheduler" for one in conditions)


ADMISSION_RULES: tuple[AdmissionRule, ...] = (TakenSandboxes(),)
"""The rules that are on."""
