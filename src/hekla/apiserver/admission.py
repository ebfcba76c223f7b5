"""Admission: what may change or refuse a write after authorization and before storage.

Rules are values: `app` hands the server those of the platform (`admission_rules/`) and of the features; the same
rules serve real webhooks on a cluster. Mutating rules run first, in order; validating ones see the final object.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from hekla.api.meta import Document, Kind


class Operation(StrEnum):
    """What is being done."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


@dataclass(frozen=True)
class User:
    """Who asks, as authentication found."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Reader(Protocol):
    """What rules may look at: the server's current objects."""

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document (do not change it), by `plural.group`."""

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource."""


@dataclass(slots=True)
class AdmissionRequest:
    """One write on its way in. Mutating rules change `object`."""

    kind: Kind
    operation: Operation
    namespace: str
    name: str
    subresource: str
    object: Document | None
    old: Document | None
    user: User
    is_dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    is_rewritten: bool = False
    """Whether somebody outside changed the object: what they wrote has yet to be checked and completed."""
    has_waited: bool = False
    """Whether a rule had to wait for an answer, which may be another the next time."""


class AdmissionRule(Protocol):
    """One rule. It refuses by raising `StatusError` (usually `status.forbidden`)."""

    @property
    def name(self) -> str:
        """How it is called in logs and refusals."""

    def wants(self, request: AdmissionRequest) -> bool:
        """Whether this rule has anything to say about the request; cheap, it is asked for every write.

        A rule that answers by kind, operation and subresource alone may say so with an attribute `is_by_kind = True`;
        it is then asked once for each combination.

        A rule may say with `goes_by_template = True` that what it makes of a new object, and says of it, goes by its text but
        for the name, by its namespace, and by what it looks up: not by name, uid, time, dice, or who asks. Pods that differ
        in nothing else are then shown to it once (`pod_templates.py`).
        """

    def mutate(self, request: AdmissionRequest, reader: Reader) -> Awaitable[None] | None:
        """Change `request.object`, or refuse."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> Awaitable[None] | None:
        """Refuse, or let pass."""
