"""Who waits for room in a ResourceQuota, so that a raise is felt at once and not when the back-off is over, minutes later.

The runtime tells it of refusals and of changed quotas and adds to its queue whom it names. Who is refused again goes behind
the others and keeps its back-off, so quotas that change all the time cost a few tries each, not one of every waiting object.
"""

from collections.abc import Mapping
from itertools import islice

from hekla.api.core import ResourceQuota
from hekla.kube.cache import ObjectKey
from hekla.kube.errors import ApiError
from hekla.lib import quantity

AT_ONCE = 16
"""So many of a namespace are woken when its usage falls; each that gets what it wants wakes one more."""

_SAID = "exceeded quota: "
"""What Kubernetes says, in a 403 that has no other mark."""


def is_over_quota(error: BaseException | None) -> bool:
    """Whether a write was refused by a quota."""
    return isinstance(error, ApiError) and error.code == 403 and is_of_quota(error.message)


def is_of_quota(message: str) -> bool:
    """Whether it is a quota that a refusal tells of."""
    return _SAID in message


class QuotaWaiting:
    """Objects of one reconciler whose last commands a quota refused, by namespace, in the order of their refusals."""

    def __init__(self) -> None:
        self._refused: dict[str, dict[ObjectKey, None]] = {}

    def refuse(self, key: ObjectKey) -> None:
        """A quota of the object's namespace had no room for what it makes."""
        waiting = self._refused.setdefault(_place(key), {})
        waiting.pop(key, None)
        waiting[key] = None

    def release(self, key: ObjectKey) -> ObjectKey | None:
        """An object has what it wants, or is gone; returns who may try next, if it was one that waited."""
        waiting = self._refused.get(_place(key))
        if waiting is None or key not in waiting:
            return None
        del waiting[key]
        if not waiting:
            del self._refused[_place(key)]
        return next(iter(waiting), None)

    def on_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> list[ObjectKey]:
        """Who may try again now that a quota has changed from `old`; `new` is None where it is gone."""
        waiting = self._refused.get(old.metadata.namespace) if old is not None else None
        if old is None or waiting is None:
            return []
        if new is None or _bounds(old) != _bounds(new):
            return list(waiting)
        return list(islice(waiting, AT_ONCE)) if _has_fallen(old.status.used, new.status.used) else []


def _place(key: ObjectKey) -> str:
    """The namespace whose quotas bound what an object makes: its own; of a Namespace, which is in none, itself."""
    return key[0] or key[1]


def _bounds(quota: ResourceQuota) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What is asked for, and what is enforced: Kubernetes goes by its status."""
    return quota.spec.hard, quota.status.hard


def _has_fallen(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    return any(quantity.parse(new.get(name, "0")).value < quantity.parse(used).value for name, used in old.items())
