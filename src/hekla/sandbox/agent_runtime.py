"""Reconciles AgentRuntimes: whether sessions of theirs can start, and if not, why. The sessions make the Sandboxes."""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.agents import AgentRuntime
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.sandbox.agentcube_checks import runtime_trouble
from hekla.sandbox.observing import Observation, as_documents, conditions


@reconciler(AgentRuntime)
def reconcile_agent_runtime(one: AgentRuntime, world: World, now: datetime) -> Iterator[Command]:
    """Say whether the runtime is accepted."""
    if one.metadata.deletion_timestamp is not None:
        return
    trouble = runtime_trouble(one)
    observation = (
        Observation("Accepted", False, "Invalid", trouble)
        if trouble
        else Observation("Accepted", True, "Accepted", "Sessions can be asked for")
    )
    told = conditions(one.status.conditions, [observation], one.metadata.generation, now)
    if as_documents(one.status.conditions) != told:
        yield SetStatus(target_of(one), {"conditions": told})
