"""How much a pod asks for, by Kubernetes' arithmetic.

    request = max(containers + sidecars, the largest moment of the init phase) + overhead

Init containers run one after the other; a sidecar (an init container that restarts always) keeps running beside
those that follow. What the pod itself declares for a resource replaces the sum.
"""

from collections.abc import Callable, Iterable, Mapping

from hekla.api.containers import Container, ResourceRequirements
from hekla.api.pods import PodSpec
from hekla.lib import quantity

Amounts = dict[str, int]

USUAL = {"cpu": 100, "memory": 200 << 20}
"""What a container that does not say is counted as, where it is compared how full nodes are (kube-scheduler's non-zero request)."""


def pod_request(spec: PodSpec) -> Amounts:
    """Amounts by resource in base units: cpu in milli, memory in bytes, everything else counted."""
    return _whole(spec, requests)


def pod_unasked(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """What it is counted as beyond its request, as some of its containers say nothing of cpu or memory; to say 0 says something."""
    if all(USUAL.keys() <= requests(each.resources).keys() for each in (*spec.init_containers, *spec.containers)):
        return ()
    asked, counted = pod_request(spec), _whole(spec, lambda resources: USUAL | requests(resources))
    beyond = {name: counted[name] - asked.get(name, 0) for name in USUAL}
    return tuple((name, amount) for name, amount in beyond.items() if amount > 0)


def _whole(spec: PodSpec, requests_of: Callable[[ResourceRequirements | None], Amounts]) -> Amounts:
    running = _sum(requests_of(container.resources) for container in spec.containers)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        asked = requests_of(container.resources)
        if _is_sidecar(container):
            sidecars = _sum((sidecars, asked))
            peak = _max(peak, sidecars)
        else:
            peak = _max(peak, _sum((sidecars, asked)))
    total = _max(_sum((running, sidecars)), peak)
    if spec.resources is not None:
        total |= requests(spec.resources)
    return _sum((total, amounts(spec.overhead)))


def pod_limits(spec: PodSpec, request: Mapping[str, int]) -> Mapping[str, int]:
    """The most that a pod may use of cpu and memory, where that is more than it asks for: a sum, or its largest init."""
    running = _sum(_limits(container.resources) for container in spec.containers)
    for container in spec.init_containers:
        running = _max(running, _limits(container.resources))
    above = {name: most for name, most in running.items() if most > request.get(name, 0)}
    return above or _NO_LIMITS


_NO_LIMITS: Mapping[str, int] = {}


def _limits(resources: ResourceRequirements | None) -> Amounts:
    told = resources.limits if resources is not None else {}
    return amounts({name: told[name] for name in ("cpu", "memory") if name in told})


def requests(resources: ResourceRequirements | None) -> Amounts:
    """What is promised; where only a limit is given, the limit."""
    return amounts({**resources.limits, **resources.requests}) if resources is not None else {}


def amounts(quantities: Mapping[str, str] | Mapping[str, str | int | float]) -> Amounts:
    """Quantities as base units; raises `quantity.QuantityError`."""
    return {name: amount(name, text) for name, text in quantities.items()}


def amount(resource: str, written: str | int | float) -> int:
    """One quantity in the base unit of its resource; YAML may have made a number of it. None is negative."""
    text = str(written)
    units = quantity.to_milli(text) if resource == "cpu" else quantity.to_int(text)
    if units < 0:
        raise quantity.QuantityError(f"{resource} is {text}, which is less than nothing")
    return units


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def _max(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}
