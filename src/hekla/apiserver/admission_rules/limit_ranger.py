"""A namespace's LimitRanges hold: containers get the defaults, and what lies outside the limits is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.defaulting_pods import qos_class
from hekla.apiserver.quota_usage import pod_amounts
from hekla.apiserver.status import forbidden
from hekla.lib.quantity import Quantity, parse

ANNOTATION = "kubernetes.io/limit-ranger"
_LISTS = (("containers", "container"), ("initContainers", "init container"))


@dataclass(frozen=True)
class LimitRanger:
    """Applies LimitRanges to new pods and claims."""

    name: str = "LimitRanger"
    is_by_kind: ClassVar[bool] = True
    goes_by_template: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New pods and claims."""
        is_limited = request.kind.resource in {"pods", "persistentvolumeclaims"}
        return is_limited and request.operation is Operation.CREATE and not request.subresource

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Give containers what they leave unsaid."""
        assert request.object is not None
        if request.kind.resource != "pods":
            return
        pod = request.object
        defaults = list(_limits(reader, request.namespace, "Container"))
        said = [
            one
            for key, word in _LISTS
            for container in pod["spec"].get(key, ())
            for one in _given(container, word, defaults)
        ]
        if said:
            metadata = pod["metadata"]
            told = f"LimitRanger plugin set: {'; '.join(said)}"
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: told}
            # who goes first when a node runs out of memory is a matter of what the pod asks for now
            pod.setdefault("status", {})["qosClass"] = qos_class(pod["spec"])

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Refuse what is too small, too large, or whose limit is too many times its request."""
        assert request.object is not None
        errors = list(self._errors(request, reader))
        if errors:
            why = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
            raise forbidden(request.kind.plural, "", request.name, why)

    def _errors(self, request: AdmissionRequest, reader: Reader) -> Iterator[str]:
        assert request.object is not None
        spec = request.object["spec"]
        if request.kind.resource == "persistentvolumeclaims":
            requests = _parsed((spec.get("resources") or {}).get("requests"))
            for limit in _limits(reader, request.namespace, "PersistentVolumeClaim"):
                yield from _outside(limit, "PersistentVolumeClaim", requests, requests)
            return
        for limit in _limits(reader, request.namespace, "Container"):
            for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
                resources = container.get("resources") or {}
                yield from _outside(
                    limit, "Container", _parsed(resources.get("requests")), _parsed(resources.get("limits"))
                )
        for limit in _limits(reader, request.namespace, "Pod"):
            yield from _outside(limit, "Pod", pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))


def _limits(reader: Reader, namespace: str, kind: str) -> Iterator[Document]:
    for limit_range in reader.list("limitranges", namespace):
        for limit in limit_range["spec"].get("limits", ()):
            if limit["type"] == kind:
                yield limit


def _given(container: Document, word: str, defaults: list[Document]) -> Iterator[str]:
    """Fill a container in; tells what it was given, as Kubernetes writes it into an annotation."""
    before = container.get("resources", {})
    known = {key: set(before.get(key, ())) for key in ("requests", "limits")}
    for limit in defaults:
        _set_defaults(container, limit)
    for key in ("requests", "limits"):
        given = sorted(set(container.get("resources", {}).get(key, ())) - known[key])
        if given:
            yield f"{', '.join(given)} {key[:-1]} for {word} {container.get('name', '')}"


def _set_defaults(container: Document, limit: Document) -> None:
    limits, requests = limit.get("default") or {}, limit.get("defaultRequest") or {}
    if not limits and not requests:
        return
    resources = container.setdefault("resources", {})
    # what the user wrote as a limit only has become a request before; a default never overrides either
    for key, defaults in (("limits", limits), ("requests", requests)):
        if defaults:
            resources[key] = {**defaults, **resources.get(key, {})}


def _outside(limit: Document, kind: str, requests: dict[str, Quantity], limits: dict[str, Quantity]) -> Iterator[str]:
    for name, text in sorted((limit.get("min") or {}).items()):
        asked = requests.get(name)
        if asked is None:
            yield f"minimum {name} usage per {kind} is {text}.  No request is specified"
        elif asked.value < parse(text).value:
            yield f"minimum {name} usage per {kind} is {text}, but request is {asked}"
    for name, text in sorted((limit.get("max") or {}).items()):
        allowed = limits.get(name)
        if allowed is None:
            yield f"maximum {name} usage per {kind} is {text}.  No limit is specified"
        elif allowed.value > parse(text).value:
            word = "request" if kind == "PersistentVolumeClaim" else "limit"
            yield f"maximum {name} usage per {kind} is {text}, but {word} is {allowed}"
    yield from _ratios(limit, kind, requests, limits)


def _ratios(limit: Document, kind: str, requests: dict[str, Quantity], limits: dict[str, Quantity]) -> Iterator[str]:
    for name, text in sorted((limit.get("maxLimitRequestRatio") or {}).items()):
        asked, allowed = requests.get(name), limits.get(name)
        if asked is None or allowed is None or not asked.value:
            yield f"{name} max limit to request ratio per {kind} is {text}, but no request is specified or request is 0"
        elif allowed.value / asked.value > parse(text).value:
            ratio = float(allowed.value / asked.value)
            yield f"{name} max limit to request ratio per {kind} is {text}, but provided ratio is {ratio:f}"


def _parsed(amounts: dict[str, str] | None) -> dict[str, Quantity]:
    return {name: parse(text) for name, text in (amounts or {}).items()}
