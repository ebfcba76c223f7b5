"""A node takes no pods before it has said that it is ready."""

from dataclasses import dataclass
from typing import ClassVar

from hekla.apiserver.admission import AdmissionRequest, Operation, Reader

NOT_READY = "node.kubernetes.io/not-ready"


@dataclass(frozen=True)
class TaintNewNodes:
    """Taints every new node; the node life-cycle controller takes the taint away when the node is ready."""

    name: str = "TaintNodesByCondition"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New nodes."""
        return request.operation is Operation.CREATE and request.kind.resource == "nodes" and not request.subresource

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Add the taint, once."""
        if request.object is None:
            return
        spec = request.object.setdefault("spec", {})
        taints = spec.get("taints") or []
        if not any(taint.get("key") == NOT_READY and taint.get("effect") == "NoSchedule" for taint in taints):
            spec["taints"] = [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is refused."""
