"""The way of a write: decode, admit, check, store. Creating and changing objects meet here, whatever verb asked.

`handlers_write.py` turns requests into calls of these; `deletes.py` is the way out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation
from hekla.apiserver.auth.attributes import Attributes, refusal
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document, is_same, render_of, tail_of, tail_with, unstored_body, with_revision
from hekla.apiserver.calls import Call
from hekla.apiserver.fielderrors import invalid_object
from hekla.apiserver.pod_templates import Lesson, PodTemplate
from hekla.apiserver.registry import Served
from hekla.apiserver.status import StatusError, already_exists, bad_request, conflict, forbidden, not_found
from hekla.apiserver.store import Key, RevisionMismatchError, Stored

ATTEMPTS = 5
"""How often a patch is tried again when the object changes meanwhile, as Kubernetes does."""

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
NAMES_TRIED = 8
"""How many names are made up for a generateName before one that is taken is told, as in Kubernetes."""

SERVER_MADE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


class Outcome(NamedTuple):
    """What a write left: the body as it is to be shown, and what is stored (None after a dry run)."""

    body: bytes
    managed_fields: bytes
    document: Document
    stored: Stored | None
    is_created: bool = False


Revise = Callable[[Document], Document]
"""From the object as it is to the object as it should be; it may change what it is given."""

Track = Callable[[bytes, Document | None, Document], bytes]
"""From (managedFields as they are, old, new) to managedFields as they become."""


def keep_track_of_nothing(managed_fields: bytes, _old: Document | None, _new: Document) -> bytes:
    """Leave managedFields as they are."""
    return managed_fields


@dataclass(slots=True)
class Edit:
    """A change to one object, on its way."""

    key: Key
    revise: Revise
    track: Track = keep_track_of_nothing
    subresource: str = ""
    expected: int | None = None
    """The only revision that may be changed; None: whatever is there when the change is made."""

    uid: str = ""
    """The only identity that may be changed; empty: any."""

    warnings: list[str] = field(default_factory=list)


def admission_request(
    call: Call, operation: Operation, name: str, new: Document | None, old: Document | None, subresource: str = ""
) -> AdmissionRequest:
    """What rules are asked about a write."""
    return AdmissionRequest(
        kind=call.served.kind,
        operation=operation,
        namespace=call.target.namespace,
        name=name,
        subresource=subresource,
        object=new,
        old=old,
        user=call.user,
        is_dry_run=call.is_dry_run,
    )


async def create_named(backend: Backend, call: Call, document: Document, track: Track, warnings: list[str]) -> Outcome:
    """Store the object that a PUT or an apply did not find: who may change one may not therefore make one, so that is asked anew."""
    target = call.target
    asked = Attributes(
        user=call.user,
        verb="create",
        group=target.group,
        version=target.version,
        resource=target.resource,
        namespace=target.namespace or (target.name if call.served.resource == "namespaces" else ""),
        name=target.name,
    )
    if not backend.authorizer.decide(asked).is_allowed:
        raise forbidden(target.resource, target.group, target.name, refusal(asked))
    return await create(backend, call, document, track, warnings)


async def create(
    backend: Backend,
    call: Call,
    document: Document,
    track: Track,
    warnings: list[str],
    lesson: Lesson | None = None,
) -> Outcome:
    """Store a new object; raises 409 if its name is taken. A lesson is told what became of it: `create_alike` is the short way."""
    served, metadata = call.served, document.setdefault("metadata", {})
    _give_identity(backend, served, call.target.namespace, metadata)
    document = served.strategy.prepare_create(document)
    request = admission_request(call, Operation.CREATE, str(document["metadata"].get("name", "")), document, None)
    rules = await backend.mutate(request, lesson)
    document = request.object or document
    if request.is_rewritten:
        served.strategy.check_types(document)
        request.object = document = served.strategy.prepare_create(document)
    served.strategy.settle_create(document)
    errors = served.strategy.validate_create(document)
    name = str(document["metadata"].get("name", ""))
    if errors:
        raise invalid_object(served.kind, name, errors)
    await backend.validate(rules, request, lesson)
    warnings += [*request.warnings, *served.strategy.warnings(document)]
    if lesson is not None and not warnings:
        lesson.learn(document, rules, request, served.fields_of(document))
    return await _store_new(backend, call, document, track)


async def create_alike(backend: Backend, call: Call, template: PodTemplate, name: str, track: Track) -> Outcome:
    """Store a new pod that differs from an earlier one in nothing but its name, if one is given."""
    served, namespace = call.served, call.target.namespace
    name = name or _free_name(backend, served, namespace, str(template.metadata["generateName"]))
    metadata = {**template.metadata, "name": name, "uid": backend.uids(), "creationTimestamp": backend.now()}
    document: Document = {"metadata": metadata}
    fields = track(b"", None, document)
    render = render_of(served.storage_head, tail_with(metadata, template.rest), fields)
    labels = metadata.get("labels") or {}
    selected = {**template.fields, "metadata.name": name}
    try:
        stored, durable = backend.store.put_soon(
            Key(served.resource, namespace, name), render, expected=0, labels=labels, fields=selected
        )
    except RevisionMismatchError:
        raise _taken(backend, call, name) from None
    await _durable(call, durable)
    return Outcome(served.shown(stored.body), stored.managed_fields, document, stored, is_created=True)


def _taken(backend: Backend, call: Call, name: str) -> StatusError:
    """409 because the name is taken, and whether whoever has it is going."""
    there = backend.store.get(Key(call.served.resource, call.target.namespace, name))
    is_going = there is not None and "deletionTimestamp" in decode_document(there.body)["metadata"]
    return already_exists(call.target.resource, call.target.group, name, is_going=is_going)


async def _store_new(backend: Backend, call: Call, document: Document, track: Track) -> Outcome:
    served, name = call.served, document["metadata"]["name"]
    key = Key(served.resource, call.target.namespace, name)
    fields = track(b"", None, document)
    document["metadata"].pop("managedFields", None)
    if call.is_dry_run:
        if backend.store.get(key) is not None:
            raise _taken(backend, call, name)
        return Outcome(unstored_body(served.head, document), fields, document, None, is_created=True)
    form = served.stored_form(document)
    render = render_of(served.storage_head, tail_of(form), fields)
    labels = document["metadata"].get("labels") or {}
    try:
        stored, durable = backend.store.put_soon(key, render, expected=0, labels=labels, fields=served.fields_of(form))
    except RevisionMismatchError:
        raise _taken(backend, call, name) from None
    await _durable(call, durable)
    return _outcome(served, document, stored, is_created=True)


async def _durable(call: Call, durable: "asyncio.Future[None]") -> None:
    """Answer when it is on disk, unless whoever asks, in this process, waits for that by itself."""
    if call.request.undurable is None:
        await durable
    else:
        call.request.undurable.append(durable)


def _give_identity(backend: Backend, served: Served, namespace: str, metadata: Document) -> None:
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = _free_name(backend, served, namespace, str(metadata["generateName"]))
    for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        metadata.pop(name, None)
    if served.kind.is_namespaced:
        metadata["namespace"] = namespace
    metadata["uid"] = backend.uids()
    metadata["creationTimestamp"] = backend.now()


def _free_name(backend: Backend, served: Served, namespace: str, base: str) -> str:
    for _attempt in range(NAMES_TRIED):
        # 63 letters are a label's length; Kubernetes cuts the base so that the suffix fits
        name = base[:58] + backend.suffixes()
        if backend.store.get(Key(served.resource, namespace, name)) is None:
            break
    return name


def _outcome(served: Served, document: Document, stored: Stored, *, is_created: bool = False) -> Outcome:
    document["metadata"]["resourceVersion"] = str(stored.revision)
    return Outcome(served.shown(stored.body), stored.managed_fields, document, stored, is_created)


async def update(backend: Backend, call: Call, edit: Edit) -> Outcome:
    """Change an object; a change that collides with another is made again on the newer state, a bounded number of times."""
    for _attempt in range(ATTEMPTS):
        stored = backend.store.get(edit.key)
        if stored is None:
            raise not_found(call.target.resource, call.target.group, edit.key.name)
        try:
            return await _update_once(backend, call, edit, stored)
        except RevisionMismatchError:
            continue
    raise conflict(call.target.resource, call.target.group, edit.key.name, MODIFIED)


async def _update_once(backend: Backend, call: Call, edit: Edit, stored: Stored) -> Outcome:
    served = call.served
    old = as_served(served, stored)
    new = edit.revise(as_served(served, stored))
    _check_preconditions(call, edit, stored, old, new)
    _keep_identity(new, old)
    asked_fields = new["metadata"].pop("managedFields", None)
    new = served.strategy.prepare_update(new, old, edit.subresource)
    request = admission_request(call, Operation.UPDATE, edit.key.name, new, old, edit.subresource)
    rules = await backend.mutate(request)
    new = request.object or new
    if request.is_rewritten:
        served.strategy.check_types(new)
        request.object = new = served.strategy.prepare_update(new, old, edit.subresource)
    errors = served.strategy.validate_update(new, old, edit.subresource)
    if errors:
        raise invalid_object(served.kind, edit.key.name, errors)
    await backend.validate(rules, request)
    edit.warnings += request.warnings
    if not edit.subresource:
        edit.warnings += served.strategy.warnings(new, old)
    if asked_fields is not None:
        new["metadata"]["managedFields"] = asked_fields
    fields = edit.track(stored.managed_fields, old, new)
    new["metadata"].pop("managedFields", None)
    return await _store_changed(backend, call, edit, stored, old, new, fields)


async def _store_changed(
    backend: Backend, call: Call, edit: Edit, stored: Stored, old: Document, new: Document, fields: bytes
) -> Outcome:
    served = call.served
    if fields == stored.managed_fields and is_same(new, old):
        await backend.store.settled(stored.revision)
        return _outcome(served, new, stored)
    if call.is_dry_run:
        return Outcome(unstored_body(served.head, new), fields, new, None)
    form = served.stored_form(new)
    tail = tail_of(form)
    if is_finished(served, old, new):
        last = await backend.store.delete(
            edit.key, render_of(served.storage_head, tail, fields), expected=stored.revision
        )
        # who removes the last finalizer is shown the object as it was, with its old resourceVersion
        shown = served.shown(with_revision(last.body, stored.revision))
        return Outcome(shown, fields, new, None)
    render = render_of(served.storage_head, tail, fields)
    labels = new["metadata"].get("labels") or {}
    changed, durable = backend.store.put_soon(
        edit.key, render, expected=stored.revision, labels=labels, fields=served.fields_of(form)
    )
    await _durable(call, durable)
    return _outcome(served, new, changed)


def as_served(served: Served, stored: Stored) -> Document:
    """A stored object as a document of its own, in the version that is served."""
    return served.document(stored.body)


def is_finished(served: Served, old: Document, new: Document) -> bool:
    """Whether an object that is being deleted has nothing left that holds it."""
    metadata = old["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("deletionGracePeriodSeconds"):
        return False
    if new["metadata"].get("finalizers"):
        return False
    return served.resource != "namespaces" or not (new.get("spec") or {}).get("finalizers")


def _check_preconditions(call: Call, edit: Edit, stored: Stored, old: Document, new: Document) -> None:
    target, name = call.target, edit.key.name
    metadata = new.setdefault("metadata", {})
    # what a patch makes of the uid is a change that is not allowed, what a PUT says of it a condition
    uid = edit.uid or ("" if call.request.method == "PATCH" else metadata.get("uid"))
    if uid and uid != old["metadata"]["uid"]:
        raise conflict(target.resource, target.group, name, _uid_mismatch(edit.key, uid, old["metadata"]["uid"]))
    asked = metadata.get("resourceVersion")
    if (asked and asked not in ("0", str(stored.revision))) or (
        edit.expected is not None and edit.expected != stored.revision
    ):
        raise conflict(target.resource, target.group, name, MODIFIED)
    if metadata.get("namespace", edit.key.namespace) != edit.key.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")


def _uid_mismatch(key: Key, asked: str, found: str) -> str:
    plural = key.resource.partition(".")[0]
    place = "/".join(part for part in ("/registry", plural, key.namespace, key.name) if part)
    return (
        f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"
    )


def _keep_identity(new: Document, old: Document) -> None:
    metadata, before = new["metadata"], old["metadata"]
    metadata.pop("selfLink", None)
    for name in ("generation", "name", "namespace", "resourceVersion"):
        if name in before:
            metadata[name] = before[name]
        else:
            metadata.pop(name, None)
    # another value than the old one stays: the strategy keeps what it was, or it is refused as a change of what is immutable
    for name in SERVER_MADE:
        if metadata.get(name) is None:
            if name in before:
                metadata[name] = before[name]
            else:
                metadata.pop(name, None)


Refused = StatusError
