"""What a pod of a template will ask for, by Kubernetes' arithmetic, as the quantities that the template is written in.

    request = max(containers + sidecars, the largest moment of the init phase) + overhead

What the pod itself declares for a resource replaces the sum. A template is no pod yet: the API server has filled in
nothing, and amounts may still be numbers. The scheduler adds up pods (`dialects/pod_requests.py`), in base units.
"""

from hekla.api.meta import Document
from hekla.lib import quantity
from hekla.lib.quantity import Quantity

Amounts = dict[str, Quantity]


def request_of(spec: Document) -> Amounts:
    """What a pod with this spec asks for, by resource."""
    running: Amounts = {}
    for container in spec.get("containers") or ():
        running = _sum(running, _asked(container))
    sidecars, peak = _init_phase(spec)
    total = _max(_sum(running, sidecars), peak)
    own = spec.get("resources") or {}
    limits, requests = _amounts(own.get("limits")), _amounts(own.get("requests"))
    # A pod's own limit is its request where no container names the resource, else what they ask for together.
    total = {**total, **{name: most for name, most in limits.items() if name not in total}, **requests}
    return _sum(total, _amounts(spec.get("overhead")))


def _init_phase(spec: Document) -> tuple[Amounts, Amounts]:
    """What the sidecars ask for together, and the largest moment before the containers start."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, _asked(container))
            peak = _max(peak, sidecars)
        else:
            peak = _max(peak, _sum(sidecars, _asked(container)))
    return sidecars, peak


def _asked(container: Document) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request is a request.
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _amounts(found: Document | None) -> Amounts:
    return {
        name: quantity.parse(amount if isinstance(amount, int) else str(amount))
        for name, amount in (found or {}).items()
    }


def _sum(one: Amounts, other: Amounts) -> Amounts:
    if not other:
        return one
    total = dict(one)
    for name, amount in other.items():
        before = total.get(name)
        total[name] = Quantity(before.value + amount.value, before.form) if before else amount
    return total


def _max(one: Amounts, other: Amounts) -> Amounts:
    both = {**other, **one}
    return {name: max(amount, other.get(name, amount), key=lambda each: each.value) for name, amount in both.items()}
