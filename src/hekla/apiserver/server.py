"""A Kubernetes API server: one handler for the wire, and what happens to a request on its way.

    api = ApiServer(MemoryStore(), strategies=builtin_strategies())
    await api.start()
    await Server().start(api.handle)

Authentication, routing, authorization, then one handler per verb. Reads are plain functions that return stored bytes;
writes are coroutines that answer when the store has made them durable. `writes.py` is where a write is decided.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from inspect import isawaitable

import structlog

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRule, User
from hekla.apiserver.auth.attributes import AllowAll, Attributes, Authorizer, refusal
from hekla.apiserver.auth.authenticate import impersonated
from hekla.apiserver.auth.openid import Issuer
from hekla.apiserver.backend import LOCAL_ADMIN, Backend, random_suffix, random_uid, utc_now
from hekla.apiserver.bootstrap_namespaces import ensure_namespaces
from hekla.apiserver.bulk_binding import PATH as BULK_BINDINGS
from hekla.apiserver.bulk_binding import bind_pods
from hekla.apiserver.calls import Call, is_true
from hekla.apiserver.computed import Computed
from hekla.apiserver.crds import CustomResources, NoWebhookConversion
from hekla.apiserver.discovery import Discovery
from hekla.apiserver.documents import MAX_BODY, too_deep
from hekla.apiserver.handlers_patch import patch_object
from hekla.apiserver.handlers_read import get_object, list_objects
from hekla.apiserver.handlers_watch import Watches
from hekla.apiserver.handlers_write import create_object, delete_collection, delete_object, replace_object
from hekla.apiserver.health import Health
from hekla.apiserver.managed_fields import ManagedFieldsView
from hekla.apiserver.negotiation import PLAIN, agreed, wanted
from hekla.apiserver.openapi import OpenApi
from hekla.apiserver.pod_doors import answered_here
from hekla.apiserver.presentation import error_answer
from hekla.apiserver.protobuf import as_json, is_protobuf
from hekla.apiserver.registry import PROXIED, STORED_AS, Registry, Served, builtin
from hekla.apiserver.reviews import Reviews
from hekla.apiserver.routing import Target, target_of, verb_of
from hekla.apiserver.selectors import field_selector
from hekla.apiserver.status import (
    StatusError,
    bad_request,
    forbidden,
    internal,
    method_not_allowed,
    no_such_resource,
    too_large,
    unsupported_media,
)
from hekla.apiserver.store import Store, StoreBusyError, StoreClosedError, StoreFullError
from hekla.apiserver.strategy import Strategy
from hekla.apiserver.subresources import Subresources
from hekla.wire.messages import Answer, Request, Response

log = structlog.get_logger(__name__)

_OF_MANY = frozenset({"list", "watch", "deletecollection"})

Authenticate = Callable[[Request], "User | Awaitable[User | None] | None"]
Proxy = Callable[[Call], "Answer | Awaitable[Answer]"]
"""Answers what the API server only passes on: logs, exec, attach, port-forward, proxies."""


def everybody_is_admin(_request: Request) -> User:
    """The authentication of a server that only this machine's user can reach."""
    return LOCAL_ADMIN


class ApiServer:
    """The API server. `handle` is a wire `Handler`; it may be called as soon as `start` has returned."""

    def __init__(
        self,
        store: Store,
        *,
        strategies: Iterable[Strategy],
        rules: Sequence[AdmissionRule] = (),
        authenticate: Authenticate = everybody_is_admin,
        authorizer: Authorizer | None = None,
        proxy: Proxy | None = None,
        reviews: Reviews | None = None,
        issuer: Issuer | None = None,
        computed: Sequence[Computed] = (),
        clock: Callable[[], datetime] = utc_now,
        uids: Callable[[], str] = random_uid,
        suffixes: Callable[[], str] = random_suffix,
    ) -> None:
        registry = Registry()
        registry.add(builtin(strategy, STORED_AS.get(strategy.kind.resource, "")) for strategy in strategies)
        registry.add(one.served() for one in computed)
        self._computed = {one.kind.resource: one for one in computed}
        self.backend = Backend(
            store=store,
            registry=registry,
            rules=(*rules, NoWebhookConversion()),
            authorizer=authorizer or AllowAll(),
            clock=clock,
            uids=uids,
            suffixes=suffixes,
        )
        self._authenticate, self._proxy = authenticate, proxy
        self._managed = ManagedFieldsView()
        self._watches = Watches(self.backend)
        self._custom = CustomResources(self.backend)
        self._discovery, self._openapi, self._health = Discovery(registry), OpenApi(registry), Health(self.backend)
        parts = (self._discovery, self._openapi, self._health, issuer)
        self._documents = [each for each in parts if each is not None]
        self._reviews = reviews or Reviews()
        self._subresources = Subresources(self.backend)

    @property
    def registry(self) -> Registry:
        """Everything that is served."""
        return self.backend.registry

    async def start(self) -> None:
        """Serve the custom resources that are stored, and make the namespaces that always exist."""
        await self._custom.start()
        await ensure_namespaces(self.backend)
        self._health.is_ready = True

    async def stop(self) -> None:
        """End all watches. The store stays open: it is its maker's."""
        self._health.is_ready = False
        self._watches.close()
        await self._custom.stop()

    # ---- one request

    def handle(self, request: Request) -> Answer | Awaitable[Answer]:
        """Answer one request."""
        return self._attempt(request, self._authenticated, request)

    def _authenticated(self, request: Request) -> Answer | Awaitable[Answer]:
        user = self._authenticate(request)
        if type(user) is User or not isawaitable(user):
            return self._handle_as(request, user)
        return self._handle_later(request, user)

    async def _handle_later(self, request: Request, waiting: Awaitable[User | None]) -> Answer:
        try:
            user = await waiting
        except StatusError as error:
            return self._refusal(request, error)
        found = self._attempt(request, self._handle_as, request, user)
        return await found if isawaitable(found) else found

    def _attempt(
        self, request: Request, step: Callable[..., Answer | Awaitable[Answer]], *arguments: object
    ) -> Answer | Awaitable[Answer]:
        """Do one step of a request; what goes wrong becomes a Status."""
        try:
            return step(*arguments)
        except StatusError as error:
            return self._refusal(request, error)
        except RecursionError:
            return self._refusal(request, too_deep())
        except Exception:  # the boundary of one request, as in `_awaited`
            log.exception("request failed", method=request.method, target=request.target[:300])
            return self._refusal(request, internal("Internal error occurred: see the server's log"))

    def _refusal(self, request: Request, error: StatusError) -> Answer:
        self._health.count(request.method, "", error.code)
        return error_answer(error, agreed(request.headers.get("accept", "")))

    def _handle_as(self, request: Request, user: User | None) -> Answer | Awaitable[Answer]:
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        if "impersonate-" in " ".join(request.headers):
            user = impersonated(request, user, self.backend.authorizer)
        if len(request.body) > MAX_BODY:
            raise too_large(MAX_BODY)
        path = request.path
        if path == BULK_BINDINGS and request.peer.is_local:
            return bind_pods(self.backend, request, user)
        target = target_of(path)
        if target is None:
            return self._non_resource(request, user, path)
        return self._resource(request, user, target)

    def _non_resource(self, request: Request, user: User, path: str) -> Answer | Awaitable[Answer]:
        asked = Attributes(user=user, verb=request.method.lower(), path=path)
        if not self.backend.authorizer.decide(asked).is_allowed:
            raise StatusError(403, "Forbidden", f"forbidden: {refusal(asked)}", details={})
        for part in self._documents:
            answer = part.answer(request, path)
            if answer is not None:
                if request.method not in {"GET", "HEAD"}:
                    raise method_not_allowed()
                return answer
        return Response(404, b"404 page not found\n", "text/plain; charset=utf-8")

    def _resource(self, request: Request, user: User, target: Target) -> Answer | Awaitable[Answer]:
        served = self.registry.at(target.group, target.version, target.resource)
        is_watch = "watch=" in request.target and not target.name and _asks_to_watch(request)
        if served is None and target.resource == "watch":
            # the watch paths of old clients: /api/v1/watch/namespaces/x/pods
            target, served, is_watch = self._old_watch(target, request)
        verb = verb_of(request.method, target, is_watch=is_watch)
        self._authorize(user, target, verb, _wanted_name(request) if verb in _OF_MANY else "")
        if served is None or bool(target.namespace or not target.name) < served.kind.is_namespaced:
            return self._unknown(target)
        if target.namespace and not served.kind.is_namespaced:
            raise no_such_resource()
        if is_protobuf(request.headers.get("content-type", "")):
            request = _read_as_json(request, served)
        shape = wanted(request.headers.get("accept", "")) if "accept" in request.headers else PLAIN
        call = Call(request, user, target, served, verb, shape)
        found = self._dispatch(call, is_watch=is_watch)
        # asked by type, because `isawaitable` costs a get a tenth of its time
        if type(found) is Response or not isawaitable(found):
            return self._counted(call, found)
        return self._guarded(call, found)

    def _old_watch(self, target: Target, request: Request) -> tuple[Target, Served | None, bool]:
        head = f"/api/{target.version}" if not target.group else f"/apis/{target.group}/{target.version}"
        rest = request.path[len(head) + len("/watch") :]
        again = target_of(head + rest)
        if again is None:
            return target, None, False
        return again, self.registry.at(again.group, again.version, again.resource), True

    def _unknown(self, target: Target) -> Response:
        # a group that nobody has registered is a path that nobody serves; Kubernetes tells the two apart
        if not self.registry.in_version(target.group, target.version):
            return Response(404, b"404 page not found\n", "text/plain; charset=utf-8")
        raise no_such_resource()

    def _authorize(self, user: User, target: Target, verb: str, wanted: str) -> None:
        """Ask whether they may; who lists by `fieldSelector=metadata.name=x` asks for that one name, as in Kubernetes."""
        name = target.name or wanted
        asked = Attributes(
            user=user,
            verb=verb,
            group=target.group,
            version=target.version,
            resource=target.resource,
            subresource=target.subresource,
            namespace=target.namespace or (target.name if target.resource == "namespaces" and not target.group else ""),
            name=name,
        )
        if not self.backend.authorizer.decide(asked).is_allowed:
            raise forbidden(target.resource, target.group, name, refusal(asked))

    def _dispatch(self, call: Call, *, is_watch: bool) -> Answer | Awaitable[Answer]:
        target, served, method = call.target, call.served, call.request.method
        if served.is_virtual:
            computed = self._computed.get(served.kind.resource)
            return self._reviews.answer(self.backend, call) if computed is None else computed.answer(call)
        if target.subresource:
            return self._subresource(call)
        if target.name:
            return self._object(call, is_watch=is_watch)
        if call.verb not in served.verbs:
            raise method_not_allowed()
        if method in {"GET", "HEAD"}:
            return self._watches.watch(call) if is_watch else list_objects(self.backend, call)
        if method == "POST":
            return create_object(self.backend, call)
        if method == "DELETE":
            return delete_collection(self.backend, call)
        raise method_not_allowed()

    def _object(self, call: Call, *, is_watch: bool) -> Answer | Awaitable[Answer]:
        method = call.request.method
        if method in {"GET", "HEAD"}:
            return self._watches.watch(call) if is_watch else get_object(self.backend, call, self._managed)
        if call.verb not in call.served.verbs:
            raise method_not_allowed()
        if method == "PUT":
            return replace_object(self.backend, call)
        if method == "PATCH":
            return patch_object(self.backend, call)
        if method == "DELETE":
            return delete_object(self.backend, call)
        raise method_not_allowed()

    def _subresource(self, call: Call) -> Answer | Awaitable[Answer]:
        known = call.served.subresources.get(call.target.subresource)
        if known is None:
            raise no_such_resource()
        if call.target.subresource in PROXIED:
            if self._proxy is None:
                raise StatusError(
                    501, "NotImplemented", f"this server runs without a node: {known.name} is not available"
                )
            return answered_here(self.backend, call) or self._proxy(call)
        if call.verb not in known.verbs:
            raise method_not_allowed()
        if call.target.subresource == "token":
            return self._reviews.token_request(self.backend, call)
        return self._subresources.answer(call, self._managed)

    async def _guarded(self, call: Call, waiting: Awaitable[Answer]) -> Answer:
        """Await an answer; what goes wrong becomes a Status."""
        return self._counted(call, await self._awaited(call, waiting))

    def _counted(self, call: Call, answer: Answer) -> Answer:
        code = answer.status if isinstance(answer, Response) else 101
        self._health.count(call.verb, call.served.kind.resource, code)
        return answer

    async def _awaited(self, call: Call, waiting: Awaitable[Answer]) -> Answer:
        """An answer, or the Status of what went wrong; of our own mistakes it tells nothing but that they happened."""
        try:
            return await waiting
        except StatusError as error:
            return error_answer(error, call.wanted)
        except RecursionError:
            return error_answer(too_deep(), call.wanted)
        except StoreBusyError as error:
            details: Document = {"retryAfterSeconds": 1}
            busy = StatusError(429, "TooManyRequests", str(error), details=details, headers=(("retry-after", "1"),))
            return error_answer(busy, call.wanted)
        except StoreFullError as error:
            return error_answer(_not_now(str(error)), call.wanted)
        except StoreClosedError:
            return error_answer(_not_now("the server is shutting down"), call.wanted)
        except Exception:  # the task boundary of one request: the server lives, the log knows
            log.exception("request failed", method=call.request.method, target=call.request.target[:300])
            return error_answer(internal("Internal error occurred: see the server's log"), call.wanted)


def _not_now(why: str) -> StatusError:
    details: Document = {"retryAfterSeconds": 1}
    return StatusError(503, "ServiceUnavailable", why, details=details, headers=(("retry-after", "1"),))


def _read_as_json(request: Request, served: Served) -> Request:
    """The request with its protobuf body as JSON, so that nobody behind has to know."""
    if served.is_custom and request.method != "DELETE":
        raise unsupported_media(["application/json", "application/yaml"])
    headers = {**request.headers, "content-type": "application/json"}
    return Request(
        request.method, request.target, headers, as_json(request.body) if request.body else b"", request.peer
    )


def _wanted_name(request: Request) -> str:
    """The one name that a list, a watch or a deletion of many is narrowed to; the same selector filters what they see."""
    if "fieldSelector=" not in request.target:
        return ""
    text = request.query().get("fieldSelector", [""])[0]
    return field_selector(text, lambda _: True, bad_request).exact("metadata.name") or ""


def _asks_to_watch(request: Request) -> bool:
    return is_true(request.query().get("watch", ())) and request.method == "GET"
