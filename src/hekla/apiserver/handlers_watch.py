"""Watches: from a request's query to a `WatchRequest`. `watch_hub.py` does the fanning out.

An event is encoded once per representation: the encoders here are cached per served resource, so that watchers who
see the same bytes share them.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import encode, metadata_only, with_revision
from hekla.apiserver.calls import Call
from hekla.apiserver.handlers_read import object_bytes
from hekla.apiserver.list_options import check_watch_options
from hekla.apiserver.listing import Page, Selection, check_not_ahead, parsed_revision, selection_of
from hekla.apiserver.presentation import PARTIAL_HEAD
from hekla.apiserver.registry import Served
from hekla.apiserver.selectors import ANY_FIELDS, EVERYTHING
from hekla.apiserver.status import expired
from hekla.apiserver.store import CompactedError, Stored
from hekla.apiserver.watch_hub import Watch, WatchHub, WatchRequest
from hekla.wire.messages import Push, Response, Sink

INITIAL_END = "k8s.io/initial-events-end"
TIMEOUT_S = (1800, 3600)
"""Seconds after which a watch that named no time ends; drawn per watch, so that clients do not all come back at once."""

MATCHERS = 1_024
"""Selectors whose matching functions are shared between watchers."""


class Watches:
    """All watches of one server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._hub = WatchHub(backend.store)
        self._encoders: dict[tuple[Served, str], Callable[[str, Stored, int], bytes]] = {}
        self._matchers: dict[Selection, Callable[[Stored], bool]] = {}
        backend.registry.on_change(self._follow_registry)

    @property
    def count(self) -> int:
        """How many watches there are."""
        return self._hub.count

    def close(self) -> None:
        """End all watches in good order."""
        self._hub.close()

    def _follow_registry(self) -> None:
        self._encoders.clear()
        for resource in self._hub.resources():
            if self._backend.registry.stored(resource) is None:
                self._hub.close_resource(resource)

    def watch(self, call: Call) -> Response:
        """Answer a watch: a head at once, then events as they come."""
        call.number("limit")  # which a watch has no use for, but it has to be a number
        timeout_s = call.number("timeoutSeconds") or random.uniform(*TIMEOUT_S)
        request = self._request(call)
        content_type = "application/json" if not call.wanted.shape else _shaped_type(call)
        return Response(200, self._push(request, timeout_s), content_type)

    def _push(self, request: WatchRequest, timeout_s: float) -> Push:
        def push(sink: Sink) -> None:
            try:
                watch = self._hub.watch(request, sink)
            except CompactedError as error:
                sink.write(_gone(error))
                sink.close()
                return
            timer = asyncio.get_running_loop().call_later(timeout_s, watch.close)
            sink.on_close(timer.cancel)

        return push

    def _request(self, call: Call) -> WatchRequest:
        selection = selection_of(call)
        check_watch_options(call)
        if call.target.name:
            selection = Selection(selection.labels, _pinned_name(call, selection))
        pinned, rest = _pin(selection)
        revision = parsed_revision(call.option("resourceVersion"))
        check_not_ahead(self._backend, revision)
        wants_initial = bool(call.option("sendInitialEvents")) and call.flag("sendInitialEvents")
        encoder = self._encoder(call)
        return WatchRequest(
            resource=call.served.resource,
            encode=encoder,
            since=revision or None,
            namespace=call.target.namespace,
            field=pinned,
            matches=self._matcher(rest),
            has_initial=revision == 0 or wants_initial,
            initial_end=partial(_bookmark, call.served, call.wanted.shape, True) if wants_initial else None,
            bookmark=partial(_bookmark, call.served, call.wanted.shape, False)
            if call.flag("allowWatchBookmarks")
            else None,
            gone=_gone,
        )

    def _encoder(self, call: Call) -> Callable[[str, Stored, int], bytes]:
        shape = call.wanted.shape
        if shape == "Table":
            return _TableEncoder(self._backend, call.served, call.option("includeObject"))
        known = self._encoders.get((call.served, shape))
        if known is None:
            known = self._encoders[call.served, shape] = partial(_frame, call.served, shape)
        return known

    def _matcher(self, selection: Selection) -> Callable[[Stored], bool] | None:
        if selection.is_everything:
            return None
        known = self._matchers.get(selection)
        if known is None:
            if len(self._matchers) >= MATCHERS:
                self._matchers.clear()
            known = self._matchers[selection] = selection.takes
        return known


def _frame(served: Served, shape: str, event: str, stored: Stored, revision: int) -> bytes:
    body = object_bytes(served, stored)
    if revision != stored.revision:
        body = with_revision(body, revision)
    if shape == "PartialObjectMetadata":
        body = metadata_only(body, PARTIAL_HEAD)
    return b'{"type":"' + event.encode() + b'","object":' + body + b"}\n"


class _TableEncoder:
    """Events as tables of one row; the columns are told with the first one only, as kubectl expects."""

    def __init__(self, backend: Backend, served: Served, include: str) -> None:
        self._backend, self._served, self._include = backend, served, include
        self._is_first = True

    def __call__(self, event: str, stored: Stored, revision: int) -> bytes:
        from hekla.apiserver.tables import table_of

        table = table_of(self._backend, self._served, Page([stored], revision), self._include, is_list=False)
        if not self._is_first:
            table["columnDefinitions"] = None
        self._is_first = False
        return b'{"type":"' + event.encode() + b'","object":' + encode(table) + b"}\n"


def _pin(selection: Selection) -> tuple[tuple[str, str] | None, Selection]:
    """One clause that an index can answer, and the rest."""
    for clause in selection.fields.clauses:
        name, wants_equal, value = clause
        if wants_equal:
            others = tuple(one for one in selection.fields.clauses if one is not clause)
            return (name, value), Selection(selection.labels, type(selection.fields)(others))
    return None, selection


def _pinned_name(call: Call, selection: Selection) -> Any:
    return type(ANY_FIELDS)((*selection.fields.clauses, ("metadata.name", True, call.target.name)))


def _bookmark(served: Served, shape: str, is_initial_end: bool, revision: int) -> bytes:
    metadata: Document = {"resourceVersion": str(revision)}
    if is_initial_end:
        metadata["annotations"] = {INITIAL_END: "true"}
    if shape == "Table":
        said: Document = {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": str(revision)},
            "columnDefinitions": None,
            "rows": [_bookmark_row(metadata)],
        }
        return b'{"type":"BOOKMARK","object":' + encode(said) + b"}\n"
    head = PARTIAL_HEAD if shape == "PartialObjectMetadata" else served.head
    return b'{"type":"BOOKMARK","object":' + head + b'"metadata":' + encode(metadata) + b"}}\n"


def _bookmark_row(metadata: Document) -> Document:
    return {
        "cells": [],
        "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata},
    }


def _gone(error: CompactedError) -> bytes:
    status = expired(f"too old resource version: {error.wanted} ({error.oldest})").document()
    return b'{"type":"ERROR","object":' + encode(status) + b"}\n"


def _shaped_type(call: Call) -> str:
    return f"application/json;as={call.wanted.shape};g=meta.k8s.io;v=v1"


__all__ = ["EVERYTHING", "Watch", "Watches"]
