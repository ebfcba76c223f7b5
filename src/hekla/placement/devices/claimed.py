"""How many devices of each class the claims of queues have: what `deviceclass/NAME` of a queue's capability bounds (`plugins/capacity.py`).

A claim that several pods share counts once in each queue that one of them is in. One without devices yet counts with the most that
its requests may come to; one of all devices of a node with what it was given, or one before that. The accounts are kept and brought up to
date claim by claim, as counting all claims for each pod took their number squared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from hekla.placement.devices.claims import DeviceClaim, Grant
from hekla.placement.model import Task

PREFIX = "deviceclass/"


@dataclass
class Claimed:
    """What one queue, with those below it, has claimed."""

    names: set[str] = field(default_factory=set)
    devices: Counter[str] = field(default_factory=Counter)
    """By resource, `deviceclass/NAME`."""


Above = Callable[[str], Iterable[str]]
"""Names a queue and those above it."""


class Held(Protocol):
    """What a claim has, and by whom it is used, as `inventory.py` keeps it."""

    grants: tuple[Grant, ...]
    users: set[str]


class Accounts:
    """By queue, what pods that are placed have claimed."""

    def __init__(self) -> None:
        self._by_queue: dict[str, Claimed] = {}
        self._charged: dict[str, tuple[Set[str], Counter[str]]] = {}
        """By claim: the queues in which it counts, and with what."""
        self._paths: dict[str, tuple[str, ...]] = {}
        """Of each queue that has claims those above it, as they were."""
        self._above: Above | None = None

    def after(
        self, changed: Iterable[str] | None, holds: Mapping[str, Held], tasks: Mapping[str, Task], above: Above
    ) -> Mapping[str, Claimed]:
        """As it is once these claims have changed; None: nobody knows which. `tasks` are known by their uids."""
        if changed is None or not self._are_where_they_were(above):
            self._by_queue, self._charged, self._paths = {}, {}, {}
            changed = holds
        self._above = above
        for name in changed:
            self._discharge(name)
            if name in holds:
                self._charge(name, holds[name], tasks)
        return self._by_queue

    def _are_where_they_were(self, above: Above) -> bool:
        return above == self._above or all(tuple(above(queue)) == path for queue, path in self._paths.items())

    def _discharge(self, name: str) -> None:
        queues, devices = self._charged.pop(name, (frozenset[str](), Counter[str]()))
        for queue in queues:
            account = self._by_queue[queue]
            account.names.discard(name)
            account.devices -= devices  # none is ever below 0, and those at 0 go
            if not account.names:
                del self._by_queue[queue]

    def _charge(self, name: str, hold: Held, tasks: Mapping[str, Task]) -> None:
        users = [task for uid in hold.users if (task := tasks.get(uid)) is not None and task.job is not None]
        if not users:
            return
        first = min(users, key=_uid)
        claim = dict(zip(first.spec.device_claims, first.shape.constraints.device_claims, strict=True))[name]
        devices = _granted(claim, hold.grants)
        queues = {task.job.spec.queue for task in users if task.job is not None}
        counting = {one for each in queues for one in self._path(each)}
        self._charged[name] = (counting, devices)
        for queue in counting:
            account = self._by_queue.setdefault(queue, Claimed())
            account.names.add(name)
            account.devices.update(devices)

    def _path(self, queue: str) -> tuple[str, ...]:
        assert self._above is not None, "claims are counted when somebody has said where"
        path = self._paths.get(queue)
        if path is None:
            path = self._paths[queue] = tuple(self._above(queue))
        return path


def _uid(task: Task) -> str:
    return task.uid


def asked_beyond(
    task: Task, known: Iterable[str], others: Sequence[Task]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """What a task's claims ask for that are not among the known ones: by claims of its own, and by claims that others of its job name too."""
    named, shared = set(known), {name for other in others if other is not task for name in other.spec.device_claims}
    own, common = Counter[str](), Counter[str]()
    for name, claim in zip(task.spec.device_claims, task.shape.constraints.device_claims, strict=True):
        if name not in named:
            (common if name in shared else own).update(_most(claim))
    return own, common


def _most(claim: DeviceClaim) -> Counter[str]:
    """The most devices of each class that a claim may come to."""
    found = Counter[str]()
    for request in claim.requests:
        most: dict[str, int] = {}
        for choice in request.choices:
            count = 0 if choice.is_admin else 1 if choice.takes_all else choice.count
            most[choice.device_class] = max(most.get(choice.device_class, 0), count)
        found.update({f"{PREFIX}{name}": count for name, count in most.items()})
    return found


def _granted(claim: DeviceClaim, grants: Sequence[Grant]) -> Counter[str]:
    classes = {choice.label: choice.device_class for request in claim.requests for choice in request.choices}
    return Counter(f"{PREFIX}{classes[one.label]}" for one in grants if not one.is_admin and one.label in classes)
