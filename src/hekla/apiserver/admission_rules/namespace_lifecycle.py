"""Objects are created only in a namespace that exists and is not going; some namespaces never go."""

from dataclasses import dataclass
from typing import ClassVar

from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.status import StatusError, forbidden, not_found

IMMORTAL = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


@dataclass(frozen=True)
class NamespaceLifecycle:
    """Refuses what the life of a namespace forbids."""

    name: str = "NamespaceLifecycle"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Creations in a namespace, and deletions of one."""
        if request.operation is Operation.CREATE:
            return request.kind.is_namespaced
        return request.operation is Operation.DELETE and request.kind.resource == "namespaces"

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Refuse early, before other rules look the namespace's objects up."""
        if request.operation is Operation.DELETE:
            self._protect(request)
            return
        namespace = reader.get("namespaces", "", request.namespace)
        if namespace is None:
            raise not_found("namespaces", "", request.namespace)
        if (namespace.get("status") or {}).get("phase") == "Terminating" and not _may_enter_late(request):
            raise _terminating(request)

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""

    def _protect(self, request: AdmissionRequest) -> None:
        if request.name in IMMORTAL:
            raise forbidden("namespaces", "", request.name, "this namespace may not be deleted")


def _may_enter_late(request: AdmissionRequest) -> bool:
    # what helps the namespace to end: reviews of access, and events about it
    return request.kind.group in {"authorization.k8s.io", "authentication.k8s.io"}


def _terminating(request: AdmissionRequest) -> StatusError:
    namespace = request.namespace
    error = forbidden(
        request.kind.plural,
        request.kind.group,
        request.name,
        f"unable to create new content in namespace {namespace} because it is being terminated",
    )
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    assert error.details is not None
    error.details["causes"] = [cause]
    return error
