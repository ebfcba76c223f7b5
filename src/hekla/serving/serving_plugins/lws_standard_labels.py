"""`lws-standard-labels`: what pods of a LeaderWorkerSet have, for pods of the ModelServing that stands for one.

Labels, as Kthena's; and the variables by which the project's workers find their leader, which Kthena leaves out:

    ray start --address=$(LWS_LEADER_ADDRESS):6379
"""

import hashlib
from dataclasses import dataclass

from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.serving.serving_names import ordinal_of
from hekla.serving.serving_plugins.plugin import PluginError, PodMaking

PREFIX = "leaderworkerset.sigs.k8s.io/"
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
        making.pod["metadata"]["labels"] |= {
            f"{PREFIX}name": name,
            f"{PREFIX}group-index": str(ordinal),
            f"{PREFIX}worker-index": str(making.index),
            f"{PREFIX}group-key": hashlib.sha1(f"{name}-{ordinal}".encode(), usedforsecurity=False).hexdigest(),
        }
        spec = making.pod["spec"]
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            _tell(container)


def _tell(container: Document) -> None:
    """Before all others, so that these may be written in terms of them; what the template has stays."""
    there = {one["name"]: one for one in container.get("env") or ()}
    told = [
        {"name": name, "value": there[ours]["value"]}
        for name, ours in VARIABLES.items()
        if name not in there and ours in there
    ]
    container["env"] = [*told, *(container.get("env") or ())]
