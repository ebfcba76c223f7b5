"""Objects that are questions: who am I, may I, may they, whose token is this. Answered, never stored."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import Attributes
from hekla.apiserver.backend import Backend
from hekla.apiserver.binding import BOUND, bind
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import loose_document, part_of, text_in, texts_in
from hekla.apiserver.negotiation import document_type
from hekla.apiserver.presentation import document_answer
from hekla.apiserver.status import StatusError, bad_request, method_not_allowed
from hekla.wire.messages import Answer, Response

ReviewToken = Callable[[str, list[str]], tuple[User, list[str]]]
"""Whose token this is, and for which of these audiences; raises StatusError if it is nobody's, or for none of them."""

IssueToken = Callable[[Call, Document], "Document | Awaitable[Document]"]
"""Answers `serviceaccounts/x/token`: from the TokenRequest to the TokenRequest with its status."""


@dataclass(eq=False)
class Reviews:
    """Answers reviews; what it cannot know is handed in."""

    review_token: ReviewToken | None = None
    issue_token: IssueToken | None = None

    def answer(self, backend: Backend, call: Call) -> Answer | Awaitable[Answer]:
        """POST of a review."""
        if call.request.method != "POST" or call.target.name:
            raise method_not_allowed()
        review = loose_document(call.request.body, document_type(call.content_type))
        kind = call.served.kind.kind
        if review.get("kind", kind) != kind:
            raise bad_request(f"{review['kind']} cannot be handled as a {kind}")
        if kind == "Binding":
            return _bind(backend, call, review)
        return document_answer(call, self._reviewed(backend, call, kind, review), status=201)

    def _reviewed(self, backend: Backend, call: Call, kind: str, review: Document) -> Document:
        said: Document = {"kind": kind, "apiVersion": call.served.kind.api_version, "metadata": {}}
        spec = part_of(review, "spec")
        match kind:
            case "SelfSubjectReview":
                said["metadata"]["creationTimestamp"] = backend.now()
                return said | {"status": {"userInfo": user_info(call.user)}}
            case "SelfSubjectAccessReview":
                return said | {"spec": spec, "status": _decision(backend, call.user, spec)}
            case "SubjectAccessReview" | "LocalSubjectAccessReview":
                _check_subject(call, spec)
                return said | {"spec": spec, "status": _decision(backend, _subject(spec), spec)}
            case "SelfSubjectRulesReview":
                return said | {"spec": spec, "status": _rules(backend, call.user, spec)}
            case "TokenReview":
                return said | {"spec": spec, "status": self._token_status(spec)}
        raise StatusError(501, "NotImplemented", f"a {kind} cannot be answered here")

    def _token_status(self, spec: Document) -> Document:
        if self.review_token is None:
            return {"user": {}, "error": "this server knows no tokens"}
        token, asked = str(spec.get("token", "")), texts_in(spec, "audiences")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        try:
            # who asked for several audiences has to be told which of them the token is meant for
            user, meant_for = self.review_token(token, asked)
        except StatusError:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": user_info(user), "audiences": meant_for}

    async def token_request(self, backend: Backend, call: Call) -> Response:
        """POST serviceaccounts/x/token."""
        if self.issue_token is None:
            raise StatusError(
                501, "NotImplemented", "this server issues no tokens: it was started without a signing key"
            )
        asked = loose_document(call.request.body, document_type(call.content_type)) if call.request.body else {}
        found = self.issue_token(call, asked)
        return document_answer(call, found if isinstance(found, dict) else await found, status=201)


async def _bind(backend: Backend, call: Call, binding: Document) -> Response:
    name = text_in(part_of(binding, "metadata"), "name")
    if not name:
        raise bad_request("a Binding must name its pod in metadata.name")
    await bind(backend, call, name, binding)
    return document_answer(call, BOUND, status=201)


def user_info(user: User) -> Document:
    """A user as reviews tell of them."""
    info: Document = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def _subject(spec: Document) -> User:
    extra = {key: tuple(texts_in(part_of(spec, "extra"), key)) for key in part_of(spec, "extra")}
    return User(text_in(spec, "user"), tuple(texts_in(spec, "groups")), text_in(spec, "uid"), extra)


def _check_subject(call: Call, spec: Document) -> None:
    if not spec.get("user") and not spec.get("groups"):
        raise bad_request("at least one of user or group must be specified in spec")
    attributes = part_of(spec, "resourceAttributes")
    if call.served.kind.is_namespaced and attributes.get("namespace") != call.target.namespace:
        raise bad_request(
            f"spec.resourceAttributes.namespace must match the namespace of the request: {call.target.namespace}"
        )


def _decision(backend: Backend, user: User, spec: Document) -> Document:
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (other is None):
        raise bad_request("exactly one of resourceAttributes or nonResourceAttributes must be specified in spec")
    if other is not None:
        other = part_of(spec, "nonResourceAttributes")
        asked = Attributes(user=user, verb=text_in(other, "verb"), path=text_in(other, "path") or "/")
    else:
        resource = part_of(spec, "resourceAttributes")
        asked = Attributes(
            user=user,
            verb=text_in(resource, "verb"),
            group=text_in(resource, "group"),
            version=text_in(resource, "version"),
            resource=text_in(resource, "resource"),
            subresource=text_in(resource, "subresource"),
            namespace=text_in(resource, "namespace"),
            name=text_in(resource, "name"),
        )
    decision = backend.authorizer.decide(asked)
    status: Document = {"allowed": decision.is_allowed}
    # Kubernetes gives no reason for what its superusers may do
    if decision.reason and "system:masters" not in user.groups:
        status["reason"] = decision.reason
    return status


def _rules(backend: Backend, user: User, spec: Document) -> Document:
    if not spec.get("namespace"):
        raise bad_request("no namespace on request")
    resources, others = backend.authorizer.rules_for(user, str(spec.get("namespace", "")))
    return {"resourceRules": resources, "nonResourceRules": others, "incomplete": False}
