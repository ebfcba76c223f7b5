"""Questions that the embedded scheduler answers over the API: why does this wait, and by which rules do you decide?

They are read-only resources that are computed when they are asked for; nothing of them is stored. An explanation is
named after what it explains: `pod.train-0`, `podgroup.train`, `vcjob.train`; `queue.research` may be asked for in any
namespace.
"""

import hashlib
import re
from dataclasses import replace

from hekla.api.meta import Kind, Scope

USUAL_SCHEDULER = "volcano"
"""The scheduler, by the name of its lease, that answers as version `v1`."""

MOST_OF_A_NAME = 30
_LABEL, _OF_KUBERNETES = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"), re.compile(r"v[0-9].*")

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


def version_of(scheduler: str) -> str:
    """The version of the group by which a scheduler of this name answers.

    API servers pass questions on by group and version, and rights know groups alone: so each of several schedulers has a version of its
    own, called like it where that is the label that a version must be, and whoever may ask one may ask all.
    """
    if scheduler == USUAL_SCHEDULER:
        return EXPLANATION.version
    if len(scheduler) <= MOST_OF_A_NAME and _LABEL.fullmatch(scheduler) and not _OF_KUBERNETES.fullmatch(scheduler):
        return scheduler
    return f"s-{hashlib.sha256(scheduler.encode()).hexdigest()[:12]}"


def as_answered_by(kind: Kind, scheduler: str) -> Kind:
    """One of these kinds, for the path at which a scheduler of this name is asked."""
    return replace(kind, version=version_of(scheduler))


SUBJECTS = ("pod", "podgroup", "vcjob", "queue")
"""What can be explained, as the first word of an explanation's name."""
