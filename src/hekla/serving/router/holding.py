"""Requests for a model that was scaled to nothing: held until its first engine is ready, while the autoscaler is told that it is wanted.

A model may be woken where an AutoscalingPolicy scales it down to 0; for any other the client is told at once that there is nobody. The
autoscaler asks the scheduler for room in the model's queue; who waits longer than we hold requests is told so. `waking.py` writes the wish.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from hekla.api.kthena import AutoscalingPolicy, ModelServing, labels
from hekla.serving.autoscaler.units import units_of
from hekla.serving.router.backends import Backend, selects
from hekla.serving.router.plan import Refusal, Waiting

HOLD_S: Final = 300.0
"""How long a request is held: an engine of a large model takes minutes to start."""
MOST_HELD: Final = 1_000
"""Requests held for one model; one more is refused."""

TOO_LATE: Final = Refusal(504, "pod_discovery", f"no engine of the model became ready within {HOLD_S:.0f} s")
FULL: Final = Refusal(503, "pod_discovery", "too many requests wait for the model's first engine", 5.0)


class _Held(Waiting):
    __slots__ = ("_resume", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self._resume: Callable[[Refusal | None], None] | None = None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        self._resume = resume

    def abandon(self) -> None:
        self._resume = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._resume is None

    def go(self, refusal: Refusal | None) -> None:
        """Ask the desk again, or end."""
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume(refusal)


class Holding:
    """The held requests of one router."""

    def __init__(
        self,
        servings: Callable[[], Iterable[ModelServing]],
        policies: Callable[[], Iterable[AutoscalingPolicy]],
        now: Callable[[], float],
    ) -> None:
        self._servings = servings
        self._policies = policies
        self._now = now
        self._held: dict[str, list[_Held]] = defaultdict(list)
        self._backends: dict[str, Backend] = {}

    def hold(self, backend: Backend) -> Refusal | Waiting | None:
        """Hold a request for a backend without engines; None: it is none that anybody wakes."""
        if not self.sleepers(backend):
            return None
        key = backend.traits.key
        held = self._held[key] = [one for one in self._held[key] if not one.is_abandoned]
        if len(held) >= MOST_HELD:
            return FULL
        self._backends[key] = backend
        held.append(_Held(self._now()))
        return held[-1]

    def joined(self, backend: Backend) -> None:
        """An engine is ready: whoever waits for its model asks the desk again."""
        for one in self._held.pop(backend.traits.key, ()):
            one.go(None)

    def tick(self) -> None:
        """Tell who waited too long."""
        late = self._now() - HOLD_S
        for key, held in list(self._held.items()):
            for one in held:
                if one.since <= late:
                    one.go(TOO_LATE)
            left = [one for one in held if not one.is_abandoned]
            if left:
                self._held[key] = left
            else:
                del self._held[key]

    def wanted(self) -> list[ModelServing]:
        """The ModelServings without replicas that somebody waits for."""
        found = [one for key in self._held for one in self.sleepers(self._backends[key])]
        return [one for one in found if one.spec.replicas == 0]

    def held(self) -> dict[str, int]:
        """How many requests wait, by backend."""
        return {key: len(held) for key, held in self._held.items() if held}

    def sleepers(self, backend: Backend) -> list[ModelServing]:
        """The ModelServings that would make this backend's engines, and that a policy scales to nothing and back."""
        namespace = backend.traits.key.partition("/")[0]
        scaled = {
            unit.serving
            for policy in self._policies()
            if policy.metadata.namespace == namespace
            for unit in units_of(policy)
            if not unit.least and not unit.role
        }
        return [
            one
            for one in self._servings()
            if one.metadata.namespace == namespace and one.metadata.name in scaled and _makes(one, backend)
        ]


def _makes(serving: ModelServing, backend: Backend) -> bool:
    """Whether the pods of a ModelServing would be the backend's."""
    return any(
        selects(
            backend.traits.match_labels,
            {
                **(role.entry_template.metadata.labels if role.entry_template.metadata is not None else {}),
                labels.NAME: serving.metadata.name,
                labels.ROLE: role.name,
                labels.ENTRY: "true",
            },
        )
        for role in serving.spec.template.roles
    )
