"""What a plug-in of a ModelServing is: it may change a pod before it is made. Those that there are stand in `registry.py`."""

from dataclasses import dataclass, field
from typing import Protocol

from hekla.api.kthena import ModelServing
from hekla.api.kthena.serving import PluginScope
from hekla.api.meta import Document
from hekla.api.pods import Pod


class PluginError(Exception):
    """A plug-in that cannot be, or cannot do its work; the sentence says why. No pod is made while there is one."""


@dataclass(frozen=True, kw_only=True)
class PodMaking:
    """A pod that is about to be made."""

    serving: ModelServing
    group: str
    role: str
    index: int
    """0 is the entry pod."""
    pod: Document
    """Plug-ins change it in place."""
    entry: str = ""
    """The name of its instance's entry pod."""
    size: int = 1
    """How many pods its instance has."""
    entry_pod: Pod | None = None
    """Its instance's entry pod as it is; None: it is still to be made."""


class Decorator(Protocol):
    """What a plug-in does, whatever pods it is for."""

    def decorate(self, making: PodMaking) -> None:
        """Change the pod; raises PluginError."""


@dataclass(frozen=True)
class ServingPlugin:
    """A plug-in with its scope."""

    name: str
    decorator: Decorator
    scope: PluginScope = field(default_factory=PluginScope)

    def concerns(self, making: PodMaking) -> bool:
        """Whether it sees this pod."""
        if self.scope.roles and making.role not in self.scope.roles:
            return False
        return self.scope.target in ("", "All", "Entry" if making.index == 0 else "Worker")

    def decorate(self, making: PodMaking) -> None:
        """Change the pod; raises PluginError with the plug-in's name."""
        try:
            self.decorator.decorate(making)
        except PluginError as error:
            raise PluginError(f"plugin {self.name} OnPodCreate: {error}") from None
