"""Tells the scheduler of this process of new pods before they are durable: their bindings share their commit (ADR 0027)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hekla.apiserver.store import Store, Stored, Subscription
from hekla.kube.sharing import decode_pod

if TYPE_CHECKING:
    from hekla.api.pods import Pod
    from hekla.scheduler.batch import BatchScheduler
    from hekla.scheduler.foresight import Foresight


PODS = "pods"


def listen(store: Store, scheduler: "BatchScheduler") -> Subscription:
    """Have a scheduler hear of pods early, until the subscription is closed."""
    after = {kind.kind_info.resource for kind in scheduler.feed.followed} - {PODS}
    return store.listen_early(EarlyPods(scheduler.foresight), resource=PODS, after=after)


class EarlyPods:
    """An `EarlyListener` for pods."""

    def __init__(self, foresight: "Foresight") -> None:
        self._foresight = foresight

    def created(self, objects: Sequence[Stored], newest: Mapping[str, int]) -> "asyncio.Future[None] | None":
        """Have them decided with the next cycle."""
        return self._foresight.created(_readable(objects), newest)

    def undone(self, objects: Sequence[Stored]) -> None:
        """Have them forgotten."""
        self._foresight.undone([pod.metadata.uid for pod in _readable(objects)])


def _readable(objects: Sequence[Stored]) -> "list[Pod]":
    pods = []
    for stored in objects:
        try:
            pods.append(decode_pod(stored.body))
        except msgspec.DecodeError:
            continue  # the informer says what is wrong with it
    return pods
