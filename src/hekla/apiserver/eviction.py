"""Eviction: a deletion that asks the pod's disruption budget first."""

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document, render_of, tail_of
from hekla.apiserver.calls import Call
from hekla.apiserver.deletes import DeleteOptions, delete, grace_in
from hekla.apiserver.documents import list_in, loose_document, part_of, text_in
from hekla.apiserver.negotiation import document_type
from hekla.apiserver.presentation import document_answer
from hekla.apiserver.selectors import object_selector
from hekla.apiserver.status import StatusError, bad_request, internal, not_found, success
from hekla.apiserver.store import Key, RevisionMismatchError, Stored
from hekla.apiserver.writes import ATTEMPTS
from hekla.wire.messages import Response

BUDGETS = "poddisruptionbudgets.policy"
UNREADY_ALWAYS = "AlwaysAllow"


async def evict_pod(backend: Backend, call: Call) -> Response:
    """POST pods/x/eviction."""
    eviction = loose_document(call.request.body, document_type(call.content_type)) if call.request.body else {}
    options = _options(eviction, call)
    key = Key("pods", call.target.namespace, call.target.name)
    stored = backend.store.get(key)
    if stored is None:
        raise not_found("pods", "", call.target.name)
    pod: Document = decode_document(stored.body)
    if _counts(pod):
        await _ask_budget(backend, stored, pod, is_dry_run=options.is_dry_run)
    if not options.is_dry_run and "deletionTimestamp" not in pod["metadata"]:
        await _tell(backend, key)
    await delete(backend, call, call.target.name, options)
    return document_answer(call, success(201), status=201)


def _options(eviction: Document, call: Call) -> DeleteOptions:
    name = text_in(part_of(eviction, "metadata"), "name", call.target.name)
    if name != call.target.name:
        raise bad_request(f"name in URL does not match name in Eviction object: {call.target.name} and {name}")
    said = part_of(eviction, "deleteOptions")
    preconditions = part_of(said, "preconditions")
    return DeleteOptions(
        grace_s=grace_in(said),
        uid=text_in(preconditions, "uid"),
        revision=text_in(preconditions, "resourceVersion"),
        policy=text_in(said, "propagationPolicy"),
        is_dry_run=call.is_dry_run or "All" in list_in(said, "dryRun"),
    )


def _counts(pod: Document) -> bool:
    """Whether the pod's going can hurt anybody: it runs, or may."""
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" not in pod["metadata"] and phase not in {"Succeeded", "Failed", "Pending"}


def is_ready(pod: Document) -> bool:
    """Whether the pod says that it is ready."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


async def _ask_budget(backend: Backend, stored: Stored, pod: Document, *, is_dry_run: bool) -> None:
    for _attempt in range(ATTEMPTS):
        budget = _budget_of(backend, stored)
        if budget is None:
            return
        document: Document = decode_document(budget.body)
        if not is_ready(pod) and _lets_unready_go(document):
            return
        _check_allowance(document)
        if is_dry_run:
            return
        status = document["status"]
        status["disruptionsAllowed"] -= 1
        status.setdefault("disruptedPods", {})[stored.key.name] = backend.now()
        try:
            await _put(backend, budget, document)
        except RevisionMismatchError:
            continue
        return
    raise _refused("the disruption budget changes too fast")


def _budget_of(backend: Backend, stored: Stored) -> Stored | None:
    found = [one for one in backend.store.list(BUDGETS, stored.key.namespace) if _selects(one, stored)]
    if len(found) > 1:
        raise internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    return found[0] if found else None


def _selects(budget: Stored, pod: Stored) -> bool:
    document: Document = decode_document(budget.body)
    selector = object_selector((document.get("spec") or {}).get("selector"))
    return selector is not None and selector.matches(pod.labels)


def _lets_unready_go(budget: Document) -> bool:
    status, spec = budget.get("status") or {}, budget.get("spec") or {}
    if spec.get("unhealthyPodEvictionPolicy") == UNREADY_ALWAYS:
        return True
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _check_allowance(budget: Document) -> None:
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", retry_s=10)
    if status.get("disruptionsAllowed", 0) <= 0:
        desired, current = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _refused(f"The disruption budget {name} needs {desired} healthy pods and has {current} currently")


def _refused(why: str, retry_s: int = 0) -> StatusError:
    details: Document = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_s:
        details["retryAfterSeconds"] = retry_s
    headers = (("retry-after", str(retry_s)),) if retry_s else ()
    said = "Cannot evict pod as it would violate the pod's disruption budget."
    return StatusError(429, "TooManyRequests", said, details=details, headers=headers)


async def _tell(backend: Backend, key: Key) -> None:
    """Say on the pod why it goes, as Kubernetes does before it deletes."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": backend.now(),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    for _attempt in range(ATTEMPTS):
        stored = backend.store.get(key)
        if stored is None:
            raise not_found("pods", "", key.name)
        pod: Document = decode_document(stored.body)
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [one for one in conditions if one.get("type") != "DisruptionTarget"]
        conditions.append(condition)
        try:
            await _put(backend, stored, pod)
        except RevisionMismatchError:
            continue
        return


async def _put(backend: Backend, stored: Stored, document: Document) -> None:
    served = backend.registry.stored(stored.key.resource)
    assert served is not None, "what is stored is served"
    render = render_of(served.storage_head, tail_of(document), stored.managed_fields)
    await backend.store.put(
        stored.key, render, expected=stored.revision, labels=stored.labels, fields=served.fields_of(document)
    )
