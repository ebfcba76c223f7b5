"""Pods of which the scheduler hears before they are durable, so that one commit carries them and where they go.

Only a store in this process can tell so early, and only of creations (`apiserver.store.EarlyListener`). The informer tells
of the same pods once they are durable: what is known by then is not told to the feed again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from hekla.api.pods import Pod
from hekla.kube.informer import Informer, revision_number

log = structlog.get_logger()


class Foresight:
    """Tells the scheduler of pods that are about to be there, each once."""

    def __init__(self) -> None:
        self._informer: Informer[Pod] | None = None
        self._others: Mapping[str, Informer[Any]] = {}
        self._handle: Callable[[Any, Any], None] = lambda old, new: None
        self._pods: dict[str, Pod] = {}  # told of, and not yet by the informer, by uid; it forgets those that went
        self._asker: asyncio.Future[None] | None = None

    def in_front_of(self, handle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """The handler for the informer of pods; `handle` hears of each pod once, from whoever tells it first."""
        self._handle = handle
        return self._on_told

    def begin(self, informer: Informer[Pod], others: Mapping[str, Informer[Any]]) -> None:
        """Everything has been read: from now on a pod that is about to be there can be decided.

        `others` are the informers of all else that placement depends on, by resource.
        """
        self._informer, self._others = informer, others

    @property
    def pods(self) -> Collection[Pod]:
        """Those of which the informer has not told yet."""
        return self._pods.values()

    def created(self, pods: Sequence[Pod], newest: Mapping[str, int]) -> "asyncio.Future[None] | None":
        """These are about to be there; the future is done when the next cycle has written where they go.

        Nothing is done before all that is older has been heard of, which is up to revision `newest` of each resource: a node
        that was cordoned before a pod was made must not get it.
        """
        if self._informer is None or not pods or not self._has_heard(newest):
            return None
        for pod in pods:
            self._pods[pod.metadata.uid] = pod
            if not self._tell(None, pod):
                # the informer tells of it again, and of what is wrong with it
                self.undone([pod.metadata.uid])
        last = max(revision_number(pod.metadata.resource_version) for pod in pods)
        self._informer.when_seen(last, lambda: self.undone(pod.metadata.uid for pod in pods))
        if self._asker is not None:
            return None  # no cycle since somebody asked: who asks now would wait in vain
        self._asker = asyncio.get_running_loop().create_future()
        return self._asker

    def undone(self, uids: Iterable[str]) -> None:
        """These are not there: the disk refused them, or they went while nobody could tell."""
        for uid in uids:
            pod = self._pods.pop(uid, None)
            if pod is not None:
                self._tell(pod, None)

    def after_cycle(self) -> None:
        """A cycle is over. Those who wait hear of it a turn of the loop later, in which the binder's calls are decided."""
        if self._asker is not None:
            asyncio.get_running_loop().call_soon(_answer, self._asker)
            self._asker = None

    def _has_heard(self, newest: Mapping[str, int]) -> bool:
        return all(
            (informer := self._others.get(resource)) is not None
            and revision_number(informer.resource_version) >= revision
            for resource, revision in newest.items()
        )

    def _tell(self, old: Pod | None, new: Pod | None) -> bool:
        try:
            self._handle(old, new)
        except Exception:  # a task boundary: one pod that cannot be taken in must not keep the others from it
            log.exception("pod not foreseen", uid=(new or old).metadata.uid)  # type: ignore[union-attr]  # one is there
            return False
        return True

    def _on_told(self, old: Pod | None, new: Pod | None) -> None:
        known = self._pods.pop(new.metadata.uid, None) if old is None and new is not None else None
        if known is None or new is None:
            self._handle(old, new)
        elif known.metadata.resource_version != new.metadata.resource_version:
            self._handle(known, new)


def _answer(asker: "asyncio.Future[None]") -> None:
    if not asker.done():
        asker.set_result(None)
