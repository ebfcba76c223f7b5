"""One entry of a tier: the plug-in built from its arguments, without the extension points that are switched off."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from hekla.placement.framework import PLUGINS
from hekla.placement.registry import build_plugin

VOLCANO_PLUGINS = frozenset({
    "priority", "gang", "conformance", "drf", "proportion", "capacity", "overcommit", "sla", "resourcequota",
    "predicates", "nodeorder", "binpack", "resource-strategy-fit", "network-topology-aware", "nodegroup", "numa-aware",
    "deviceshare", "task-topology", "tdm", "usage", "rescheduling", "cdp", "pdb", "extender",
})  # fmt: skip
"""What Volcano knows: a name of these that nobody has built here is no mistake."""

VOLCANO_ARGUMENTS = {
    "capacity": frozenset({"capacity.DRAConsumableCapacityEnable"}),
    "predicates": frozenset({
        "predicate.CacheEnable", "predicate.DynamicResourceAllocationEnable", "volumebinding.bindTimeoutSeconds",
        "dynamicresources.filterTimeoutSeconds",
    }),
}  # fmt: skip
"""What Volcano's plug-ins can be told and ours have no use for (yet): such a line is no mistake either."""

FLAGS = (
    "enableJobOrder", "enableHierarchy", "enableJobReady", "enableJobPipelined", "enableTaskOrder", "enablePreemptable",
    "enableReclaimable", "enablePreemptive", "enableQueueOrder", "enabledClusterOrder", "enablePredicate",
    "enableBestNode", "enableNodeOrder", "enableTargetJob", "enableReservedNodes", "enableJobEnqueued", "enabledVictim",
    "enableJobStarving", "enabledOverused", "enabledAllocatable", "enabledHyperNodeOrder", "enabledSubJobReady",
    "enabledSubJobPipelined", "enabledSubJobOrder", "enabledHyperNodeGradient",
)  # fmt: skip
"""Volcano's switches, in its spelling."""

SWITCHED_ON = frozenset(flag.removeprefix("enabled").removeprefix("enable") for flag in FLAGS)
"""The same without the prefix, which people mix up."""

CANNOT_BE_SWITCHED_OFF = {
    "BestNode": "no plug-in picks a node by itself, here as in Volcano; the sum of all scores does (enableNodeOrder)",
    "SubJobReady": "sub-groups are counted where gang says whether a job is ready; enableJobReady switches both",
    "SubJobPipelined": "sub-groups are counted where gang says what promises make whole; enableJobPipelined switches both",
    "SubJobOrder": "sub-groups that the minimum needs go first, then by policy and name; no plug-in has a say in it",
    "HyperNodeGradient": "the search itself tries the domains that the PodGroup allows, whatever plug-ins there are",
}  # fmt: skip
"""Switches of extension points that are none here, and why; on is what happens anyway."""

NO_EFFECT = {
    "ClusterOrder": "there is one cluster to place in, so there is no order of clusters",
    "TargetJob": "no plug-in picks a target job, here as in Volcano, which dropped the action elect; "
    "plug-in reservation keeps room for large jobs",
    "ReservedNodes": "no plug-in reserves whole nodes, here as in Volcano, which dropped the action reserve; "
    "plug-in reservation keeps room for large jobs",
}  # fmt: skip
"""Switches of extension points that nobody has, so that neither on nor off does anything, and what does it instead."""

_POINTS = {
    "JobOrder": ("job_key",), "TaskOrder": ("task_key",), "QueueOrder": ("queue_key",), "JobReady": ("is_ready",),
    "JobPipelined": ("is_pipelined",), "JobStarving": ("is_starving",),
    "Predicate": ("refuse", "refuse_live"), "NodeOrder": ("score", "score_live", "score_among", "score_near", "score_rows"),
    "Overused": ("is_overused",), "HyperNodeOrder": ("score_domains",),
    "Allocatable": ("allowance",), "JobEnqueued": ("may_enqueue",), "Preemptable": ("preemptable",),
    "Reclaimable": ("reclaimable",), "Preemptive": ("why_not_preemptive",), "Victim": ("victims",),
}  # fmt: skip
"""The methods that a flag of Volcano's switches off; the others switch what is not built yet."""


def built(name: str, arguments: Mapping[str, Any]) -> tuple[object, frozenset[str] | None]:
    """A plug-in, and the arguments that it knows; None if it looks at whatever it is given. Raises ArgumentError."""
    cls: Any = PLUGINS[name]
    if getattr(cls, "from_arguments", None) is None:
        names = [one.name for one in fields(cls)]
        known = {
            f"{prefix}{text}" for one in names for text in (one, one.replace("_", "-")) for prefix in ("", f"{name}.")
        }
        return build_plugin(name, arguments), frozenset(known)
    given = _Watched(arguments)
    plugin = build_plugin(name, given)
    if given.is_walked and not hasattr(cls, "argument_prefixes"):
        return plugin, None
    # Who walks for prefixes reads only what has one of them.
    return plugin, frozenset(given.asked)


class _Watched(Mapping[str, Any]):
    """Arguments that note which of them are asked for: what a plug-in never asks for has no effect."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self.asked: set[str] = set()
        self.is_walked = False

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self._arguments[key]

    def __iter__(self) -> Iterator[str]:
        self.is_walked = True
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)


def switched(plugin: object, switches: Mapping[str, bool]) -> object:
    """The plug-in without the extension points that are switched off."""
    off = {method for name, on in switches.items() if not on for method in _POINTS.get(name, ())}
    return _muted(plugin, frozenset(off)) if off else plugin


def _muted(plugin: object, off: frozenset[str]) -> object:
    """A plug-in some of whose extension points do not answer.

    The others are attributes of the object itself: since Python 3.12 `isinstance` of a protocol looks for methods
    without calling `__getattr__`, so that a proxy which only forwards would answer at no extension point at all.
    """
    kept = [name for name in dir(plugin) if name not in off and not (name.startswith("__") and name.endswith("__"))]
    return _Muted(**{name: getattr(plugin, name) for name in kept})


class _Muted(SimpleNamespace):
    """What is left of a plug-in."""


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean gang?`, where something known is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
