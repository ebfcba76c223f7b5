"""Which objects a list shows: selectors, resource versions, pages.

A page's continue token names a revision and the last object shown; the next page is cut from the list as it was at
that revision, so that all pages together are one consistent list. If that past is gone, 410 brings a token for the rest as it is now.
"""

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hekla.apiserver.backend import Backend
from hekla.apiserver.calls import Call
from hekla.apiserver.list_options import check_list_options
from hekla.apiserver.selectable import field_of, known_fields, refusal
from hekla.apiserver.selectors import FieldSelector, LabelSelector, field_selector, label_selector
from hekla.apiserver.status import StatusError, bad_request, expired
from hekla.apiserver.store import CompactedError, Key, Stored

TOKEN_VERSION = "meta.k8s.io/v1"
LATEST = -1
"""The revision in a token of a list that has become inconsistent: whatever there is when it is shown."""

_INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the "
    "continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with "
    "the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)
"""Kubernetes' words."""


class Page(NamedTuple):
    """A list, or one page of it."""

    items: Sequence[Stored]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


class Selection(NamedTuple):
    """What a list or a watch selects."""

    labels: LabelSelector
    fields: FieldSelector

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.labels.requirements and not self.fields.clauses

    def takes(self, stored: Stored) -> bool:
        """Whether an object is selected."""
        return self.labels.matches(stored.labels) and self.fields.matches(field_of(stored))


def selection_of(call: Call) -> Selection:
    """The selectors of a request; raises 400."""
    served = call.served
    known = known_fields(served.selectable, is_namespaced=served.kind.is_namespaced)
    fields = field_selector(
        call.option("fieldSelector"), known, refusal(served.kind, served.selectable, is_custom=served.is_custom)
    )
    return Selection(label_selector(call.option("labelSelector")), fields)


def page_of(backend: Backend, call: Call) -> Page:
    """The objects that a list request shows."""
    selection = selection_of(call)
    limit, token = max(0, call.number("limit")), call.option("continue")
    call.number("timeoutSeconds")  # which a list has no use for, but it has to be a number
    check_list_options(call)
    if token:
        return _next_page(backend, call, selection, limit, token)
    if call.target.name:
        return _one(backend, call)
    revision = _asked_revision(backend, call, limit)
    resource, namespace = call.served.resource, call.target.namespace
    if revision is None:
        return _cut(_selected(backend, resource, namespace, selection), backend.store.revision, selection, limit)
    try:
        items = backend.store.list_at(resource, namespace, revision=revision)
    except CompactedError:
        raise expired("The resourceVersion for the provided list is too old.") from None
    return _cut(_filtered(items, selection), revision, selection, limit)


def _one(backend: Backend, call: Call) -> Page:
    stored = backend.store.get_durable(Key(call.served.resource, call.target.namespace, call.target.name))
    return Page([stored] if stored else [], backend.store.revision)


def _asked_revision(backend: Backend, call: Call, limit: int) -> int | None:
    """The exact past revision to list, or None for the present."""
    asked, match = call.option("resourceVersion"), call.option("resourceVersionMatch")
    revision = parsed_revision(asked, "invalid resource version: ")
    check_not_ahead(backend, revision)
    is_exact = match == "Exact" or (not match and limit > 0)
    return revision if revision and is_exact and revision != backend.store.revision else None


def parsed_revision(text: str, said: str = "") -> int:
    """A resourceVersion as a number; raises 400, whose sentence begins with `said`."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise bad_request(
            f'{said}resourceVersion: Invalid value: "{text[:60]}": strconv.ParseUint: parsing "{text[:60]}": invalid syntax'
        )
    return int(text)


def check_not_ahead(backend: Backend, revision: int) -> None:
    """Refuse a revision that has not been reached."""
    current = backend.store.revision
    if revision > current:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        details = {"causes": [cause], "retryAfterSeconds": 1}
        raise StatusError(
            504, "Timeout", f"Timeout: Too large resource version: {revision}, current: {current}", details=details
        )


def _selected(backend: Backend, resource: str, namespace: str, selection: Selection) -> Sequence[Stored]:
    name = selection.fields.exact("metadata.name")
    within = namespace or selection.fields.exact("metadata.namespace") or ""
    served = backend.registry.stored(resource)
    if name is not None and (within or (served and not served.kind.is_namespaced)):
        stored = backend.store.get_durable(Key(resource, within, name))
        return _filtered([stored] if stored else [], selection)
    return _filtered(backend.store.list_durable(resource, namespace), selection)


def _filtered(items: Sequence[Stored], selection: Selection) -> Sequence[Stored]:
    return items if selection.is_everything else [item for item in items if selection.takes(item)]


def _next_page(backend: Backend, call: Call, selection: Selection, limit: int, token: str) -> Page:
    if call.option("resourceVersion") not in {"", "0"}:
        raise bad_request("specifying resource version is not allowed when using continue")
    asked, start = _opened(token)
    revision = backend.store.revision if asked == LATEST else asked
    check_not_ahead(backend, revision)
    try:
        items = backend.store.list_at(call.served.resource, call.target.namespace, revision=revision)
    except CompactedError:
        raise expired(_INCONSISTENT, _sealed(LATEST, start)) from None
    first = bisect_right(items, start, key=_place)
    if selection.is_everything:
        return _cut(items, revision, selection, limit, first)
    return _cut(_filtered(items[first:], selection), revision, selection, limit)


def _cut(items: Sequence[Stored], revision: int, selection: Selection, limit: int, first: int = 0) -> Page:
    if not limit or len(items) - first <= limit:
        return Page(items[first:], revision)
    shown = items[first : first + limit]
    # Kubernetes cannot count what a selector has yet to drop, and neither says so
    remaining = len(items) - first - limit if selection.is_everything else None
    return Page(shown, revision, _sealed(revision, _place(shown[-1])), remaining)


def _place(stored: Stored) -> str:
    return f"{stored.key.namespace}\x00{stored.key.name}"


def _sealed(revision: int, last: str) -> str:
    text = json.dumps({"v": TOKEN_VERSION, "rv": revision, "start": last}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _opened(token: str) -> tuple[int, str]:
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _bad_token("illegal base64 data") from None
    try:
        said = json.loads(raw)
    except ValueError:
        raise _bad_token(f"invalid character {_shown_byte(raw)} looking for beginning of value") from None
    if not isinstance(said, dict) or said.get("v") != TOKEN_VERSION:
        raise _bad_token("server does not recognize this encoded version")
    revision, start = said.get("rv"), said.get("start")
    if not isinstance(revision, int) or not isinstance(start, str) or revision < LATEST or revision == 0:
        raise _bad_token("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
    return revision, start


def _shown_byte(raw: bytes) -> str:
    if not raw:
        return "end"
    return f"'\\x{raw[0]:02x}'" if raw[0] >= 128 else f"'{chr(raw[0])}'"


def _bad_token(why: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {why}")
