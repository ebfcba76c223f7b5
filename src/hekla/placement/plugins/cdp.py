"""Lets pods settle: nobody is evicted for a while after it was given its node (cool-down protection).

The time is the pod's own (`volcano.sh/cooldown-time`), else the plug-in's `cooldown-time`, which is none by default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hekla.placement.framework import plugin
from hekla.placement.model import Task
from hekla.placement.registry import as_seconds
from hekla.placement.session import Session


@plugin
@dataclass(frozen=True, kw_only=True)
class Cdp:
    """Protects pods that have just been placed."""

    is_shield = True

    cooldown_s: float = 0.0
    """How long a pod is protected that does not say so itself."""

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those whose time of protection is over; the session looks again when the next one's is."""
        return [victim for victim in victims if self._has_settled(session, victim)]

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """The same for those who take back."""
        return self.preemptable(session, task, victims)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From `cooldown-time`, a duration like `10m`."""
        text = arguments.get("cooldown-time")
        return cls() if text is None else cls(cooldown_s=as_seconds("cooldown-time", text))

    def _has_settled(self, session: Session, victim: Task) -> bool:
        spec = victim.spec
        cooldown_s = self.cooldown_s if spec.cooldown_s is None else spec.cooldown_s
        if cooldown_s <= 0 or spec.scheduled_at is None:
            return True
        until = spec.scheduled_at + cooldown_s
        if until <= session.wall_s:
            return True
        session.look_again(until)
        return False
