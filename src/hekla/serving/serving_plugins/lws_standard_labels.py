"""`lws-standard-labels`: the labels that pods of a LeaderWorkerSet have, for pods of the ModelServing that stands for one."""

import hashlib
from dataclasses import dataclass

from hekla.api.meta import Document
from hekla.serving.serving_names import ordinal_of
from hekla.serving.serving_plugins.plugin import PluginError, PodMaking

PREFIX = "leaderworkerset.sigs.k8s.io/"


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
