"""A namespace's quotas hold: what would exceed one is refused, with the numbers.

The usage is summed from the objects themselves at the moment of the write, and nothing is awaited between the sum and
the write, so two requests cannot both take the last place. (Kubernetes keeps the sum in the quota's status and retries
on conflicts.) The price is one pass over a namespace's objects per write, paid only where a quota names them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.quota_usage import ZERO, Usage, in_scope, total, usage_of
from hekla.apiserver.status import forbidden
from hekla.lib.quantity import Quantity, parse

_ASKED_OF_EVERY_CONTAINER = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True)
class ResourceQuotaRule:
    """Refuses what exceeds a quota, and pods that leave a limited resource unsaid."""

    name: str = "ResourceQuota"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Creations in a namespace, and growing updates of what has a size."""
        if not request.kind.is_namespaced or request.subresource:
            return False
        if request.operation is Operation.CREATE:
            return True
        return request.operation is Operation.UPDATE and request.kind.resource in {"services", "persistentvolumeclaims"}

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is changed."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Check every quota of the namespace."""
        quotas = reader.list("resourcequotas", request.namespace)
        if not quotas:
            return
        resource = request.kind.resource
        assert request.object is not None
        wanted = _growth(usage_of(resource, request.object), usage_of(resource, request.old) if request.old else {})
        for quota in quotas:
            if in_scope(quota, resource, request.object):
                self._check(request, reader, quota, wanted)

    def _check(self, request: AdmissionRequest, reader: Reader, quota: Document, wanted: Usage) -> None:
        hard = {name: parse(text) for name, text in (quota["spec"].get("hard") or {}).items()}
        name, resource = quota["metadata"]["name"], request.kind.resource
        assert request.object is not None
        if resource == "pods":
            missing = _unsaid(request.object["spec"], hard)
            if missing:
                why = f"failed quota: {name}: must specify {'; '.join(missing)}"
                raise forbidden("pods", "", request.name, why)
        asked = {key: amount for key, amount in wanted.items() if key in hard and amount.value > 0}
        if not asked:
            return
        documents = reader.list(resource, request.namespace)
        used = total(usage_of(resource, one) for one in documents if in_scope(quota, resource, one))
        over = sorted(key for key in asked if used.get(key, ZERO).value + asked[key].value > hard[key].value)
        if over:
            why = (
                f"exceeded quota: {name}, requested: {_listed(over, asked)}, "
                f"used: {_listed(over, used)}, limited: {_listed(over, hard)}"
            )
            raise forbidden(request.kind.plural, request.kind.group, request.name, why)


def _growth(new: Usage, old: Usage) -> Usage:
    return {key: Quantity(amount.value - old.get(key, ZERO).value, amount.form) for key, amount in new.items()}


def _listed(names: Iterable[str], amounts: Usage) -> str:
    return ",".join(f"{name}={amounts.get(name, Quantity(Fraction(0), ZERO.form))}" for name in names)


def _unsaid(spec: Document, hard: Usage) -> list[str]:
    """`requests.cpu for: a,b` for every limited resource that some container does not state."""
    missing = []
    containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
    for limited in sorted(hard):
        prefix, _, name = limited.rpartition(".")
        if name not in _ASKED_OF_EVERY_CONTAINER or prefix not in ("", "requests", "limits"):
            continue
        which = "limits" if prefix == "limits" else "requests"
        silent = [c["name"] for c in containers if name not in ((c.get("resources") or {}).get(which) or {})]
        if silent:
            missing.append(f"{limited} for: {','.join(sorted(silent))}")
    return missing
