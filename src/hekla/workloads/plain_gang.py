"""Which plain pods are a gang, and which: read from what owns a pod, and from the labels of LeaderWorkerSets, Spark and Flink.

Most plain pods are nobody's gang and get no PodGroup: only who asks for something that concerns several pods gets one.
`admission_plain_pod.py` marks the pods as they are made, so that the scheduler waits for their group; `plain_groups.py`
makes the group.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hekla.api.apps import DaemonSet, ReplicaSet, StatefulSet
from hekla.api.batch import Job
from hekla.api.meta import Document, Resource
from hekla.workloads import keys

OWNERS: Mapping[tuple[str, str], type[Resource]] = {
    (kind.kind_info.api_version, kind.kind_info.kind): kind for kind in (ReplicaSet, StatefulSet, DaemonSet, Job)
}
"""The kinds whose annotations ask for a gang of their pods. A Deployment's are copied to its ReplicaSets."""

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
SPARK_ROLE, SPARK_APP = "spark-role", "spark-app-selector"
FLINK_COMPONENT, FLINK_APP, FLINK_LEADER, FLINK_WORKER = "component", "app", "jobmanager", "taskmanager"
FLINK_NATIVE = "flink-native-kubernetes"

_ASKING = frozenset({keys.GROUP_MIN_MEMBER, keys.GROUP_MIN_RESOURCES})
_ASKING_OF_PODS = _ASKING | {keys.TOPOLOGY_MODE, keys.TOPOLOGY_TIER}
_OF_VOLCANO = "volcano.sh/"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,180}[a-z0-9])?")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Gang:
    """A gang that pods belong to by their labels."""

    name: str
    """Of its PodGroup."""

    leads: bool
    """Whether this pod is the one that the group is made for and goes with."""

    grows: bool
    """Whether the leader makes the others once it runs: it must be able to start alone."""


def gang_of_owner(uid: str) -> str:
    """The name of the PodGroup of what a controller makes."""
    return f"podgroup-{uid}"


def group_of(annotations: Mapping[str, str]) -> str:
    """The PodGroup that a pod names; empty if none."""
    return annotations.get(keys.GROUP_NAME) or annotations.get(keys.GROUP_NAME_ALIAS, "")


def gang_by_labels(labels: Mapping[str, str]) -> Gang | None:
    """The gang that the labels of a pod tell of: of a LeaderWorkerSet's replica, a Spark application, a Flink cluster."""
    if labels.get(LWS_NAME) and labels.get(LWS_GROUP):
        name = _named("lws", f"{labels[LWS_NAME]}-{labels[LWS_GROUP]}")
        return Gang(name, leads=labels.get(LWS_WORKER) == "0", grows=False)
    if labels.get(SPARK_APP) and labels.get(SPARK_ROLE) in ("driver", "executor"):
        return Gang(_named("spark", labels[SPARK_APP]), leads=labels[SPARK_ROLE] == "driver", grows=True)
    if labels.get(FLINK_APP) and labels.get(FLINK_COMPONENT) in (FLINK_LEADER, FLINK_WORKER):
        leads = labels[FLINK_COMPONENT] == FLINK_LEADER
        return Gang(_named("flink", labels[FLINK_APP]), leads=leads, grows=labels.get("type") == FLINK_NATIVE)
    return None


def belongs_by_labels(labels: Mapping[str, str]) -> bool:
    """Whether pods of a template with these labels will be in a gang by labels, some of which are yet to be added."""
    return LWS_NAME in labels or gang_by_labels(labels) is not None


def asks_for_gang(owner: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    """Whether annotations of an owner, or of its pods, ask for what only a PodGroup can hold.

    A queue is not among it: a pod without a group has one, too.
    """
    if not _ASKING.isdisjoint(owner) or not _ASKING_OF_PODS.isdisjoint(pod):
        return True
    return any(key.startswith(_OF_VOLCANO) for key in owner)


def inherited(owner: Mapping[str, str]) -> dict[str, str]:
    """What a PodGroup takes over from what owns its pods: `volcano.sh/*`."""
    return {key: value for key, value in owner.items() if key.startswith(_OF_VOLCANO)}


def controller_of(metadata: Document) -> Document | None:
    """The reference to what controls an object."""
    owners = metadata.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def notes_of(document: Document | None) -> Mapping[str, str]:
    """The annotations of a document; none of one that is not there."""
    return ((document or {}).get("metadata") or {}).get("annotations") or _NOTHING


def _named(family: str, identity: str) -> str:
    """`podgroup-lws-llama-0`; what makes no name is digested."""
    if not _NAME.fullmatch(identity):
        identity = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"podgroup-{family}-{identity}"
