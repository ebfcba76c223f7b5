"""Who gives devices to a ResourceClaim, or takes them, needs a right of its own beside that to the claim's status.

Kubernetes 1.36 asks for `patch` or `update` of `resourceclaims/binding`, in the whole cluster, where a write changes
`status.allocation` or `status.reservedFor`: drivers report about devices through the same subresource, and may not allocate.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.auth.attributes import Attributes, Decision
from hekla.apiserver.fielderrors import forbidden_field, invalid_object

CLAIMS = "resourceclaims.resource.k8s.io"
VERBS = ("patch", "update")
GUARDED = ("allocation", "reservedFor")


class Rights(Protocol):
    """What the rule must know; `RbacAuthorizer` is one."""

    def decide(self, attributes: Attributes) -> Decision:
        """Whether a request is allowed."""


@dataclass(frozen=True)
class ClaimBinding:
    """Refuses to allocate devices without the right to."""

    rights: Rights
    name: str = "ClaimBinding"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Statuses of claims."""
        return request.kind.resource == CLAIMS and request.subresource == "status"

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is changed."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Look whether the write concerns devices, and if so whether its author may."""
        if _guarded(request.object) == _guarded(request.old):
            return
        info = request.kind
        if any(self._may(request, verb) for verb in VERBS):
            return
        said = (
            f'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", '
            f'verb="{VERBS[0]}" permission: {info.resource} is forbidden: User "{request.user.name}" cannot {VERBS[0]} '
            f'resource "resourceclaims/binding" in API group "{info.group}" at the cluster scope'
        )
        raise invalid_object(info, request.name, [forbidden_field("status.allocation", said)])

    def _may(self, request: AdmissionRequest, verb: str) -> bool:
        info = request.kind
        asked = Attributes(
            user=request.user,
            verb=verb,
            group=info.group,
            resource=info.plural,
            subresource="binding",
            name=request.name,
        )
        return self.rights.decide(asked).is_allowed


def _guarded(claim: Document | None) -> list[Any]:
    status = (claim or {}).get("status") or {}
    return [status.get(field) or None for field in GUARDED]
