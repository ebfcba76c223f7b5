"""Amounts by resource in base units (cpu in milli, memory in bytes, the rest counted), always whole numbers."""

from collections.abc import Iterable, Mapping

from hekla.lib import quantity

Amounts = Mapping[str, int]

PODS = "pods"
"""A pod counts as one of these; quotas do not bound it, as in Volcano."""


def told(resource: str, amount: int) -> str:
    """An amount of a resource, as Kubernetes would write it: `1500m` cpu, `4Gi` of memory, 8 GPUs."""
    if resource == "cpu":
        return quantity.from_milli(amount)
    is_bytes = resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-")
    return quantity.from_bytes(amount) if is_bytes else str(amount)


def added(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of amounts."""
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def bounded(asked: Amounts) -> Iterable[tuple[str, int]]:
    """What quotas look at: resources of which some is asked for, without `pods`."""
    return ((name, amount) for name, amount in asked.items() if amount > 0 and name != PODS)
