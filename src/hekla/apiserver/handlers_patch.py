"""PATCH in its four kinds: JSON patch, merge patch, strategic merge patch, server-side apply."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver import apply as server_side
from hekla.apiserver import decoding, gotypes, managed_fields
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import decode_document, encode
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import loose_value, yaml_value
from hekla.apiserver.fielderrors import invalid, invalid_object, required
from hekla.apiserver.handlers_write import check_unknown, outcome_answer
from hekla.apiserver.managed_fields import APPLY, Entry, are_as_before, made_explicit, read, written
from hekla.apiserver.negotiation import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, patch_type
from hekla.apiserver.options import check_write_options
from hekla.apiserver.patch import json_patch, merge_patch
from hekla.apiserver.status import StatusError, bad_request, conflict, not_found
from hekla.apiserver.store import Key
from hekla.apiserver.strategic import strategic_patch
from hekla.apiserver.typed import check_typed
from hekla.apiserver.writes import Edit, create_named, update
from hekla.wire.messages import Response

Change = Callable[[Document], Document]


async def patch_object(backend: Backend, call: Call) -> Response:
    """PATCH of an object or of one of its parts."""
    kind = patch_type(call.content_type, has_strategic=not call.served.is_custom)
    check_write_options(call, is_apply=kind == APPLY_PATCH)
    if kind == APPLY_PATCH:
        return await _apply(backend, call)
    warnings: list[str] = []
    change = change_of(call, kind)
    doubled = _doubled_keys(call, kind)
    is_about_owners = b"managedFields" in call.request.body

    def revise(old: Document) -> Document:
        if is_about_owners:
            _show_owners(backend, call, old)
        new = change(old)
        told: list[str] = []
        untouched = _untouched(call, new, old)
        shown = _shown_patch(call, kind, new)
        if call.served.is_custom:
            _check_head(call, new)
        try:
            unknown = _checked(call, new)
        except StatusError as error:
            raise unpatchable(shown(), error.message) from None
        if (unknown or doubled) and call.field_validation == "Strict":
            raise unpatchable(shown(), f"strict decoding error: {', '.join([*doubled, *unknown])}")
        check_unknown(call, [*doubled, *unknown], told)
        new.update(untouched)
        warnings[:] = told
        return new

    key = Key(call.served.resource, call.target.namespace, call.target.name)
    edit = Edit(
        key, revise, track=managed_fields.tracker(backend, call), subresource=call.target.subresource, warnings=warnings
    )
    return outcome_answer(call, await update(backend, call, edit), warnings)


def _shown_patch(call: Call, kind: str, new: Document) -> Callable[[], str]:
    """How a refusal shows what could not be: the whole outcome, or of a strategic patch the patch as Go prints it."""
    if kind == STRATEGIC_PATCH:
        return lambda: as_go_prints(loose_value(call.request.body))
    before = dict(new)  # the check may fill it in before it gives up
    return lambda: encode(before).decode()


def _doubled_keys(call: Call, kind: str) -> list[str]:
    """Keys that a patch says twice; asked for those who want to be told, because it reads the patch once more."""
    body = call.request.body
    if kind == JSON_PATCH or call.option("fieldValidation") not in ("Strict", "Warn"):
        return []
    return decoding.duplicates(body) if decoding.key_count(body) != _keys_in(loose_value(body)) else []


def _keys_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys_in, value.values()))
    return sum(map(_keys_in, value)) if isinstance(value, list) else 0


def unpatchable(shown: str, why: str) -> StatusError:
    """422 for a patch whose outcome is no object of the kind; Kubernetes names no object here."""
    error = invalid("patch", shown, why.partition(" cannot be handled as a ")[2].partition(": ")[2] or why)
    causes = [{"reason": str(error.cause), "message": error.message, "field": error.field}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {error.message}', details={"causes": causes})


def as_go_prints(value: Any) -> str:
    """A JSON value as Go's `%v` shows it: `map[spec:map[replicas:2]]`."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{as_go_prints(item)}' for key, item in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(as_go_prints, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_of(call: Call, kind: str) -> Change:
    """What a patch does to a document; the patch is read once."""
    patch = _read_patch(call, kind)
    if kind == JSON_PATCH:
        if not isinstance(patch, list):
            raise bad_request(_undecodable(kind, gotypes.GoTypeError(patch, "[]handlers.jsonPatchOp").sentence()))
        return lambda old: json_patch(old, patch)
    if not isinstance(patch, dict):
        if patch is None:
            raise bad_request("Invalid JSON Patch")
        raise bad_request(_undecodable(kind, gotypes.GoTypeError(patch, "map[string]interface {}").sentence()))
    if kind == MERGE_PATCH:
        return lambda old: _merged(old, patch)
    schema = call.served.strategy.schema
    return lambda old: strategic_patch(old, patch, schema)


def _read_patch(call: Call, kind: str) -> Any:
    body = call.request.body
    try:
        return loose_value(body)
    except StatusError:
        raise bad_request(_undecodable(kind, decoding.go_syntax_error(body))) from None


def _undecodable(kind: str, why: str) -> str:
    """What is said of a patch that cannot be read."""
    return why if kind == STRATEGIC_PATCH else f"error decoding patch: {why}"


def _merged(old: Document, patch: Document) -> Document:
    new: Document = merge_patch(old, patch)
    return new


def _untouched(call: Call, new: Document, old: Document) -> Document:
    """Take out, for the time of the check, what a status patch left alone: it was checked when it was stored.

    A pod's spec is most of it; walking it again was a third of what a change of its status cost.
    """
    if call.target.subresource != "status" or call.served.is_custom or new is old:
        return {}
    spec = new.get("spec")
    return {"spec": new.pop("spec")} if spec is not None and spec is old.get("spec") else {}


def _checked(call: Call, new: Document) -> list[str]:
    kind = call.served.kind
    if new.get("kind", kind.kind) != kind.kind:
        raise bad_request(
            f'{new["kind"]} in version "{kind.version}" cannot be handled as a {kind.kind}: the kind differs'
        )
    if new.get("apiVersion", kind.api_version) != kind.api_version:
        raise bad_request(
            f"the API version in the data ({new.get('apiVersion')}) does not match the expected API version ({kind.api_version})"
        )
    metadata = new.get("metadata")
    if not isinstance(metadata, dict):
        raise bad_request("metadata may not be removed")
    owners = metadata.pop("managedFields", None)
    unknown = call.served.strategy.check_types(new)
    if owners is not None:
        new["metadata"]["managedFields"] = owners
    return unknown


def _check_head(call: Call, new: Document) -> None:
    """A custom resource that says it is of another kind or version is refused by its field; of a built-in kind none can be made."""
    kind = call.served.kind
    wanted = {"kind": kind.kind, "apiVersion": kind.api_version}
    wrong = [
        invalid(key, new[key], f"must be {value}") for key, value in wanted.items() if new.get(key, value) != value
    ]
    if wrong:
        said = new.get("kind")
        raise invalid_object(replace(kind, kind=said if isinstance(said, str) else ""), call.target.name, wrong)


def _show_owners(backend: Backend, call: Call, old: Document) -> None:
    """Put managedFields into a document whose patch speaks of them."""
    stored = backend.store.get(Key(call.served.resource, call.target.namespace, call.target.name))
    if stored is not None and stored.managed_fields:
        entries = made_explicit(read(stored.managed_fields), old, call.served)
        old["metadata"]["managedFields"] = [entry.document() for entry in entries]


# ---- server-side apply


async def _apply(backend: Backend, call: Call) -> Response:
    config, warnings = _config(call)
    me = Entry(call.option("fieldManager"), APPLY, call.served.kind.api_version, backend.now(), call.target.subresource)
    key = Key(call.served.resource, call.target.namespace, call.target.name)
    stored = backend.store.get(key)
    if stored is None:
        return await _create_applied(backend, call, config, me, warnings)
    edit = _applying(backend, call, config, me, warnings)
    return outcome_answer(call, await update(backend, call, edit), warnings)


def _applying(backend: Backend, call: Call, config: Document, me: Entry, warnings: list[str]) -> Edit:
    """What an apply does to an object that is there."""
    key = Key(call.served.resource, call.target.namespace, call.target.name)
    left: list[Entry] = []

    def revise(old: Document) -> Document:
        current = backend.store.get(key)
        entries = _known_entries(current.managed_fields if current else b"", old, call, me)
        found = server_side.apply(old, config, call.served.strategy.schema, entries, me, force=call.flag("force"))
        left[:] = found.entries
        _checked(call, found.document)
        return found.document

    def track(fields: bytes, old: Document | None, new: Document) -> bytes:
        # an object that admission has made what it was keeps its owners' times, or each apply would be a change
        return fields if new == old and are_as_before(fields, left, new, call.served) else written(left)

    # what a scale changes lies in spec, so it is checked and counted as a change of the object itself
    subresource = "" if call.target.subresource == "scale" else call.target.subresource
    return Edit(key, revise, track=track, subresource=subresource, warnings=warnings)


def applied_part(backend: Backend, call: Call, config: Document) -> Edit:
    """What an apply of a part does, such as a Scale, given what it comes to in the object itself."""
    if not call.option("fieldManager"):
        raise _manager_required()
    api_version, part = call.served.kind.api_version, call.target.subresource
    me = Entry(call.option("fieldManager"), APPLY, api_version, backend.now(), part)
    return _applying(backend, call, config, me, [])


def _known_entries(fields: bytes, old: Document, call: Call, me: Entry) -> list[Entry]:
    if fields:
        return made_explicit(read(fields), old, call.served)
    # Kubernetes gives an object whose owners nobody wrote down to a manager of this name
    before = Entry(managed_fields.BEFORE_FIRST_APPLY, managed_fields.UPDATE, me.api_version, me.time)
    return made_explicit([before], old, call.served)


async def _create_applied(backend: Backend, call: Call, config: Document, me: Entry, warnings: list[str]) -> Response:
    target, uid = call.target, (config.get("metadata") or {}).get("uid")
    if target.subresource:
        raise not_found(target.resource, target.group, target.name)
    if not config["metadata"].get("name"):
        raise _nameless(call)
    if uid:
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(target.resource, target.group, target.name, why)
    entries = server_side.applied_at_creation(config, call.served.strategy.schema, me)
    call.served.strategy.check_types(config)  # what is owned is as it was said, what is stored as a POST would have it
    outcome = await create_named(backend, call, config, lambda _fields, _old, _new: written(entries), warnings)
    return outcome_answer(call, outcome, warnings)


def _config(call: Call) -> tuple[Document, list[str]]:
    """What is applied, checked: the part of the object that this endpoint may write."""
    if not call.option("fieldManager"):
        raise _manager_required()
    config: Document = yaml_value(call.request.body)
    kind, warnings = call.served.kind, list[str]()
    if not isinstance(config, dict) or not config.get("kind") or not config.get("apiVersion"):
        said = config if isinstance(config, dict) else {}
        raise bad_request(f"invalid object type: {_gvk(said)}")
    if config["kind"] != kind.kind:
        raise bad_request(f"invalid object type: {_gvk(config)}")
    if config["apiVersion"] != kind.api_version:
        raise bad_request(
            f"Incorrect version specified in apply patch. Specified patch version: {config['apiVersion']}, expected: {kind.api_version}"
        )
    if config.get("metadata") is None:
        config["metadata"] = {}
    metadata = config["metadata"]
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    check_place(call, metadata)
    check_typed(config, call.served.strategy.schema)
    # checked on a copy: what is checked is filled in too, and nobody owns what they have not said
    check_unknown(call, call.served.strategy.check_types(decode_document(encode(config))), warnings)
    if call.target.subresource == "status":
        config = {name: config[name] for name in ("apiVersion", "kind", "metadata", "status") if name in config}
        revision = {key: value for key, value in metadata.items() if key == "resourceVersion"}
        config["metadata"] = {"name": call.target.name, **revision}
    elif "status" in call.served.subresources:
        config.pop("status", None)
    return config, warnings


def _gvk(config: Document) -> str:
    group, _, version = str(config.get("apiVersion") or "").rpartition("/")
    return f"{group}/{version}, Kind={config.get('kind') or ''}"


def check_place(call: Call, metadata: Document) -> None:
    """Refuse what says that it is about another object; one that is there need not be named again."""
    name, namespace = metadata.get("name", call.target.name), metadata.get("namespace")
    if not name:
        raise _nameless(call)
    if name != call.target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({call.target.name})")
    if namespace and namespace != call.target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _nameless(call: Call) -> StatusError:
    return bad_request(
        f"the name of the object ({call.target.name} based on URL) was undeterminable: name must be provided"
    )


def _manager_required() -> StatusError:
    error = required("fieldManager", "is required for apply patch")
    details: Document = {
        "group": "meta.k8s.io",
        "kind": "PatchOptions",
        "causes": [{"reason": str(error.cause), "message": error.message, "field": error.field}],
    }
    said = f'PatchOptions.meta.k8s.io "" is invalid: {error.field}: {error.message}'
    return StatusError(422, "Invalid", said, details=details)
