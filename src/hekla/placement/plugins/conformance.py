"""Keeps the cluster's own pods from being evicted.

Evicting actions (preempt, reclaim) ask it; the first form of the scheduler has none, so for now it only holds its
place in configuration files.
"""

from dataclasses import dataclass

from hekla.placement.framework import plugin
from hekla.placement.model import Task

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000
"""Where the priorities of system-cluster-critical and system-node-critical begin."""


@plugin
@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Protects system pods."""

    def may_evict(self, task: Task) -> bool:
        """Whether a pod may be asked to leave for another."""
        return task.spec.namespace != SYSTEM_NAMESPACE and task.spec.priority < SYSTEM_PRIORITY
