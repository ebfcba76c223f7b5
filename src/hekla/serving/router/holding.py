"""Requests for a model without an engine: held while one is on its way, and refused when that takes too long.

scaled to nothing     An AutoscalingPolicy may wake it, or those of its roles that are asleep: held for minutes, while the autoscaler
                      is told that it is wanted (`waking.py` writes the wish, the scheduler finds room in the model's queue).
                      Where its minimum is raised meanwhile, they wait on, and who comes waits with them, no longer than they.
engines restart       Its pods are there, and none is ready or none takes connections: held until one is, for half a minute
                      after the first request that met nobody. Then requests are refused at once, until an engine is back. Engines
                      that come and go are waited for in all no longer than that (`patience.py`).
anything else         Nobody would come: the client is told at once, and of a model that was scaled to nothing by hand, that.

Who waited in vain is told what for: engines that did not start, or room that was not found for them. Whose model, policy or route
is deleted meanwhile asks the desk again, which says so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from hekla.api.kthena import AutoscalingPolicy, ModelServing, labels
from hekla.serving.autoscaler.units import Unit, readable_units_of
from hekla.serving.router.backends import Backend, selects
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.held import Held
from hekla.serving.router.patience import RESTART_S, Patience
from hekla.serving.router.plan import Refusal, Waiting

HOLD_S: Final = 300.0
"""How long a request is held: an engine of a large model takes minutes to start."""
MOST_HELD: Final = 1_000
"""Requests held for one model; one more is refused."""
LOOK_S: Final = 1.0
"""How often it is looked whether anybody would still come."""
MOST_ASKED: Final = 50
"""Requests that ask the desk anew at one look (`tick`, ten a second) when a route has changed; the others do it at the next ones, a
thousand within 2 s. Together they kept everybody else waiting for 20 ms, and longer with many routes."""

TOO_LATE: Final = Refusal(504, "pod_discovery", f"no engine of the model became ready within {HOLD_S:.0f} s")
GONE: Final = Refusal(503, "pod_discovery", f"no engine of the model came back within {RESTART_S:.0f} s", 5.0)
FLAPPING: Final = Refusal(
    503,
    "pod_discovery",
    "the model's engines come and go, and none came back in the time for which they are waited for; try again in 5 s",
    5.0,
)
"""What is said where engines came back meanwhile and went again."""
ROOM: Final = "; its engines wait for room in the cluster"
SWITCHED_OFF: Final = "; ModelServing {} has 0 replicas, and no AutoscalingPolicy wakes it: scale it up"
FULL: Final = Refusal(
    503, "pod_discovery", f"{MOST_HELD:,} requests wait for the model's engines already; try again in 5 s", 5.0
)


class _Held(Held):
    __slots__ = ("late", "until", "version")

    def __init__(self, until: float, late: Refusal, version: int) -> None:
        """`version`: of the routes by which it was planned."""
        super().__init__()
        self.until = until
        self.late = late
        self.version = version


class Holding:
    """The held requests of one router."""

    def __init__(
        self,
        servings: Callable[[], Iterable[ModelServing]],
        policies: Callable[[], Iterable[AutoscalingPolicy]],
        now: Callable[[], float],
        is_there: Callable[[Backend], bool] = lambda backend: True,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        """`is_there` says whether a backend is not deleted; `version` counts changes of routes and what they lead to."""
        self._is_there = is_there
        self._version, self._version_asked = version, version()
        self._is_asking = False
        """Whether some are to ask the desk anew at the next look."""
        self._asked_last = ""
        """The backend whose requests asked anew last: at the next look the one after it comes first."""
        self._asking: _Held | None = None
        """Who asks the desk anew at this moment: what is held again for it is held no longer than it was."""
        self._looked_at = float("-inf")
        self._servings = servings
        self._policies = policies
        self._now = now
        self._held: dict[str, list[_Held]] = defaultdict(list)
        self._backends: dict[str, Backend] = {}
        self._patience: dict[str, Patience] = {}
        """What is left of the time for which engines are waited for, by backend; not of those that have all of it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered."""
        return not (self._held or self._backends or self._patience)

    def hold(self, backend: Backend) -> Refusal | Waiting | None:
        """Hold a request for a backend whose engines are not there, or take no connections; None: nobody would come."""
        key, now = backend.traits.books, self._now()
        backend.decode.absence = ""
        if backend.is_empty and self.sleepers(backend):
            until, late = now + HOLD_S, TOO_LATE
        elif backend.is_empty and (waking := self._waking_until(key)) > now and self._scaled(backend):
            until, late = waking, TOO_LATE
        elif backend.matched:
            patience = self._patience.setdefault(key, Patience())
            until = patience.out(now)
            late = GONE if patience.left_s >= RESTART_S else FLAPPING
        else:
            backend.decode.absence = self._switched_off(backend)
            return None
        self._backends[key] = backend
        if self._asking is not None:
            until = min(until, self._asking.until)
        if until <= now:
            return None
        held = self._held[key]
        if (
            len(held) >= MOST_HELD
        ):  # only then: looked through for each of many who ask anew, it took their number squared
            held = self._held[key] = [one for one in held if not one.is_abandoned]
        if len(held) >= MOST_HELD:
            return FULL
        held.append(_Held(until, late, self._version()))
        return held[-1]

    def _switched_off(self, backend: Backend) -> str:
        """What is said of a model that somebody scaled to nothing by hand; empty: that is not why nobody is there."""
        namespace = backend.traits.key.partition("/")[0]
        for one in self._servings():
            if (
                one.metadata.namespace == namespace
                and one.spec.replicas == 0
                and makes(one, backend.traits.match_labels)
            ):
                return SWITCHED_OFF.format(f"{namespace}/{one.metadata.name}")
        return ""

    def _waking_until(self, key: str) -> float:
        """Until when somebody waits for a model that slept; its minimum may have been raised since, which brings an engine too."""
        if self._asking is not None and self._asking.late is TOO_LATE:
            return self._asking.until  # it is held no longer than that in any case
        held = self._held.get(key, ())
        return max((one.until for one in held if one.late is TOO_LATE and not one.is_abandoned), default=0.0)

    def joined(self, backend: Backend) -> None:
        """An engine is ready: whoever waits for its model asks the desk again."""
        if (patience := self._patience.get(backend.traits.books)) is not None:
            patience.back(self._now())
        self._resume(backend.traits.books)

    def tick(self) -> None:
        """Tell who waited too long, and have engines that took no connection tried again when they have sat out."""
        now = self._now()
        self._keep_patience(now)
        looks = now - self._looked_at >= LOOK_S
        self._looked_at = now if looks else self._looked_at
        if self._is_asking or (looks and self._version_asked != self._version()):
            self._ask_anew()
        for key in [*self._held]:
            held = self._held.get(key)  # as it is now: who was told to go on may have been held here
            if held is None:
                continue
            for one in held:
                if one.until <= now:
                    one.go(_with_why(one.late, self._backends[key]))
            if _may_be_tried(self._backends[key], now) or (looks and self._is_vain(self._backends[key])):
                self._resume(key)
            elif left := [one for one in held if not one.is_abandoned]:
                self._held[key] = left
            else:
                del self._held[key]
        for key in [key for key in self._backends if key not in self._held and key not in self._patience]:
            del self._backends[key]

    def _keep_patience(self, now: float) -> None:
        """Note whose engines answer, and forget whose have answered for so long that nothing is missing, or are no more."""
        for key, patience in [*self._patience.items()]:
            backend = self._backends[key]
            if any(not one.faults for one in _engines(backend)):
                patience.back(now)
            if not backend.matched or patience.is_whole(now):
                del self._patience[key]

    def _is_vain(self, backend: Backend) -> bool:
        """Whether nobody would come any more, as for `hold`; a minimum that was raised meanwhile brings an engine all the same."""
        may_come = backend.matched or (backend.is_empty and self._scaled(backend))
        return not may_come or not self._is_there(backend)

    def _resume(self, key: str) -> None:
        for one in self._held.pop(key, ()):
            one.go(None)

    def _ask_anew(self) -> None:
        """A route may be gone, or lead elsewhere: whoever's does says so; the others wait on, no longer than they would have."""
        version, room = self._version(), MOST_ASKED
        for key in _after(self._asked_last, [*self._held]):
            held = self._held.get(key, [])  # as it is now: who asked before may be held here
            due = [one for one in held if one.version != version]
            if not due:
                continue
            if room == 0:
                break
            self._asked_last = key
            asks, later = due[:room], due[room:]
            self._held[key] = later + [one for one in held if one.version == version]
            room -= len(asks)
            for one in asks:
                self._asking = one
                try:
                    one.go(None)
                finally:
                    self._asking = None
        self._is_asking = room == 0
        if not self._is_asking:
            self._version_asked = version

    def wanted(self) -> list[ModelServing]:
        """The ModelServings that may have no replicas, and that somebody waits for: asleep, or on their way."""
        return [one for key in self._held for one in self.sleepers(self._backends[key])]

    def held(self) -> dict[str, int]:
        """How many requests wait, by backend."""
        left = {key: sum(not one.is_abandoned for one in held) for key, held in self._held.items()}
        return {key: count for key, count in left.items() if count}

    def sleepers(self, backend: Backend) -> list[ModelServing]:
        """The ModelServings that would make this backend's engines, and that a policy scales to nothing and back."""
        return self._scaled(backend, by=lambda unit: not unit.least)

    def _scaled(self, backend: Backend, by: Callable[[Unit], bool] = lambda unit: True) -> list[ModelServing]:
        """Those that a policy scales, by a unit of this sort."""
        namespace = backend.traits.key.partition("/")[0]
        scaled = {
            unit.serving
            for policy in self._policies()
            if policy.metadata.namespace == namespace
            for unit in readable_units_of(policy)
            if by(unit)
        }
        return [
            one
            for one in self._servings()
            if one.metadata.namespace == namespace
            and one.metadata.name in scaled
            and makes(one, backend.traits.match_labels)
        ]


def _after(key: str, keys: list[str]) -> list[str]:
    """All the keys, beginning with the one after this."""
    start = keys.index(key) + 1 if key in keys else 0
    return keys[start:] + keys[:start]


def _with_why(late: Refusal, backend: Backend) -> Refusal:
    """What is said to who waited in vain; where no engine has found a node, that."""
    is_stuck = backend.unplaced and backend.unplaced == backend.matched
    return replace(late, message=late.message + ROOM) if is_stuck else late


def _engines(backend: Backend) -> Iterator[Endpoint]:
    yield from backend.decode.members
    yield from backend.prefill.members


def _may_be_tried(backend: Backend, now: float) -> bool:
    """Whether an engine of each role is there and has sat out since it failed."""
    pools = [backend.decode, *([backend.prefill] if backend.traits.pd is not None else [])]
    return all(any(one.benched_until <= now for one in pool.members) for pool in pools)


def makes(serving: ModelServing, match_labels: Mapping[str, str]) -> bool:
    """Whether pods of a ModelServing would have these labels."""
    return any(
        selects(
            match_labels,
            {
                **(role.entry_template.metadata.labels if role.entry_template.metadata is not None else {}),
                labels.NAME: serving.metadata.name,
                labels.ROLE: role.name,
                labels.ENTRY: "true",
            },
        )
        for role in serving.spec.template.roles
    )
