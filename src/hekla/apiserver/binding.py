"""Binding a pod to a node: the scheduler's hot path, done on bytes.

Nothing of the pod is decoded but the few fields that decide: whether it is bound, gated or going. The node's name, the
condition and the new revision are spliced into the stored body.
"""

import asyncio

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.admission import Operation
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import encode, tail_in
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import loose_document, part_of, text_in
from hekla.apiserver.negotiation import document_type
from hekla.apiserver.presentation import document_answer
from hekla.apiserver.status import bad_request, conflict, not_found, success
from hekla.apiserver.store import Key, Stored
from hekla.apiserver.writes import admission_request
from hekla.wire.messages import Response

BOUND = success(201)


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[msgspec.Raw] = []


class _Condition(msgspec.Struct):
    type: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Sections(msgspec.Struct):
    metadata: msgspec.Raw
    spec: msgspec.Raw
    status: msgspec.Raw = msgspec.Raw(b"{}")


_pod = msgspec.json.Decoder(_Pod).decode
_sections = msgspec.json.Decoder(_Sections).decode


async def bind_pod(backend: Backend, call: Call) -> Response:
    """POST pods/x/binding."""
    binding = loose_document(call.request.body, document_type(call.content_type))
    await bind(backend, call, call.target.name, binding)
    return document_answer(call, BOUND, status=201)


async def bind(backend: Backend, call: Call, name: str, binding: Document) -> None:
    """Give a pod its node; raises 409 if it has one, is gated, or is going."""
    durable = await bind_soon(backend, call, name, binding)
    if durable is not None:
        await durable


async def bind_soon(backend: Backend, call: Call, name: str, binding: Document) -> "asyncio.Future[None] | None":
    """The same, decided: what is done when the binding is durable; None for a dry run."""
    node, metadata = _target(binding), part_of(binding, "metadata")
    for name_of_map in ("annotations", "labels"):
        if not all(isinstance(value, str) for value in part_of(metadata, name_of_map).values()):
            raise bad_request(f"metadata.{name_of_map} of a Binding must map text to text")
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    key = Key("pods", call.target.namespace, name)
    if backend.rules:
        request = admission_request(call, Operation.CREATE, name, binding, None, "binding")
        await backend.validate(await backend.mutate(request), request)
    stored = backend.store.get(key)
    if stored is None:
        raise not_found("pods", "", name)
    head = backend.registry.stored("pods")
    assert head is not None, "pods are bound only where they are served"
    # nothing waits between reading and writing, so nobody else's change can come between
    tail = bound_tail(stored, head.storage_head, name, node, metadata, backend.now())
    return None if call.is_dry_run else _store(backend, stored, head.storage_head, tail, node, metadata)


def _store(
    backend: Backend, stored: Stored, head: bytes, tail: bytes, node: str, metadata: Document
) -> "asyncio.Future[None]":
    before = head + b'"metadata":{"resourceVersion":"'

    def render(revision: int) -> tuple[bytes, bytes]:
        return before + b"%d" % revision + tail, stored.managed_fields

    fields = {**stored.fields, "spec.nodeName": node}
    labels = {**stored.labels, **(metadata.get("labels") or {})} if metadata.get("labels") else stored.labels
    return backend.store.put_soon(stored.key, render, expected=stored.revision, labels=labels, fields=fields)[1]


def _target(binding: Document) -> str:
    target = binding.get("target")
    if not isinstance(target, dict) or not isinstance(target.get("name"), str) or not target["name"]:
        raise bad_request("a Binding must name its node in target.name")
    if text_in(target, "kind", "Node") not in {"", "Node"}:
        raise bad_request(f"a Binding's target must be a Node, not a {target['kind']}")
    return str(target["name"])


def bound_tail(stored: Stored, head: bytes, name: str, node: str, metadata: Document, now: str) -> bytes:
    """The pod's bytes behind its resourceVersion, bound; raises 409 if it may not be."""
    pod = _pod(stored.body)
    _check(pod, name, metadata)
    if (
        metadata.get("annotations")
        or metadata.get("labels")
        or any(c.type == "PodScheduled" for c in pod.status.conditions)
    ):
        return _rebuilt(stored, node, metadata, now)
    return _spliced(tail_in(stored, head), stored.body, node, now, has_conditions=bool(pod.status.conditions))


def _check(pod: _Pod, name: str, metadata: Document) -> None:
    uid = metadata.get("uid")
    if uid and uid != pod.metadata.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod.metadata.uid}"
        raise conflict("pods/binding", "", name, why)
    if pod.metadata.deletion_timestamp:
        raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod.spec.node_name:
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{pod.spec.node_name}"')
    if pod.spec.scheduling_gates:
        raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")


def _scheduled(now: str) -> Document:
    return {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}


def _spliced(tail: bytes, body: bytes, node: str, now: str, *, has_conditions: bool) -> bytes:
    sections = _sections(body)
    spec, status = bytes(sections.spec), bytes(sections.status)
    bound = b'{"nodeName":' + encode(node) + (b"," if spec != b"{}" else b"") + spec[1:]
    condition = encode(_scheduled(now))
    if has_conditions:
        # behind the others, so that the order in which conditions came stays
        at = _end_of_conditions(status)
        told = status[:at] + b"," + condition + status[at:]
    else:
        told = b'{"conditions":[' + condition + b"]" + (b"," if status != b"{}" else b"") + status[1:]
    metadata = bytes(sections.metadata)
    start = metadata.index(b'"', len(b'{"resourceVersion":"'))
    return metadata[start:] + b',"spec":' + bound + b',"status":' + told + b"}"


class _Conditions(msgspec.Struct):
    conditions: msgspec.Raw


def _end_of_conditions(status: bytes) -> int:
    conditions = bytes(msgspec.json.decode(status, type=_Conditions).conditions)
    return status.index(conditions) + len(conditions) - 1


def _rebuilt(stored: Stored, node: str, metadata: Document, now: str) -> bytes:
    """The slower way, for a pod that has the condition already or gets annotations from its binding."""
    from hekla.apiserver.bodies import decode_document, tail_of

    document: Document = decode_document(stored.body)
    # first, as `_spliced` has it: pods of one template have equal bytes behind it
    document["spec"] = {"nodeName": node} | document["spec"] | {"nodeName": node}
    for part in ("annotations", "labels"):
        if metadata.get(part):
            document["metadata"][part] = {**document["metadata"].get(part, {}), **metadata[part]}
    conditions = document.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [one for one in conditions if one.get("type") != "PodScheduled"]
    conditions.append(_scheduled(now))
    return tail_of(document)
