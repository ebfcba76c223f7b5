"""`lws-standard-labels`: what pods of a LeaderWorkerSet have, for pods of the ModelServing that stands for one.

Labels, as Kthena's; and what Kthena leaves out of the project's own: annotations, subgroups, the variables by which workers find
their leader, and the names that pods have in its headless service:

    ray start --address=$(LWS_LEADER_ADDRESS):6379          LWS_LEADER_ADDRESS=ring-1.ring.default
"""

import hashlib
from dataclasses import dataclass

from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.lib.digits import whole_number
from hekla.serving.serving_names import ordinal_of
from hekla.serving.serving_plugins.plugin import PluginError, PodMaking

PREFIX = "leaderworkerset.sigs.k8s.io/"
SUBGROUP_SIZE, SUBGROUP_TYPE = f"{PREFIX}subgroup-size", f"{PREFIX}subgroup-policy-type"
SUBDOMAIN_POLICY = f"{PREFIX}subdomainPolicy"
"""Annotations of templates, by which this plug-in is told of a set's policies: a change of one is a new revision."""
LEADER_EXCLUDED, UNIQUE = "LeaderExcluded", "UniquePerReplica"
LONGEST_HOST = 63
"""Characters of a host name. A pod whose name is longer keeps Kthena's address."""
VARIABLES = {
    "LWS_LEADER_ADDRESS": labels.ENTRY_ADDRESS_ENV,
    "LWS_GROUP_SIZE": labels.GROUP_SIZE_ENV,
    "LWS_WORKER_INDEX": labels.WORKER_INDEX_ENV,
}
"""The project's variables, and those of ours that say the same."""


@dataclass(frozen=True)
class LwsLabels:
    """It needs no telling."""

    @classmethod
    def of(cls, _: Document) -> "LwsLabels":
        """Any configuration will do."""
        return cls()

    def decorate(self, making: PodMaking) -> None:
        """Label the pod, if a LeaderWorkerSet stands behind it."""
        owners = making.serving.metadata.owner_references
        name = next((one.name for one in owners if one.kind == "LeaderWorkerSet" and one.name), None)
        if name is None:
            return
        ordinal = ordinal_of(making.group)
        if ordinal < 0:
            raise PluginError(f'invalid servingGroup "{making.group}" for pod {making.pod["metadata"]["name"]}')
        metadata = making.pod["metadata"]
        metadata["labels"] |= {
            f"{PREFIX}name": name,
            f"{PREFIX}group-index": str(ordinal),
            f"{PREFIX}worker-index": str(making.index),
            f"{PREFIX}group-key": _key(f"{name}-{ordinal}"),
            **_subgroup(making),
        }
        leader = {f"{PREFIX}leader-name": making.entry} if making.index else {}
        metadata["annotations"] |= {f"{PREFIX}size": str(making.size), **leader}
        spec = making.pod["spec"]
        address = _name_pod(making, spec, name, f"{name}-{ordinal}")
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            _tell(container, address)


def _key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _subgroup(making: PodMaking) -> dict[str, str]:
    """The labels of the pod's subgroup; none where there are none, or the leader is in none."""
    notes = making.pod["metadata"]["annotations"]
    size = whole_number(notes.get(SUBGROUP_SIZE, "")) or 0
    if not size or (making.index == 0 and notes.get(SUBGROUP_TYPE) == LEADER_EXCLUDED):
        return {}
    # where the others make whole subgroups, the leader is one more in the first
    is_extra = (making.size - 1) % size == 0 and making.size % size != 0
    index = str(max(0, making.index - is_extra) // size)
    return {f"{PREFIX}subgroup-index": index, f"{PREFIX}subgroup-key": _key(f"{making.entry}/{index}")}


def _name_pod(making: PodMaking, spec: Document, name: str, leader: str) -> str:
    """Give the pod the names that the project's pods have, and tell where its leader is; empty: by Kthena's name alone."""
    host = f"{leader}-{making.index}" if making.index else leader
    if max(map(len, (f"{leader}-{making.size - 1}", host))) > LONGEST_HOST:
        return ""
    is_unique = making.pod["metadata"]["annotations"].get(SUBDOMAIN_POLICY) == UNIQUE
    domain = leader if is_unique else name
    spec["hostname"], spec["subdomain"] = host, domain
    if making.index and making.entry_pod is not None and not making.entry_pod.spec.subdomain:
        return ""  # it was made before pods had these names, and answers to Kthena's alone
    return f"{leader}.{domain}.{making.serving.metadata.namespace}"


def _tell(container: Document, address: str) -> None:
    """Before all others, so that these may be written in terms of them; what the template has stays."""
    there = {one["name"]: one for one in container.get("env") or ()}
    values = {name: there[ours]["value"] for name, ours in VARIABLES.items() if ours in there}
    if address:
        values["LWS_LEADER_ADDRESS"] = address
    told = [{"name": name, "value": value} for name, value in values.items() if name not in there]
    container["env"] = [*told, *(container.get("env") or ())]
