"""Binding many pods in one call, for the scheduler that lives in this process: a real Kubernetes has no such call.

The call carries [namespace, name, uid, node] of each pod, and its answer a Status for each that was refused, null for the
others. Every pod is authorized, admitted and bound as by a call of its own (`binding.py`); what they share is the way to
the server and the commit.
"""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import Attributes, refusal
from hekla.apiserver.backend import Backend
from hekla.apiserver.binding import bind_soon
from hekla.apiserver.calls import Call
from hekla.apiserver.negotiation import PLAIN
from hekla.apiserver.routing import Target
from hekla.apiserver.status import StatusError, forbidden, no_such_resource
from hekla.apiserver.store import StoreError
from hekla.wire.messages import Request, Response

PATH = "/hekla/bindings"
"""Served to callers in this process alone."""

Wanted = tuple[str, str, str, str]
"""Namespace, name, uid, node."""

_wanted = msgspec.json.Decoder(list[Wanted]).decode
_encode = msgspec.json.Encoder().encode


async def bind_pods(backend: Backend, request: Request, user: User) -> Response:
    """Bind them all, each by itself: one that is refused keeps nobody else waiting."""
    refused: list[Document | None] = []
    under_way: list[tuple[int, asyncio.Future[None]]] = []
    calls: dict[str, Call] = {}
    for number, one in enumerate(_wanted(request.body)):
        refused.append(None)
        try:
            durable = await _bound(backend, _call(backend, calls, request, user, one), one)
            under_way.append((number, durable))
        except StatusError as error:
            refused[number] = error.document()
        except StoreError as error:
            refused[number] = _not_now(error)
    for number, problem in await _settled(under_way):
        refused[number] = _not_now(problem)
    return Response(200, _encode(refused))


async def _bound(backend: Backend, call: Call, one: Wanted) -> "asyncio.Future[None]":
    namespace, name, uid, node = one
    _authorize(backend, call.user, namespace, name)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    durable = await bind_soon(backend, call, name, binding)
    assert durable is not None, "nobody rehearses many bindings"
    return durable


async def _settled(under_way: Sequence[tuple[int, "asyncio.Future[None]"]]) -> Iterable[tuple[int, StoreError]]:
    """Those that could not be made durable. They are settled in order, so waiting for the last is waiting for all."""
    if not under_way:
        return []
    await asyncio.wait([under_way[-1][1]])
    problems = [(number, durable.exception()) for number, durable in under_way]
    return [(number, problem) for number, problem in problems if isinstance(problem, StoreError)]


def _call(backend: Backend, calls: dict[str, Call], request: Request, user: User, one: Wanted) -> Call:
    """The call as rules know it: one for each namespace."""
    namespace = one[0]
    call = calls.get(namespace)
    if call is None:
        served = backend.registry.at("", "v1", "pods")
        if served is None:
            raise no_such_resource()
        target = Target("", "v1", "pods", namespace, "", "binding", "")
        call = calls[namespace] = Call(request, user, target, served, "create", PLAIN)
    return call


def _authorize(backend: Backend, user: User, namespace: str, name: str) -> None:
    asked = Attributes(
        user=user, verb="create", version="v1", resource="pods", subresource="binding", namespace=namespace, name=name
    )
    if not backend.authorizer.decide(asked).is_allowed:
        raise forbidden("pods", "", name, refusal(asked))


def _not_now(error: StoreError) -> Document:
    return StatusError(503, "ServiceUnavailable", str(error), details={"retryAfterSeconds": 1}).document()
