"""Parts of objects with paths of their own: status, scale, finalize, and the calls that look like objects: binding, eviction."""

from collections.abc import Awaitable

from hekla.api.meta import Document
from hekla.api.schema import for_kind
from hekla.apiserver import managed_fields
from hekla.apiserver.backend import Backend
from hekla.apiserver.binding import bind_pod
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import loose_document, part_of, text_in, texts_in, yaml_value
from hekla.apiserver.eviction import evict_pod
from hekla.apiserver.handlers_patch import Change, applied_part, change_of, check_place, patch_object
from hekla.apiserver.handlers_read import get_object
from hekla.apiserver.handlers_write import outcome_answer, replace_object
from hekla.apiserver.managed_fields import ManagedFieldsView
from hekla.apiserver.negotiation import APPLY_PATCH, document_type, patch_type
from hekla.apiserver.presentation import document_answer
from hekla.apiserver.registry import ScalePaths, document_paths
from hekla.apiserver.status import StatusError, bad_request, conflict, method_not_allowed, not_found
from hekla.apiserver.store import Key
from hekla.apiserver.tables import scale_table
from hekla.apiserver.typed import check_typed
from hekla.apiserver.writes import Edit, Outcome, as_served, update
from hekla.wire.messages import Answer, Response


class Subresources:
    """Answers requests for parts of objects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def answer(self, call: Call, managed: ManagedFieldsView) -> Answer | Awaitable[Answer]:
        """One request for one part."""
        match call.target.subresource:
            case "scale":
                return self._scale(call)
            case "binding":
                return bind_pod(self._backend, call)
            case "eviction":
                return evict_pod(self._backend, call)
            case "finalize":
                return _finalize(self._backend, call)
        match call.request.method:
            case "GET" | "HEAD":
                return get_object(self._backend, call, managed)
            case "PUT":
                return replace_object(self._backend, call)
            case "PATCH":
                return patch_object(self._backend, call)
        raise method_not_allowed()

    def _scale(self, call: Call) -> Answer | Awaitable[Answer]:
        paths = call.served.scale
        assert paths is not None, "scale is announced only where there are paths"
        match call.request.method:
            case "GET" | "HEAD":
                return _show_scale(self._backend, call, paths)
            case "PUT" | "PATCH":
                return _change_scale(self._backend, call, paths)
        raise method_not_allowed()


def _show_scale(backend: Backend, call: Call, paths: ScalePaths) -> Response:
    stored = backend.store.get_durable(Key(call.served.resource, call.target.namespace, call.target.name))
    if stored is None:
        raise not_found(call.target.resource, call.target.group, call.target.name)
    scale = scale_of(as_served(call.served, stored), paths, is_custom=call.served.is_custom)
    return document_answer(call, scale_table(backend, call.served, scale) if call.wanted.shape == "Table" else scale)


def scale_of(document: Document, paths: ScalePaths, *, is_custom: bool) -> Document:
    """The Scale of an object."""
    metadata = document["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: Document = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {},
        "status": {"replicas": _count(document_paths(document, paths.status)) or 0},
    }
    replicas = _count(document_paths(document, paths.spec))
    if replicas or not is_custom:
        scale["spec"]["replicas"] = replicas or 0
    selector = document_paths(document, paths.selector) if is_custom and paths.selector else None
    if not is_custom:
        selector = _selector_text((document.get("spec") or {}).get("selector"))
    if selector:
        scale["status"]["selector"] = selector
    return scale


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _selector_text(selector: object) -> str:
    if not isinstance(selector, dict):
        return ""
    # a replication controller's selector is a plain map of labels
    is_plain = not ({"matchLabels", "matchExpressions"} & set(selector))
    labels = selector if is_plain else selector.get("matchLabels") or {}
    clauses = [f"{key}={value}" for key, value in sorted(labels.items())]
    for one in () if is_plain else selector.get("matchExpressions") or ():
        values = ",".join(sorted(one.get("values") or ()))
        shown = {"In": f"{one['key']} in ({values})", "NotIn": f"{one['key']} notin ({values})", "Exists": one["key"]}
        clauses.append(shown.get(one["operator"], f"!{one['key']}"))
    return ",".join(clauses)


async def _change_scale(backend: Backend, call: Call, paths: ScalePaths) -> Response:
    is_custom = call.served.is_custom
    if call.request.method == "PATCH" and patch_type(call.content_type, has_strategic=not is_custom) == APPLY_PATCH:
        edit = applied_part(backend, call, _applied_scale(backend, call, paths))
        applied = await update(backend, call, edit)
        return document_answer(call, scale_of(applied.document, paths, is_custom=is_custom))
    change = _scale_change(call)

    def revise(old: Document) -> Document:
        scale = change(scale_of(old, paths, is_custom=is_custom))
        replicas = _wanted_replicas(call, scale)
        named = text_in(part_of(scale, "metadata"), "name")
        if named and named != call.target.name:
            said = f"the name of the object ({named}) does not match the name on the URL ({call.target.name})"
            raise bad_request(said)
        revision = text_in(part_of(scale, "metadata"), "resourceVersion")
        if revision:
            old["metadata"]["resourceVersion"] = revision
        _set_path(old, paths.spec, replicas)
        return old

    key = Key(call.served.resource, call.target.namespace, call.target.name)
    # what scale changes lies in spec, so it is checked and counted as a change of the object itself
    track = managed_fields.tracker(backend, call)
    outcome = await update(backend, call, Edit(key, revise, track=track))
    return document_answer(call, scale_of(outcome.document, paths, is_custom=is_custom))


def _scale_change(call: Call) -> Change:
    if call.request.method == "PUT":
        sent = loose_document(call.request.body, document_type(call.content_type))
        return lambda _old: sent
    return change_of(call, patch_type(call.content_type, has_strategic=not call.served.is_custom))


def _applied_scale(backend: Backend, call: Call, paths: ScalePaths) -> Document:
    """What applying a Scale comes to in the object that is scaled."""
    scale = yaml_value(call.request.body)
    said = scale if isinstance(scale, dict) else {}
    if (said.get("apiVersion"), said.get("kind")) != ("autoscaling/v1", "Scale"):
        group, _, version = str(said.get("apiVersion") or "").rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={said.get('kind') or ''}")
    metadata = part_of(said, "metadata")
    check_typed({**said, "metadata": metadata}, for_kind("autoscaling", "v1", "Scale"))
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    check_place(call, metadata)
    _check_uid(backend, call, text_in(metadata, "uid"))
    config: Document = {}
    if revision := text_in(metadata, "resourceVersion"):
        config["metadata"] = {"resourceVersion": revision}
    if "replicas" in part_of(said, "spec"):
        _set_path(config, paths.spec, _wanted_replicas(call, said))
    return config


def _check_uid(backend: Backend, call: Call, uid: str) -> None:
    """409 for a Scale of an object that had this name before."""
    target = call.target
    stored = backend.store.get(Key(call.served.resource, target.namespace, target.name))
    found = as_served(call.served, stored)["metadata"]["uid"] if stored and uid else uid
    if uid != found:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
        raise conflict(f"{target.resource}/scale", target.group, target.name, why)


def _wanted_replicas(call: Call, scale: Document) -> int:
    replicas = part_of(scale, "spec").get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas must be a whole number')
    if replicas < 0:
        cause = {
            "reason": "FieldValueInvalid",
            "message": f"Invalid value: {replicas}: must be greater than or equal to 0",
            "field": "spec.replicas",
        }
        details: Document = {"name": call.target.name, "group": "autoscaling", "kind": "Scale", "causes": [cause]}
        said = f'Scale.autoscaling "{call.target.name}" is invalid: spec.replicas: {cause["message"]}'
        raise StatusError(422, "Invalid", said, details=details)
    return replicas


def _set_path(document: Document, path: str, value: object) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        document = document.setdefault(part, {})
    document[last] = value


async def _finalize(backend: Backend, call: Call) -> Response:
    """PUT namespaces/x/finalize: what takes the last finalizer from a namespace that is going."""
    sent = loose_document(call.request.body, document_type(call.content_type))
    finalizers = texts_in(part_of(sent, "spec"), "finalizers")
    revision = text_in(part_of(sent, "metadata"), "resourceVersion")

    def revise(old: Document) -> Document:
        spec = {name: value for name, value in (old.get("spec") or {}).items() if name != "finalizers"}
        old["spec"] = {**spec, "finalizers": finalizers} if finalizers else spec
        if revision:
            old["metadata"]["resourceVersion"] = revision
        return old

    edit = Edit(Key("namespaces", "", call.target.name), revise, subresource="finalize")
    outcome: Outcome = await update(backend, call, edit)
    return outcome_answer(call, outcome, [])
