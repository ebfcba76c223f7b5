"""How many devices of each class the claims of queues have: what `deviceclass/NAME` of a queue's capability bounds (`plugins/capacity.py`).

A claim that several pods share counts once in each queue that one of them is in. One without devices yet counts with the most that
its requests may come to; one of all devices of a node with what it was given, or one before that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hekla.placement.cluster import Cluster
from hekla.placement.devices.claims import DeviceClaim, Grant
from hekla.placement.model import Task

PREFIX = "deviceclass/"


@dataclass
class Claimed:
    """What one queue, with those below it, has claimed."""

    names: set[str] = field(default_factory=set)
    devices: Counter[str] = field(default_factory=Counter)
    """By resource, `deviceclass/NAME`."""


def claimed_by_queues(cluster: Cluster, above: Callable[[str], Iterable[str]]) -> Mapping[str, Claimed]:
    """By queue, what pods that are placed have claimed; `above` names a queue and those above it."""
    found: dict[str, Claimed] = {}
    for name, hold in cluster.tallies.inventory.holds.items():
        users = [
            task for uid in sorted(hold.users) if (task := cluster.tasks.get(uid)) is not None and task.job is not None
        ]
        if not users:
            continue
        claim = dict(zip(users[0].spec.device_claims, users[0].shape.constraints.device_claims, strict=True))[name]
        devices = _granted(claim, hold.grants)
        queues = {task.job.spec.queue for task in users if task.job is not None}
        for queue in {one for each in queues for one in above(each)}:
            account = found.setdefault(queue, Claimed())
            account.names.add(name)
            account.devices.update(devices)
    return found


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
