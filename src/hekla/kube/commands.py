"""What a decision may ask for. Reconcilers and schedulers yield these; the runtime carries them out.

Commands are values: a test compares them with `==`. Each names one object and is safe to repeat.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hekla.api.meta import Document, Resource


@dataclass(frozen=True, kw_only=True)
class Target:
    """The object a command is about."""

    kind: type[Resource]
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


def target_of(obj: Resource) -> Target:
    """The target that names `obj` as it was read."""
    meta = obj.metadata
    return Target(
        kind=type(obj), name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
    )


@dataclass(frozen=True)
class Create:
    """Create an object. That it exists already is success if it has the same controller, else an event says so."""

    kind: type[Resource]
    document: Document
    """Whole, with metadata.name, namespace and ownerReferences."""

    is_announced: bool = False
    """Tell of it in an event on the controller: `SuccessfulCreate`, or `FailedCreate` with the server's reason."""

    is_told_of_when_refused: bool = False
    """Tell of a refusal only: `FailedCreate` on the controller. For pods by the thousand, of which nobody reads one by one."""

    announced_as: tuple[str, str] | None = None
    """What the two events say instead: of success, and of a refusal, before the server's reason."""

    announced_to: Target | None = None
    """What the two events are about, where that is not the controller."""

    filled_by: Callable[[Document], Document] | None = None
    """Adds what a decision cannot know, such as a new key pair; whoever carries the command out calls it, in a thread."""


@dataclass(frozen=True)
class Patch:
    """Merge-patch an object (or a subresource): only the named fields change."""

    target: Target
    patch: Document
    subresource: str = ""
    is_guarded: bool = False
    """Send the target's resourceVersion along, so that a concurrent change is a conflict (and a retry)."""

    provided_gone: tuple[Target, ...] = ()
    """What the caches no longer show, and what the patch is right only without: the server is asked first, since caches can be
    late, and one that is there after all is a conflict (and a retry)."""


@dataclass(frozen=True)
class Apply:
    """Server-side apply with our field manager: we own the named fields from then on."""

    kind: type[Resource]
    document: Document
    force: bool = True


@dataclass(frozen=True)
class SetStatus:
    """Merge-patch the status. On kinds without a status subresource the main resource is patched."""

    target: Target
    status: Document

    can_wait_s: float = 0.0
    """How long the runtime may put it off, for what is to be said next: it is asked again, and says it all at once."""


@dataclass(frozen=True)
class Delete:
    """Delete an object, guarded by its uid. That it is gone already is success."""

    target: Target
    reason: str = ""
    """Why, for the log."""

    grace_s: int | None = None
    propagation: str = ""
    is_guarded: bool = False
    """Send the target's resourceVersion along, for an object that somebody may take meanwhile: then it is a conflict (and a retry)."""


@dataclass(frozen=True)
class Evict:
    """Evict a pod through its disruption budgets."""

    target: Target
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """Record an event about an object; repeated ones are counted, not repeated."""

    target: Target
    reason: str
    message: str
    type: str = "Normal"
    field_path: str = ""
    """The part of the object that it is about: `spec.containers{main}`."""


@dataclass(frozen=True)
class RequeueAfter:
    """Look at this object again after a while even if nothing changes."""

    seconds: float


Command = Create | Patch | Apply | SetStatus | Delete | Evict | Event | RequeueAfter
