"""Volcano's nouns, to the last field: jobs, pod groups, queues, flows, topology.

Group, version, kind and field names are Volcano's, so its manifests apply unchanged. One module per API group.
"""

from hekla.api.volcano.batch import CronJob, Job
from hekla.api.volcano.bus import Command
from hekla.api.volcano.config import ColocationConfiguration
from hekla.api.volcano.flow import JobFlow, JobTemplate
from hekla.api.volcano.nodeinfo import Numatopology
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.shard import NodeShard
from hekla.api.volcano.topology import HyperNode

__all__ = [
    "ColocationConfiguration",
    "Command",
    "CronJob",
    "HyperNode",
    "Job",
    "JobFlow",
    "JobTemplate",
    "NodeShard",
    "Numatopology",
    "PodGroup",
    "Queue",
]

VOLCANO_KINDS = (
    Job, CronJob, Command, PodGroup, Queue, HyperNode, NodeShard, Numatopology, ColocationConfiguration, JobFlow, JobTemplate,
)  # fmt: skip
"""Every kind of this package, in the order of `make gen`."""
