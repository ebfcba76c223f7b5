"""`demo-pod-tweaks`: sets the runtime class, annotations and environment of pods; Kthena's specimen of a plug-in."""

from dataclasses import dataclass
from typing import Any

from hekla.api.meta import Document
from hekla.serving.serving_plugins.plugin import PluginError, PodMaking


@dataclass(frozen=True)
class PodTweaks:
    """What it was told."""

    runtime_class: str
    annotations: dict[str, str]
    env: list[Any]

    @classmethod
    def of(cls, config: Document) -> "PodTweaks":
        """Read its configuration."""
        found = (config.get("runtimeClassName", ""), config.get("annotations") or {}, config.get("env") or [])
        for key, value, kind in zip(("runtimeClassName", "annotations", "env"), found, (str, dict, list), strict=True):
            if not isinstance(value, kind):
                raise PluginError(f"{key} is {value!r}, which is no {kind.__name__}")
        return cls(*found)

    def decorate(self, making: PodMaking) -> None:
        """Change the pod."""
        pod = making.pod
        if self.runtime_class:
            pod["spec"]["runtimeClassName"] = self.runtime_class
        pod["metadata"]["annotations"].update(self.annotations)
        for container in (*(pod["spec"].get("containers") or ()), *(pod["spec"].get("initContainers") or ())):
            container["env"] = [*(container.get("env") or ()), *self.env]
