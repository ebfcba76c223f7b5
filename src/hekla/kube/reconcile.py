"""Declares reconcilers: pure functions from an object and the world to commands.

    @reconciler(Job, owns=(Pod, PodGroup), reads=(Queue,))
    def reconcile_job(job: Job, world: World, now: datetime) -> Iterator[Command]: ...

`runtime.py` runs them: it watches, queues, backs off, retries conflicts, and does not reconcile an object again
before its caches have seen the revisions of its own last commands (read your writes).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from hekla.api.core import Namespace
from hekla.api.meta import Resource
from hekla.kube.commands import Command

T = TypeVar("T", bound=Resource)


class World(Protocol):
    """A read-only view of the caches. Only kinds that the reconciler declared may be asked for."""

    def get(self, kind: type[T], namespace: str, name: str) -> T | None:
        """One object, or None; `namespace` is "" for cluster kinds."""

    def list(self, kind: type[T], namespace: str = "", labels: dict[str, str] | None = None) -> Sequence[T]:
        """Objects of a namespace ("" for all) that carry all the labels, in order of namespace and name."""

    def owned(self, kind: type[T], uid: str) -> Sequence[T]:
        """Objects whose controller is `uid`, in order of name."""

    def placed(self, kind: type[T], node: str) -> Sequence[T]:
        """Objects placed on a node, in order of namespace and name."""

    def selecting(self, kind: type[T], namespace: str, labels: Mapping[str, str]) -> Sequence[T]:
        """Objects of a namespace, such as Services, whose selector these labels satisfy, in order of name."""


Map = Callable[[Any], Iterator[tuple[str, str]]]
"""From a changed object of another kind to the (namespace, name) of the objects to reconcile."""

MapInWorld = Callable[[Any, World], Iterator[tuple[str, str]]]
"""The same for objects that must be looked for: the services that select a pod, the quotas of its namespace."""


@dataclass(frozen=True, kw_only=True)
class Reconciler:
    """A declared reconciler, as the runtime sees it."""

    name: str
    kind: type[Resource]
    owns: tuple[type[Resource], ...]
    """Kinds whose objects, when they change, wake their controller."""

    reads: tuple[type[Resource], ...]
    """Kinds that may be read; a change wakes nothing unless `wakes` or `finds` maps it."""

    wakes: dict[type[Resource], Map]
    finds: dict[type[Resource], MapInWorld]
    """Like `wakes`, for maps that need the world to find whom to wake."""

    concerns: Callable[[Any, World], bool] | None
    """Whether a changed object is worth a look at all; a cheap filter for kinds that change often."""

    decide: Callable[[Any, World, datetime], Iterator[Command]]

    at_once: int = 32
    """Objects that are reconciled at the same time. Where one costs several writes, each of which waits for its commit, few
    at once leave the processor idle and the commits small."""

    heeds: dict[type[Resource], Callable[[Any], Any]] = field(default_factory=dict)
    """For a kind that changes often, the part of an object that matters: while that stays the same, nobody is woken."""

    rests_s: float = 0.0
    """How long an object that has just been written rests: what follows from the writes comes in one look then."""

    gives_way_s: float | Callable[[Any, World], float] = 0.0
    """How long an object may wait while its runtime's owner is busy with what somebody waits for; asked where objects differ:
    some are what somebody waits for."""

    quiet_s: float | Callable[[Any, World], float] = 0.0
    """For so long nobody may have waited before an object that gives way is looked at; asked again while it does."""

    when_refused: "Callable[[Any, Command, str, World, datetime], Iterator[Command]] | None" = None
    """What an object says of itself when the API server refuses what it needs (a full quota, a webhook): given the command and the server's sentence.
    Without it only the log and an event tell, and the object looks as if nobody had seen it."""

    @property
    def awaits_quota(self) -> bool:
        """Whether a ResourceQuota can refuse what it makes, so that it follows them."""
        return bool(self.owns) or self.kind is Namespace  # which makes what it does not own


def reconciler(
    kind: type[Resource],
    *,
    owns: tuple[type[Resource], ...] = (),
    reads: tuple[type[Resource], ...] = (),
    wakes: dict[type[Resource], Map] | None = None,
    finds: dict[type[Resource], MapInWorld] | None = None,
    concerns: Callable[[Any, World], bool] | None = None,
    name: str = "",
    heeds: dict[type[Resource], Callable[[Any], Any]] | None = None,
    at_once: int = Reconciler.at_once,
    rests_s: float = Reconciler.rests_s,
    gives_way_s: float | Callable[[Any, World], float] = 0.0,
    quiet_s: float | Callable[[Any, World], float] = 0.0,
    when_refused: Callable[[Any, Command, str, World, datetime], Iterator[Command]] | None = None,
) -> Callable[[Callable[[Any, World, datetime], Iterator[Command]]], Reconciler]:
    """Turn the function below into a `Reconciler`; its `decide` is the function itself, which tests call."""

    def declare(decide: Callable[[Any, World, datetime], Iterator[Command]]) -> Reconciler:
        label = name or decide.__name__.removeprefix("reconcile_")
        return Reconciler(
            name=label, kind=kind, owns=owns, reads=reads, wakes=wakes or {}, finds=finds or {}, concerns=concerns,
            decide=decide, heeds=heeds or {}, at_once=at_once, rests_s=rests_s, gives_way_s=gives_way_s,
            quiet_s=quiet_s, when_refused=when_refused,
        )  # fmt: skip

    return declare
