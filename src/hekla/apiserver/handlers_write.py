"""POST, PUT and DELETE of objects and collections; PATCH lives in `handlers_patch.py`."""

import asyncio

from hekla.api.meta import Document
from hekla.apiserver import managed_fields
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import metadata_only, with_managed_fields
from hekla.apiserver.calls import Call
from hekla.apiserver.deletes import DeleteOptions, delete, delete_options, deletion_details
from hekla.apiserver.fielderrors import invalid
from hekla.apiserver.handlers_read import list_bytes
from hekla.apiserver.listing import page_of
from hekla.apiserver.negotiation import document_type
from hekla.apiserver.options import check_write_options
from hekla.apiserver.pod_templates import PodTemplate, Sent, taken_apart
from hekla.apiserver.presentation import PARTIAL_HEAD, answer, document_answer
from hekla.apiserver.status import (
    StatusError,
    bad_request,
    details_of,
    method_not_allowed,
    not_found,
    qualified,
    success,
)
from hekla.apiserver.store import Key
from hekla.apiserver.writes import Edit, Outcome, create, create_alike, create_named, update
from hekla.wire.messages import Response

CREATES_ON_UPDATE = frozenset(
    {
        "endpoints", "events", "limitranges", "services", "leases.coordination.k8s.io",
        "runtimeclasses.node.k8s.io", "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
    }
)  # fmt: skip


ONLY_KNOWN_REVISIONS = frozenset(
    {
        "leases.coordination.k8s.io", "poddisruptionbudgets.policy", "runtimeclasses.node.k8s.io",
        "csidrivers.storage.k8s.io", "csinodes.storage.k8s.io", "csistoragecapacities.storage.k8s.io",
        "volumeattachments.storage.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    }
)  # fmt: skip
"""Kinds that, like all custom ones, are replaced only by somebody who says which revision they have read."""


async def create_object(backend: Backend, call: Call) -> Response:
    """POST to a collection."""
    check_write_options(call)
    warnings: list[str] = []
    track = managed_fields.tracker(backend, call)
    lesson = None
    if (sent := _pod_sent(call)) is not None:
        known = backend.pod_templates.find(sent)
        if isinstance(known, PodTemplate):
            return outcome_answer(call, await create_alike(backend, call, known, sent.name, track), warnings)
        # what this one may leave unsaid, unknown fields and keys that are there twice, another one has to be told
        lesson = None if call.option("fieldValidation") == "Ignore" else known
    document = decoded(call, warnings)
    _check_namespace(call, document)
    return outcome_answer(call, await create(backend, call, document, track, warnings, lesson), warnings)


def _pod_sent(call: Call) -> Sent | None:
    """A pod's text, of which pods have perhaps been made before."""
    is_plain = call.served.resource == "pods" and call.content_type == "application/json" and "dryRun" not in call.query
    return taken_apart(call.request.body, call.target.namespace) if is_plain and call.target.namespace else None


async def replace_object(backend: Backend, call: Call) -> Response:
    """PUT of an object or of one of its parts (status)."""
    check_write_options(call)
    warnings: list[str] = []
    document = decoded(call, warnings)
    _check_namespace(call, document)
    _check_name(call, document)
    key = Key(call.served.resource, call.target.namespace, call.target.name)
    if backend.store.get(key) is None and _may_create(call, document):
        outcome = await create_named(backend, call, document, managed_fields.tracker(backend, call), warnings)
        return outcome_answer(call, outcome, warnings)
    if not _may_be_blind(call) and document["metadata"].get("resourceVersion", "") in ("", "0"):
        raise _blind(backend, call, key)
    edit = Edit(
        key,
        revise=lambda _old: _fresh(document),
        track=managed_fields.tracker(backend, call),
        subresource=call.target.subresource,
        warnings=warnings,
    )
    return outcome_answer(call, await update(backend, call, edit), warnings)


def _may_be_blind(call: Call) -> bool:
    """Whether an object of the kind may be replaced by somebody who does not say which revision they have read."""
    return not (call.served.is_custom or call.served.resource in ONLY_KNOWN_REVISIONS)


def _blind(backend: Backend, call: Call, key: Key) -> StatusError:
    target = call.target
    if backend.store.get(key) is None:
        return not_found(target.resource, target.group, target.name)
    error = invalid("metadata.resourceVersion", 0, "must be specified for an update")
    causes = [{"reason": str(error.cause), "message": error.message, "field": error.field}]
    details = {**details_of(target.resource, target.group, target.name), "causes": causes}
    named = f'{qualified(target.resource, target.group)} "{target.name}"'
    return StatusError(422, "Invalid", f"{named} is invalid: {error.field}: {error.message}", details=details)


def _fresh(document: Document) -> Document:
    # an attempt may fill the document in; the next one starts from what was sent
    return {**document, "metadata": dict(document.get("metadata") or {})}


def _may_create(call: Call, document: Document) -> bool:
    if call.target.subresource or call.served.resource not in CREATES_ON_UPDATE:
        return False
    return not document.get("metadata", {}).get("resourceVersion")


def decoded(call: Call, warnings: list[str]) -> Document:
    """The object in a request's body, as its strategy understands it; raises 400, 415."""
    content_type = document_type(call.content_type)
    found = call.served.strategy.decode(call.request.body, content_type)
    check_unknown(call, found.unknown, warnings)
    return found.document


def check_unknown(call: Call, unknown: list[str], warnings: list[str]) -> None:
    """Refuse, tell of, or pass over unknown fields, as the caller asked."""
    if not unknown:
        return
    validation = call.field_validation
    if validation == "Strict":
        kind = call.served.kind
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {', '.join(unknown)}"
        )
    if validation == "Warn":
        warnings += unknown


def _check_namespace(call: Call, document: Document) -> None:
    metadata = document.get("metadata") or {}
    if call.served.kind.is_namespaced:
        if not call.target.namespace:
            raise method_not_allowed()
        if metadata.get("namespace", "") not in {"", call.target.namespace}:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    elif metadata.get("namespace"):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _check_name(call: Call, document: Document) -> None:
    name = (document.get("metadata") or {}).get("name", "")
    if not name:
        said = f"the name of the object ({call.target.name} based on URL) was undeterminable: name must be provided"
        raise bad_request(said)
    if name != call.target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({call.target.name})")


def outcome_answer(call: Call, outcome: Outcome, warnings: list[str], *, status: int = 0) -> Response:
    """What a write answers with: the object as it is now."""
    body = with_managed_fields(outcome.body, call.served.head, managed_fields.explicit(outcome.managed_fields))
    if call.wanted.shape == "PartialObjectMetadata":
        body = metadata_only(body, PARTIAL_HEAD)
    return answer(call, body, status=status or (201 if outcome.is_created else 200), warnings=warnings)


async def delete_object(backend: Backend, call: Call) -> Response:
    """DELETE of one object."""
    options = delete_options(call)
    warnings = _orphan_warning(call, options.policy)
    outcome = await delete(backend, call, call.target.name, options)
    if outcome.stored is not None or call.served.returns_deleted:
        return outcome_answer(call, outcome, warnings)
    return document_answer(call, success(details=deletion_details(call, outcome.document)), warnings=warnings)


def _orphan_warning(call: Call, policy: str) -> list[str]:
    if policy or call.served.resource != "jobs.batch":
        return []
    return [
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them "
        "or set propagationPolicy=Orphan to suppress this warning"
    ]


async def delete_collection(backend: Backend, call: Call) -> Response:
    """DELETE of all objects that a list would show: of one namespace, where they live in some."""
    if call.served.kind.is_namespaced and not call.target.namespace:
        raise method_not_allowed()
    options = delete_options(call)
    page = page_of(backend, call)
    for at in range(0, len(page.items), DELETED_TOGETHER):
        some = page.items[at : at + DELETED_TOGETHER]
        await asyncio.gather(*(_delete_if_there(backend, call, stored.key, options) for stored in some))
    return answer(call, list_bytes(call.served, page))


DELETED_TOGETHER = 256
"""Objects of a collection that share a commit: one by one, 50,000 would take a minute of fsyncs."""


async def _delete_if_there(backend: Backend, call: Call, key: Key, options: DeleteOptions) -> None:
    try:
        await delete(backend, call, key.name, options)
    except StatusError as error:
        if error.code != 404:
            raise
