"""The properties that every reconciler keeps, to be asserted over worlds of its own tests.

assert_converges(reconcile_job, world, "ns", "train", now=NOW)      # commands run out
assert_heals(reconcile_job, make_world, "ns", "train", now=NOW)     # after any one failed command, too
assert_touches_only_its_own(reconcile_job, world, "ns", "train", now=NOW)
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from hekla.api.meta import Document, Resource
from hekla.kube.commands import Apply, Command, Create, Delete, Event, Evict, Patch, RequeueAfter, SetStatus, Target
from hekla.kube.reconcile import Reconciler
from hekla.testing.world import FakeWorld, StoreKey

MAX_ROUNDS = 12

_SERVER_MADE = ("uid", "resourceVersion", "generation", "creationTimestamp")


def decide(reconciler: Reconciler, world: FakeWorld, namespace: str, name: str, *, now: datetime) -> list[Command]:
    """What the reconciler wants for one object; nothing if the object is gone."""
    obj = world.get(reconciler.kind, namespace, name)
    return [] if obj is None else list(reconciler.decide(obj, world, now))


def writes(commands: list[Command]) -> list[Command]:
    """Those commands that change something."""
    return [command for command in commands if not isinstance(command, Event | RequeueAfter)]


def converge(
    reconciler: Reconciler, world: FakeWorld, namespace: str, name: str, *, now: datetime, rounds: int = MAX_ROUNDS
) -> int:
    """Reconcile and carry out until nothing is left to do; returns how many rounds that took."""
    commands: list[Command] = []
    for number in range(rounds):
        commands = decide(reconciler, world, namespace, name, now=now)
        world.execute(commands)
        if not writes(commands):
            return number
    raise AssertionError(f"{reconciler.name} is not at rest after {rounds} rounds; it still wants {writes(commands)}")


def assert_converges(
    reconciler: Reconciler, world: FakeWorld, namespace: str, name: str, *, now: datetime, rounds: int = MAX_ROUNDS
) -> None:
    """After some rounds there is nothing left to do, and a second look finds nothing either."""
    converge(reconciler, world, namespace, name, now=now, rounds=rounds)
    assert not writes(decide(reconciler, world, namespace, name, now=now)), f"{reconciler.name} changes its mind"


def assert_heals(
    reconciler: Reconciler,
    make_world: Callable[[], FakeWorld],
    namespace: str,
    name: str,
    *,
    now: datetime,
    rounds: int = MAX_ROUNDS,
) -> None:
    """Whichever single command of the first round fails, the world ends as if none had."""
    undisturbed = make_world()
    first = decide(reconciler, undisturbed, namespace, name, now=now)
    converge(reconciler, undisturbed, namespace, name, now=now, rounds=rounds)
    wanted = _state(undisturbed)
    for failing in range(len(first)):
        world = make_world()
        # The runtime stops at the first failure, so what follows it is not carried out.
        world.execute(decide(reconciler, world, namespace, name, now=now)[:failing])
        converge(reconciler, world, namespace, name, now=now, rounds=rounds)
        assert _state(world) == wanted, f"{reconciler.name} does not heal after {first[failing]} fails"


def assert_touches_only_its_own(
    reconciler: Reconciler,
    world: FakeWorld,
    namespace: str,
    name: str,
    *,
    now: datetime,
    may_touch: Callable[[Command], bool] = lambda command: False,
) -> None:
    """Every command names the object itself, something it controls, or something that `may_touch` allows."""
    obj = world.get(reconciler.kind, namespace, name)
    assert obj is not None, f"{namespace}/{name} is not in the world"
    for command in reconciler.decide(obj, world, now):
        assert _is_own(command, obj, world) or may_touch(command), f"{reconciler.name} touches a stranger: {command}"


def _is_own(command: Command, obj: Resource, world: FakeWorld) -> bool:
    match command:
        case Create(_, document) | Apply(_, document):
            return _controller(document) == obj.metadata.uid
        case Patch(target) | SetStatus(target) | Delete(target) | Evict(target):
            return _is_same(target, obj) or _owns(obj, target, world)
    return True


def _is_same(target: Target, obj: Resource) -> bool:
    meta, info = obj.metadata, type(obj).kind_info
    named = (target.kind.kind_info.resource, target.namespace, target.name)
    return named == (info.resource, meta.namespace, meta.name) and target.uid in ("", meta.uid)


def _owns(obj: Resource, target: Target, world: FakeWorld) -> bool:
    found = world.get(target.kind, target.namespace, target.name)
    owners = found.metadata.owner_references if found is not None else ()
    return any(owner.controller and owner.uid == obj.metadata.uid for owner in owners)


def _controller(document: Document) -> str:
    owners = document.get("metadata", {}).get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def _state(world: FakeWorld) -> dict[StoreKey, Any]:
    """The world without what a server makes up; generated names count, they do not compare."""
    state: dict[StoreKey, Any] = {}
    for number, (key, document) in enumerate(sorted(world.documents().items())):
        metadata = {name: value for name, value in document["metadata"].items() if name not in _SERVER_MADE}
        if metadata.get("generateName"):
            metadata["name"] = metadata["generateName"]
            key = (key[0], key[1], f"{metadata['generateName']}#{number}")
        state[key] = {**document, "metadata": metadata}
    return state
