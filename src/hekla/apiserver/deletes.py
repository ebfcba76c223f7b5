"""The way out: grace, finalizers, propagation, and what remains of a collection.

An object goes at once unless something holds it: a grace period (pods), finalizers, or the collector that a
propagation policy calls for. Held objects are marked with deletionTimestamp and go when the last hold is released.
"""

from dataclasses import dataclass
from datetime import timedelta

from hekla.api.meta import Document
from hekla.apiserver.admission import Operation
from hekla.apiserver.backend import Backend, rfc3339
from hekla.apiserver.bodies import render_of, tail_of, unstored_body
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import list_in, loose_document, part_of, text_in
from hekla.apiserver.fielderrors import invalid, not_supported
from hekla.apiserver.options import dry_run_errors, invalid_options
from hekla.apiserver.registry import Served
from hekla.apiserver.status import bad_request, conflict, details_of, not_found
from hekla.apiserver.store import Key, RevisionMismatchError, Stored
from hekla.apiserver.writes import ATTEMPTS, MODIFIED, Outcome, admission_request, as_served

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
POLICIES = ("Foreground", "Background", "Orphan")
SHOWN_POLICIES = (*POLICIES, "nil")
"""What the sentence of a refusal lists, as Kubernetes does: in a request `nil` is none of them."""
ORPHANED_BY_DEFAULT = frozenset({"jobs.batch", "replicationcontrollers"})
"""Kinds whose oldest API leaves dependants alone unless told otherwise."""

CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
DEFAULT_POD_GRACE_S = 30


@dataclass(frozen=True)
class DeleteOptions:
    """How a caller wants an object deleted."""

    grace_s: int | None = None
    uid: str = ""
    revision: str = ""
    policy: str = ""
    is_dry_run: bool = False


def delete_options(call: Call) -> DeleteOptions:
    """The options of a DELETE, from its body and its query."""
    said: Document = _options_body(call)
    preconditions = part_of(said, "preconditions")
    grace = grace_in(said)
    if grace is None and call.option("gracePeriodSeconds"):
        grace = call.number("gracePeriodSeconds")
    policy = text_in(said, "propagationPolicy") or call.option("propagationPolicy")
    orphan = said.get("orphanDependents", call.flag("orphanDependents") if call.option("orphanDependents") else None)
    errors = dry_run_errors([*list_in(said, "dryRun"), *call.query.get("dryRun", ())])
    if policy and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid("propagationPolicy", policy, why))
    elif policy and policy not in POLICIES:
        errors.append(not_supported("propagationPolicy", policy, SHOWN_POLICIES))
    if errors:
        raise invalid_options("DeleteOptions", errors)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    return DeleteOptions(
        grace_s=grace,
        uid=text_in(preconditions, "uid"),
        revision=text_in(preconditions, "resourceVersion"),
        policy=policy,
        is_dry_run=call.is_dry_run or "All" in list_in(said, "dryRun"),
    )


def grace_in(options: Document) -> int | None:
    """The grace period that options ask for; raises 400."""
    grace = options.get("gracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int) or abs(grace) >= 1 << 31):
        raise bad_request("DeleteOptions.gracePeriodSeconds must be a whole number of seconds")
    return grace


def _options_body(call: Call) -> Document:
    if not call.request.body:
        return {}
    said = loose_document(call.request.body, call.content_type)
    kind = said.get("kind", "DeleteOptions")
    if kind != "DeleteOptions":
        scheme = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27"
        version = said.get("apiVersion", "")
        raise bad_request(f'no kind "{kind}" is registered for version "{version}" in scheme "{scheme}"')
    return said


async def delete(backend: Backend, call: Call, name: str, options: DeleteOptions) -> Outcome:
    """Delete one object, or mark it; `Outcome.stored` is None when it is gone."""
    key = Key(call.served.resource, call.target.namespace, name)
    for _attempt in range(ATTEMPTS):
        stored = backend.store.get(key)
        if stored is None:
            raise not_found(call.target.resource, call.target.group, name)
        try:
            return await _delete_once(backend, call, stored, options)
        except RevisionMismatchError:
            continue
    raise conflict(call.target.resource, call.target.group, name, MODIFIED)


async def _delete_once(backend: Backend, call: Call, stored: Stored, options: DeleteOptions) -> Outcome:
    served = call.served
    old = as_served(served, stored)
    _check_preconditions(served, old, options)
    request = admission_request(call, Operation.DELETE, stored.key.name, None, old)
    await backend.validate(await backend.mutate(request), request)
    new = as_served(served, stored)
    is_held = _mark(backend, served, old, new, options)
    if options.is_dry_run:
        return Outcome(unstored_body(served.head, new), stored.managed_fields, new, None if not is_held else stored)
    if is_held:
        return await _keep_marked(backend, served, stored, old, new)
    last = await backend.store.delete(
        stored.key,
        render_of(served.storage_head, tail_of(served.stored_form(new)), stored.managed_fields),
        expected=stored.revision,
    )
    new["metadata"]["resourceVersion"] = str(last.revision)
    return Outcome(served.shown(last.body), last.managed_fields, new, None)


async def _keep_marked(backend: Backend, served: Served, stored: Stored, old: Document, new: Document) -> Outcome:
    if new == old:
        await backend.store.settled(stored.revision)
        return Outcome(served.shown(stored.body), stored.managed_fields, new, stored)
    render = render_of(served.storage_head, tail_of(served.stored_form(new)), stored.managed_fields)
    labels = new["metadata"].get("labels") or {}
    kept = await backend.store.put(
        stored.key, render, expected=stored.revision, labels=labels, fields=served.fields_of(served.stored_form(new))
    )
    new["metadata"]["resourceVersion"] = str(kept.revision)
    return Outcome(served.shown(kept.body), kept.managed_fields, new, kept)


def _check_preconditions(served: Served, old: Document, options: DeleteOptions) -> None:
    kind, metadata = served.kind, old["metadata"]
    if options.uid and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(kind.kind, kind.group, metadata["name"], why)
    if options.revision and options.revision != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.revision}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified"
        )
        raise conflict(kind.kind, kind.group, metadata["name"], why)


def _mark(backend: Backend, served: Served, old: Document, new: Document, options: DeleteOptions) -> bool:
    """Mark `new` as being deleted; returns whether anything holds it still."""
    metadata = new["metadata"]
    was_marked = "deletionTimestamp" in metadata
    _set_propagation(served, metadata, options)
    grace_s = _grace_s(served, old, options)
    if served.resource == "namespaces":
        return _mark_namespace(backend, new)
    if served.resource == "customresourcedefinitions.apiextensions.k8s.io":
        return _mark_definition(backend, new)
    if was_marked:
        known_s = metadata.get("deletionGracePeriodSeconds") or 0
        # a second delete can only shorten what is left
        grace_s = known_s if options.grace_s is None else min(grace_s, known_s)
        if grace_s != known_s:
            _set_deadline(backend, metadata, grace_s)
        return bool(grace_s or metadata.get("finalizers"))
    is_held = bool(grace_s or metadata.get("finalizers"))
    # a pod is marked even if it goes at once: so its last state says, too
    if is_held or served.resource == "pods":
        _set_deadline(backend, metadata, grace_s)
        if metadata.get("generation"):
            metadata["generation"] += 1
    return is_held


def _set_deadline(backend: Backend, metadata: Document, grace_s: int) -> None:
    metadata["deletionTimestamp"] = rfc3339(backend.clock() + timedelta(seconds=grace_s))
    metadata["deletionGracePeriodSeconds"] = grace_s


def _set_propagation(served: Served, metadata: Document, options: DeleteOptions) -> None:
    finalizers = [one for one in metadata.get("finalizers") or [] if one not in {ORPHAN, FOREGROUND}]
    policy = options.policy or ("Orphan" if served.resource in ORPHANED_BY_DEFAULT else "")
    if not policy:
        return
    if policy == "Orphan":
        finalizers.append(ORPHAN)
    elif policy == "Foreground":
        finalizers.append(FOREGROUND)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def _grace_s(served: Served, old: Document, options: DeleteOptions) -> int:
    """Only pods are given time: those on a node whose containers may still run."""
    if served.resource != "pods":
        return 0
    spec, status = old.get("spec") or {}, old.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    period = options.grace_s
    if period is None:
        period = spec.get("terminationGracePeriodSeconds", DEFAULT_POD_GRACE_S)
    return int(period) if period >= 0 else 1


def _mark_namespace(backend: Backend, new: Document) -> bool:
    metadata = new["metadata"]
    if not (new.get("spec") or {}).get("finalizers") and not metadata.get("finalizers"):
        return False
    metadata.setdefault("deletionTimestamp", backend.now())
    new.setdefault("status", {})["phase"] = "Terminating"
    return True


def _mark_definition(backend: Backend, new: Document) -> bool:
    metadata = new["metadata"]
    if "deletionTimestamp" in metadata:
        return bool(metadata.get("finalizers"))
    metadata["finalizers"] = [*metadata.get("finalizers", []), CRD_FINALIZER]
    metadata["deletionTimestamp"] = now = backend.now()
    status = new.setdefault("status", {})
    status["conditions"] = [
        *(status.get("conditions") or []),
        {
            "type": "Terminating",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        },
    ]
    return True


def deletion_details(call: Call, document: Document) -> Document:
    """What the Status of a successful deletion tells of the object."""
    details = details_of(call.target.resource, call.target.group, document["metadata"]["name"])
    details["uid"] = document["metadata"]["uid"]
    return details
