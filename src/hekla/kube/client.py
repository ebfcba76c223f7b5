"""The one client that everything above `kube` uses, whatever lies below: this process, or an API server over HTTPS.

Objects go in and come out either typed (a class from `hekla.api`) or as documents (`dict`). Reads decode only the
fields a class declares; so writes are creations, patches and deletions, never a typed object written back whole.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from hekla.api.meta import Document, Kind, Resource
from hekla.kube.errors import ApiError, TransportError
from hekla.wire.messages import Request, Response

T = TypeVar("T", bound=Resource)
Item = TypeVar("Item")
"""A typed object or a document."""


class PatchType(StrEnum):
    """The content type of a patch."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Transport(Protocol):
    """How one request reaches an API server. Implementations: in process, and HTTPS."""

    async def send(self, request: Request) -> Response:
        """The whole answer (`Response.body` is bytes); raises `TransportError`."""

    def stream(self, request: Request) -> AsyncIterator[bytes]:
        """The answer's body piece by piece as it arrives (watches, followed logs); raises ApiError for an error status."""

    async def close(self) -> None:
        """Release connections; running calls fail with `TransportError`."""


class EventType(StrEnum):
    """What happened to an object, as a watch tells it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[Item]):
    """One change of one object."""

    type: EventType
    object: Item
    resource_version: str


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """What a list returned."""

    items: list[Item]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class Decided(Generic[T]):
    """What a write has decided, perhaps before it is on disk: for who has something else to do meanwhile."""

    object: T
    writes: "Sequence[asyncio.Future[None]]"

    async def durable(self) -> None:
        """Return once it cannot be lost any more; TransportError where the disk refused it, and it is undone."""
        for write in self.writes:
            try:
                await write
            except Exception as refusal:  # the store's own, which nothing outside the server knows
                raise TransportError(f"{self.object.metadata.name} was not written: {refusal}") from refusal


class Client(Protocol):
    """Typed and raw access to one API server. All methods raise `hekla.kube.errors`."""

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """One object; NotFoundError if it is absent."""

    async def list(
        self, kind: type[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Page[T]:
        """All objects (paged underneath), in one namespace or, with "", in all."""

    def watch(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after a revision; ends when the server closes; GoneError if the revision is too old."""

    async def create(self, kind: type[T], document: Document, namespace: str = "", *, dry_run: bool = False) -> T:
        """Create from a document; apiVersion and kind may be left out."""

    async def patch(
        self,
        kind: type[T],
        name: str,
        patch: Document | Sequence[Document],
        namespace: str = "",
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "hekla",
        force: bool = False,
    ) -> T:
        """Patch an object or a subresource; APPLY is server-side apply."""

    async def delete(
        self,
        kind: type[Resource],
        name: str,
        namespace: str = "",
        *,
        grace_s: int | None = None,
        propagation: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Ask for deletion; `uid` and `resource_version` are preconditions."""

    async def bind(
        self, namespace: str, pod: str, node: str, *, uid: str = "", annotations: dict[str, str] | None = None
    ) -> None:
        """Bind a pod to a node."""

    @property
    def binds_in_bulk(self) -> bool:
        """Whether the server knows a call that binds many pods."""

    async def bind_many(self, bindings: Sequence[tuple[str, str, str, str]]) -> Sequence[ApiError | None]:
        """Bind pods, each [namespace, name, uid, node], in one call; for each the refusal, or None."""

    async def evict(self, namespace: str, pod: str, *, grace_s: int | None = None) -> None:
        """Ask for an eviction; TooManyRequestsError where a disruption budget forbids it."""

    async def request(
        self,
        method: str,
        path: str,
        document: Document | Sequence[Document] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Document:
        """Any call at all; the answer's document."""

    def kind_of(self, api_version: str, kind: str) -> Kind:
        """What a document's type means, from the declared kinds; KeyError if nobody declares it."""
