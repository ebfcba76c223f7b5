"""Keeps evictions within the disruption budgets of pods.

preempt and reclaim keep to budgets anyway, unless `heedDisruptionBudgets: false` is among their arguments; where this
plug-in is configured they keep to them in any case. (Volcano keeps to them only where it is.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.placement.eviction.eligibility import within_budgets
from hekla.placement.framework import plugin
from hekla.placement.model import Task
from hekla.placement.session import Session


@plugin
@dataclass(frozen=True, kw_only=True)
class Pdb:
    """Counts what budgets allow."""

    is_shield = True

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those that their budgets let go, one after the other."""
        return within_budgets(session.cluster, victims)

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those that their budgets let go, one after the other."""
        return within_budgets(session.cluster, victims)
