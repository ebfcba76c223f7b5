"""Questions that the embedded scheduler answers over the API: why does this wait, and by which rules do you decide?

They are read-only resources that are computed when they are asked for; nothing of them is stored. An explanation is
named after what it explains: `pod.train-0`, `podgroup.train`, `vcjob.train`; `queue.research` may be asked for in any
namespace.
"""

from hekla.api.meta import Kind, Scope

EXPLANATION = Kind(
    group="scheduling.hekla.dev", version="v1", kind="Explanation", plural="explanations", singular="explanation",
    scope=Scope.NAMESPACED, short_names=("why",),
)  # fmt: skip
"""Why a pod or gang waits."""

SCHEDULER = Kind(
    group="scheduling.hekla.dev", version="v1", kind="Scheduler", plural="schedulers", singular="scheduler",
    scope=Scope.CLUSTER,
)  # fmt: skip
"""The scheduler's configuration as it is in use."""

SNAPSHOT = Kind(
    group="scheduling.hekla.dev", version="v1", kind="Snapshot", plural="snapshots", singular="snapshot",
    scope=Scope.CLUSTER,
)  # fmt: skip
"""What the scheduler decides by at this moment, and what it decides."""

SUBJECTS = ("pod", "podgroup", "vcjob", "queue")
"""What can be explained, as the first word of an explanation's name."""
