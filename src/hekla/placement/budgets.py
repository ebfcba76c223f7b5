"""What bounds others than queues set: disruption budgets, and the quotas of namespaces."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hekla.placement.constraint import PodSelector


@dataclass(frozen=True, kw_only=True)
class DisruptionBudget:
    """How many pods that a selector selects may be evicted at present (a PodDisruptionBudget)."""

    name: str
    namespace: str
    selector: PodSelector
    allowed: int = 0
    revision: str = ""
    """Changes with every report: what was evicted before the last one is counted in it."""


@dataclass(frozen=True, kw_only=True)
class NamespaceQuota:
    """What a namespace may use of things, by the names that quotas have for them: `requests.cpu`, `pods`."""

    name: str
    hard: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
