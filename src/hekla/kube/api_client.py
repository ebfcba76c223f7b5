"""The client: turns calls into requests, answers into typed objects, refusals into exceptions.

`client.py` says what each call promises; the transports (`in_process.py`, `https.py`) carry the requests. Beside the
typed calls there are `*document_of` calls for code that works with any kind (apply, garbage collection).
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import structlog

from hekla import __version__
from hekla.api.meta import Document, Kind, Resource, segment
from hekla.kube.answers import (
    Frame,
    error_from_response,
    lines,
)
from hekla.kube.client import Decided, EventType, Page, PatchType, Transport, WatchEvent
from hekla.kube.decoding import (
    declared_kind,
    decode_document,
    decode_page,
    decoder,
    document_of,
    frame_of,
    page_of_documents,
    typed_event,
)
from hekla.kube.errors import ApiError, error_from_status
from hekla.kube.rate_limit import TokenBucket
from hekla.wire.messages import Request, Response

T = TypeVar("T", bound=Resource)
Item = TypeVar("Item")
log = structlog.get_logger()

USER_AGENT = f"hekla/{__version__}"
PAGE_LIMIT = 500
MAX_RETRIES = 6
MAX_RETRY_AFTER_S = 30.0
MAX_WARNINGS_KEPT = 1000
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
Undurable = list["asyncio.Future[None]"] | None
"""See `Request.undurable`."""

_encode = msgspec.json.Encoder().encode


class ApiClient:
    """A `Client` over any transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        user_agent: str = USER_AGENT,
        rate_limit: TokenBucket | None = None,
        page_limit: int = 0,
    ) -> None:
        self._transport = transport
        self._user_agent = user_agent
        self._rate_limit = rate_limit
        self._page_limit = page_limit or getattr(transport, "page_limit", PAGE_LIMIT)
        self._warned: OrderedDict[str, None] = OrderedDict()
        self.binds_in_bulk: bool = getattr(transport, "binds_in_bulk", False)
        """Whether `bind_many` may be called: only a server in this process knows how."""

        self.prefers_watch_list: bool = getattr(transport, "prefers_watch_list", False)
        """Whether informers should start with a streamed list: over a network it saves the server memory."""

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """One object; NotFoundError if it is absent."""
        return decoder(kind)(await self._send("GET", kind.kind_info.path(namespace, name)))

    async def list(
        self, kind: type[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Page[T]:
        """All objects, page by page; an object that does not decode is left out and logged."""
        query = _selectors(label_selector, field_selector)
        items: list[T] = []
        revision = ""
        async for page in self._pages(kind.kind_info, namespace, query, partial(decode_page, kind)):
            items += page.items
            revision = revision or page.resource_version
            await asyncio.sleep(0)  # a server in this process answers at once, page after page
        return Page(items, revision)

    async def watch(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        send_initial_events: bool = False,
        timeout_s: int | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after a revision, bookmarks included; ends when the server closes; GoneError if it is too old."""
        path = _watch_path(
            kind.kind_info, namespace, resource_version, _selectors(label_selector, field_selector),
            send_initial_events=send_initial_events, timeout_s=timeout_s,
        )  # fmt: skip
        decode = decoder(kind)
        async with aclosing(self._frames(path)) as frames:
            async for frame in frames:
                event = typed_event(frame, kind, decode)
                if event is not None:
                    yield event

    async def create(self, kind: type[T], document: Document, namespace: str = "", *, dry_run: bool = False) -> T:
        """Create from a document; apiVersion and kind may be left out."""
        return decoder(kind)(await self._create(kind.kind_info, document, namespace, dry_run=dry_run))

    async def create_soon(self, kind: type[T], document: Document, namespace: str = "") -> Decided[T]:
        """The same, answered as soon as it is decided where the server is in this process; elsewhere, when it is on disk."""
        undurable: list[asyncio.Future[None]] = []
        body = await self._create(kind.kind_info, document, namespace, dry_run=False, undurable=undurable)
        return Decided(decoder(kind)(body), undurable)

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
        body = await self._patch(
            kind.kind_info, name, patch, namespace,
            patch_type=patch_type, subresource=subresource, field_manager=field_manager, force=force,
        )  # fmt: skip
        return decoder(kind)(body)

    async def patch_soon(self, kind: type[T], name: str, patch: Document, namespace: str = "") -> Decided[T]:
        """A merge patch of an object, answered as soon as it is decided where the server is in this process."""
        undurable: list[asyncio.Future[None]] = []
        body = await self._patch(
            kind.kind_info, name, patch, namespace,
            patch_type=PatchType.MERGE, subresource="", field_manager="hekla", force=False, undurable=undurable,
        )  # fmt: skip
        return Decided(decoder(kind)(body), undurable)

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
        await self.delete_document(
            kind.kind_info, name, namespace,
            grace_s=grace_s, propagation=propagation, uid=uid, resource_version=resource_version,
        )  # fmt: skip

    async def bind(
        self, namespace: str, pod: str, node: str, *, uid: str = "", annotations: dict[str, str] | None = None
    ) -> None:
        """Bind a pod to a node."""
        metadata: Document = {"name": pod, "namespace": namespace}
        if uid:
            metadata["uid"] = uid
        if annotations:
            metadata["annotations"] = annotations
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(pod)}/binding"
        await self._send("POST", path, _encode(binding))

    async def bind_many(self, bindings: Sequence[tuple[str, str, str, str]]) -> "Sequence[ApiError | None]":
        """Bind pods, each [namespace, name, uid, node], in one call; for each the refusal, or None."""
        answer = await self._send("POST", "/hekla/bindings", _encode(bindings))
        refused: list[Document | None] = msgspec.json.decode(answer)
        return [None if status is None else error_from_status(status) for status in refused]

    async def evict(self, namespace: str, pod: str, *, grace_s: int | None = None) -> None:
        """Ask for an eviction once: a budget that says no is an answer, not a reason to try again at once."""
        eviction: Document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        if grace_s is not None:
            eviction["deleteOptions"] = {"gracePeriodSeconds": grace_s}
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(pod)}/eviction"
        await self._send("POST", path, _encode(eviction), retries=0)

    async def request(
        self,
        method: str,
        path: str,
        document: Document | Sequence[Document] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Document:
        """Any call at all; the answer's document."""
        body = b"" if document is None else _encode(document)
        return document_of(await self._send(method, path, body, content_type=content_type))

    async def text(self, path: str) -> str:
        """A GET whose answer is text: logs, metrics, /healthz."""
        return (await self._send("GET", path, accept="text/plain, */*")).decode(errors="replace")

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """A GET whose answer is read as it comes: followed logs."""
        return self._transport.stream(self._request("GET", path, b"", "", "*/*"))

    def kind_of(self, api_version: str, kind: str) -> Kind:
        """What a document's type means, from the declared kinds; KeyError if nobody declares it."""
        return declared_kind(api_version, kind)

    async def get_document(self, kind: Kind, name: str, namespace: str = "", subresource: str = "") -> Document:
        """One object as it is on the wire."""
        return document_of(await self._send("GET", kind.path(namespace, name, subresource)))

    async def list_documents(
        self, kind: Kind, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Page[Document]:
        """All objects as they are on the wire, each with its apiVersion and kind."""
        items: list[Document] = []
        revision = ""
        query = _selectors(label_selector, field_selector)
        async for page in self._pages(kind, namespace, query, partial(page_of_documents, kind)):
            items += page.items
            revision = revision or page.resource_version
        return Page(items, revision)

    async def watch_documents(
        self,
        kind: Kind,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: int | None = None,
    ) -> AsyncIterator[WatchEvent[Document]]:
        """Changes after a revision, as documents."""
        query = _selectors(label_selector, field_selector)
        path = _watch_path(kind, namespace, resource_version, query, timeout_s=timeout_s)
        async with aclosing(self._frames(path)) as frames:
            async for frame in frames:
                obj = decode_document(frame.object)
                yield WatchEvent(EventType(frame.type), obj, obj.get("metadata", {}).get("resourceVersion", ""))

    async def create_document(
        self, kind: Kind, document: Document, namespace: str = "", *, dry_run: bool = False
    ) -> Document:
        """Create; the answer as it is on the wire."""
        return document_of(await self._create(kind, document, namespace, dry_run=dry_run))

    async def patch_document(
        self,
        kind: Kind,
        name: str,
        patch: Document | Sequence[Document],
        namespace: str = "",
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "hekla",
        force: bool = False,
    ) -> Document:
        """Patch; the answer as it is on the wire."""
        body = await self._patch(
            kind, name, patch, namespace,
            patch_type=patch_type, subresource=subresource, field_manager=field_manager, force=force,
        )  # fmt: skip
        return document_of(body)

    async def delete_document(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        grace_s: int | None = None,
        propagation: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> Document:
        """Ask for deletion; the answer is a Status if the object is gone, and the object if it is still leaving."""
        if not name:  # the path without one is that of all objects
            raise ApiError(400, "BadRequest", "resource name may not be empty")
        options: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation:
            options["propagationPolicy"] = propagation
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if uid or resource_version:
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        return document_of(await self._send("DELETE", kind.path(namespace, name), _encode(options)))

    async def close(self) -> None:
        """Release the transport."""
        await self._transport.close()

    async def _create(
        self, kind: Kind, document: Document, namespace: str, *, dry_run: bool, undurable: Undurable = None
    ) -> bytes:
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **document}
        namespace = namespace or document.get("metadata", {}).get("namespace", "")
        query = "?dryRun=All" if dry_run else ""
        return await self._send("POST", kind.path(namespace) + query, _encode(whole), undurable=undurable)

    async def _patch(
        self,
        kind: Kind,
        name: str,
        patch: Document | Sequence[Document],
        namespace: str,
        *,
        patch_type: PatchType,
        subresource: str,
        field_manager: str,
        force: bool,
        undurable: Undurable = None,
    ) -> bytes:
        query = _patch_query(field_manager, is_forced=force and patch_type is PatchType.APPLY)
        if patch_type is PatchType.APPLY and isinstance(patch, dict):
            patch = {"apiVersion": kind.api_version, "kind": kind.kind, **patch}
        path = f"{kind.path(namespace, name, subresource)}?{query}"
        return await self._send("PATCH", path, _encode(patch), content_type=patch_type, undurable=undurable)

    async def _pages(
        self, kind: Kind, namespace: str, query: dict[str, str], read: Callable[[bytes], Page[Item]]
    ) -> AsyncIterator[Page[Item]]:
        token = ""
        while True:
            paging = {"limit": str(self._page_limit)} | ({"continue": token} if token else {})
            page = read(await self._send("GET", f"{kind.path(namespace)}?{urlencode(query | paging)}"))
            yield page
            token = page.continue_token
            if not token:
                return

    async def _frames(self, path: str) -> AsyncGenerator[Frame, None]:
        if self._rate_limit is not None:
            await self._rate_limit.acquire()
        request = self._request("GET", path, b"", "", "application/json")
        stream = self._transport.stream(request)
        try:
            async for line in lines(stream):
                frame = frame_of(line)
                if frame.type == "ERROR":
                    raise error_from_status(decode_document(frame.object))
                yield frame
        finally:
            await stream.aclose()  # type: ignore[attr-defined]  # every transport's stream is an async generator

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        retries: int = MAX_RETRIES,
        undurable: Undurable = None,
    ) -> bytes:
        for attempt in range(retries + 1):
            if self._rate_limit is not None:
                await self._rate_limit.acquire()
            request = self._request(method, path, body, content_type, accept)
            request.undurable = undurable
            response = await self._transport.send(request)
            self._log_warnings(method, path, response)
            assert isinstance(response.body, bytes), "a transport's `send` returns the whole body"
            if response.status < 400:
                return response.body
            error = error_from_response(response.status, response.body, response.headers, asked=f"{method} {path}")
            wait_s = _retry_after_s(error)
            if wait_s is None or attempt == retries:
                error.path = path
                raise error
            log.debug("server asked to wait", method=method, path=path, wait_s=wait_s)
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _request(self, method: str, path: str, body: bytes, content_type: str, accept: str) -> Request:
        headers = {"accept": accept, "user-agent": self._user_agent}
        if body:
            headers["content-type"] = content_type
        return Request(method, path, headers, body)

    def _log_warnings(self, method: str, path: str, response: Response) -> None:
        lines = [value for name, value in response.headers if name.lower() == "warning"]  # a server sends one for each
        for quoted in (one for line in lines for one in _WARNING.findall(line)):
            warning = quoted.replace('\\"', '"').replace("\\\\", "\\")
            if warning in self._warned:
                continue
            self._warned[warning] = None
            if len(self._warned) > MAX_WARNINGS_KEPT:
                self._warned.popitem(last=False)
            log.warning("server warned", method=method, path=path.partition("?")[0], warning=warning)


@lru_cache(maxsize=64)  # a program has one name, and quoting it took 10 us of each patch
def _patch_query(field_manager: str, *, is_forced: bool) -> str:
    return urlencode({"fieldManager": field_manager} | ({"force": "true"} if is_forced else {}))


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def _watch_path(
    kind: Kind,
    namespace: str,
    resource_version: str,
    query: dict[str, str],
    *,
    send_initial_events: bool = False,
    timeout_s: int | None = None,
) -> str:
    query = query | {"watch": "true", "allowWatchBookmarks": "true"}
    if resource_version:
        query["resourceVersion"] = resource_version
    if send_initial_events:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    if timeout_s is not None:
        query["timeoutSeconds"] = str(timeout_s)
    return f"{kind.path(namespace)}?{urlencode(query)}"


def _retry_after_s(error: ApiError) -> float | None:
    """How long to wait before the same request may be sent again; None if that would not help."""
    if error.code not in (429, 503) or not error.retry_after_s:
        return None
    return min(error.retry_after_s, MAX_RETRY_AFTER_S)
