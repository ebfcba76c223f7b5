"""Keeps the cluster's own pods from being evicted: those of kube-system, and those of the system's priority classes.

It is a shield: what it keeps is kept in every tier (`eviction/eligibility.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.placement.framework import plugin
from hekla.placement.model import Task
from hekla.placement.session import Session

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000
"""Where the priorities of system-cluster-critical and system-node-critical begin."""


@plugin
@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Protects system pods."""

    is_shield = True

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """All but the cluster's own."""
        return [victim for victim in victims if may_evict(victim)]

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """All but the cluster's own."""
        return self.preemptable(session, task, victims)


def may_evict(task: Task) -> bool:
    """Whether a pod may be asked to leave for another."""
    return task.spec.namespace != SYSTEM_NAMESPACE and task.spec.priority < SYSTEM_PRIORITY
