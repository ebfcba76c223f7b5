"""Reconciles AgentRuntimes: whether sessions of theirs can start, and if not, why. The sessions make the Sandboxes."""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.agents import AgentRuntime, names
from hekla.api.agents.egress import trouble_of
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.sandbox.observing import Observation, as_documents, conditions


@reconciler(AgentRuntime)
def reconcile_agent_runtime(one: AgentRuntime, world: World, now: datetime) -> Iterator[Command]:
    """Say whether the runtime is accepted."""
    if one.metadata.deletion_timestamp is not None:
        return
    trouble = _trouble(one)
    observation = (
        Observation("Accepted", False, "Invalid", trouble)
        if trouble
        else Observation("Accepted", True, "Accepted", "Sessions can be asked for")
    )
    told = conditions(one.status.conditions, [observation], one.metadata.generation, now)
    if as_documents(one.status.conditions) != told:
        yield SetStatus(target_of(one), {"conditions": told})


def _trouble(one: AgentRuntime) -> str:
    if not one.spec.pod_template.spec.get("containers"):
        return "spec.podTemplate.spec.containers is empty: an agent needs a container"
    if not one.spec.target_ports:
        return "spec.targetPort is empty: requests need a port to go to"
    if wrong := trouble_of(one.metadata.annotations.get(names.EGRESS, "")):
        return f"annotation {names.EGRESS}: {wrong}"
    return ""
