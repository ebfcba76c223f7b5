"""What the scheduler can be told."""

from dataclasses import dataclass
from pathlib import Path

from hekla.dialects.shards import HEEDLESS, Sharding
from hekla.scheduler.configuration import DEFAULT_TEXT


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """Settings of the batch scheduler."""

    scheduler_names: tuple[str, ...] = ("volcano",)
    """Pods that name one of these are ours. The embedded platform takes `volcano`, `default-scheduler` and "" too."""

    default_queue: str = "default"
    """Queue of gangs that name none; made at start if it is missing."""

    waits_for_groups: bool = False
    """Whether pods of scheduler `volcano` wait until controllers give them a PodGroup, as Volcano's do. Needed where pods
    are not marked as they are made: on a cluster without the webhook, beside controllers that give every pod a group.
    """

    configuration: str = DEFAULT_TEXT
    """Text of the configuration: actions, and plug-ins in tiers."""

    configuration_file: Path | None = None
    """A file that goes before this text, and is followed while the scheduler runs."""

    namespace: str = "volcano-system"
    """Where a ConfigMap `volcano-scheduler-configmap`, if there is one, goes before both."""

    memory_namespace: str = "kube-system"
    """Where the ConfigMap `hekla-scheduler-memory` is, which a restart needs (see `memory.py`)."""

    memory_key: str = "memory"
    """Its key there; of a scheduler beside another one, its own."""

    window_s: float = 0.001
    """How long to gather events before a cycle, so that pods made together are decided together."""

    slice_s: float = 0.05
    """Longest stretch of decisions before other tasks of this process have their turn."""

    outlook_after_s: float = 10.0
    """How long a job waits before it is also told its place in the queue and what would let it start; see `outlooks.py`."""

    outlook_every_s: float = 30.0
    """How long such a sentence stands at least."""

    binds_at_once: int = 256
    """Binds under way together."""

    evictions_at_once: int = 32
    """Evictions and nominations under way together."""

    sharding: Sharding = HEEDLESS
    """Whether NodeShards are heeded, and which is ours."""

    seed: int = 0
    """0 breaks ties by node name; other numbers shuffle the nodes, each in its own way."""


EMBEDDED_SCHEDULER_NAMES = ("volcano", "default-scheduler", "")
"""Names that the embedded platform schedules."""
