"""Finds out who asks: a client certificate, a service-account token, or a static token; nobody is `system:anonymous`.

A credential that is shown and wrong is 401, never anonymous. Impersonation (`Impersonate-User`) is honoured for
those whom authorization allows it.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from hekla.apiserver.admission import Reader, User
from hekla.apiserver.auth.attributes import ANONYMOUS, Attributes, Authorizer, refusal
from hekla.apiserver.auth.pki import subject_of
from hekla.apiserver.auth.tokens import DEFAULT_AUDIENCE, Claims, TokenError, TokenSigner
from hekla.apiserver.status import StatusError, forbidden
from hekla.wire.messages import Request

K = TypeVar("K")
V = TypeVar("V")

CACHED_CREDENTIALS = 1_024
"""Verified certificates and tokens that are remembered, least recently used first out; an ECDSA check costs 100 us."""

_EXTRA = "impersonate-extra-"
_GROUP = "authentication.k8s.io"


def unauthorized() -> StatusError:
    """401: who are you?"""
    return StatusError(401, "Unauthorized", "Unauthorized")


@dataclass
class Authenticator:
    """Says who sent a request."""

    signer: TokenSigner | None
    reader: Reader | None
    """Where service accounts and pods are looked up, so that a token dies with them."""

    clock: Callable[[], float]
    """Seconds since 1970."""

    static_tokens: Mapping[str, User] = field(default_factory=dict)
    local_user: User | None = None
    """Who a caller inside this process is, unless the request names one."""

    _certificates: OrderedDict[bytes, User] = field(default_factory=OrderedDict)
    _tokens: OrderedDict[str, tuple[Claims, User]] = field(default_factory=OrderedDict)

    def __call__(self, request: Request) -> User:
        """The user; raises StatusError 401 for a credential that is wrong."""
        header = request.headers.get("authorization", "")
        if header[:7].lower() == "bearer ":
            return self.user_of_token(header[7:].strip())
        if request.peer.certificate is not None:
            return self._user_of_certificate(request.peer.certificate)
        if request.peer.is_local and self.local_user is not None:
            return self.local_user
        return ANONYMOUS

    def user_of_token(self, token: str, audiences: Sequence[str] = (DEFAULT_AUDIENCE,)) -> User:
        """Whose token this is."""
        return self.reviewed(token, audiences)[0]

    def reviewed(self, token: str, audiences: Sequence[str]) -> tuple[User, list[str]]:
        """Whose token this is, and for which of `audiences` it is meant: a static one for all."""
        static = self._static_user(token)
        if static is not None:
            return static, list(audiences)
        claims, user = self._verified(token, audiences)
        if not self._still_exists(claims):
            raise unauthorized()
        asked = set(audiences)
        return user, [one for one in claims.audiences if one in asked]

    def _static_user(self, token: str) -> User | None:
        if not self.static_tokens:
            return None
        # every known token is compared, in constant time each, so that timing tells nothing
        matches = [
            user for known, user in self.static_tokens.items() if hmac.compare_digest(known.encode(), token.encode())
        ]
        return matches[0] if matches else None

    def _verified(self, token: str, audiences: Sequence[str]) -> tuple[Claims, User]:
        if self.signer is None:
            raise unauthorized()
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self._tokens.get(digest)
        if known is not None and known[0].expires_at > self.clock() and _is_meant_for(known[0], audiences):
            self._tokens.move_to_end(digest)
            return known
        try:
            claims = self.signer.verify(token, now_s=self.clock(), audiences=audiences)
        except TokenError:
            raise unauthorized() from None
        found = (claims, _user_of(claims))
        _remember(self._tokens, digest, found)
        return found

    def _still_exists(self, claims: Claims) -> bool:
        if self.reader is None:
            return True
        account = self.reader.get("serviceaccounts", claims.namespace, claims.account)
        if account is None or account["metadata"]["uid"] != claims.account_uid:
            return False
        if not claims.pod:
            return True
        pod = self.reader.get("pods", claims.namespace, claims.pod)
        return pod is not None and bool(pod["metadata"]["uid"] == claims.pod_uid)

    def _user_of_certificate(self, certificate: bytes) -> User:
        user = self._certificates.get(certificate)
        if user is None:
            name, groups = subject_of(certificate)
            if not name:
                raise unauthorized()
            user = User(name, (*groups, "system:authenticated"))
            _remember(self._certificates, certificate, user)
        return user


def _is_meant_for(claims: Claims, audiences: Sequence[str]) -> bool:
    return not set(claims.audiences).isdisjoint(audiences)


def _user_of(claims: Claims) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{claims.namespace}", "system:authenticated")
    extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/credential-id": (f"JTI={claims.token_id}",)}
    if claims.pod:
        extra["authentication.kubernetes.io/pod-name"] = (claims.pod,)
        extra["authentication.kubernetes.io/pod-uid"] = (claims.pod_uid,)
    return User(claims.user_name, groups, claims.account_uid, extra)


def impersonated(request: Request, user: User, authorizer: Authorizer) -> User:
    """The user that the request asks to be treated as, if `user` may impersonate it; else `user` itself."""
    name = request.headers.get("impersonate-user", "")
    groups = [part.strip() for part in request.headers.get("impersonate-group", "").split(",") if part.strip()]
    uid, extra = request.headers.get("impersonate-uid", ""), _wanted_extra(request)
    if not name:
        for what, said in (("groups", groups), ("a uid", uid), ("extra", extra)):
            if said:
                raise StatusError(400, "BadRequest", f"requested {what} to impersonate without impersonating a user")
        return user
    wanted = [_subject(name), *(("groups", "", group) for group in groups)]
    for resource, namespace, subject in wanted:
        asked = Attributes(user=user, verb="impersonate", resource=resource, namespace=namespace, name=subject)
        if not authorizer.decide(asked).is_allowed:
            raise forbidden(resource, "", subject, refusal(asked))
    facts = [("uids", "", uid)] if uid else []
    facts += [("userextras", key, value) for key, values in extra.items() for value in values]
    for resource, key, value in facts:
        asked = Attributes(
            user=user, verb="impersonate", group=_GROUP, version="v1", resource=resource, subresource=key, name=value
        )
        if not authorizer.decide(asked).is_allowed:
            raise forbidden(resource, _GROUP, value, refusal(asked))
    if resource_is_account(name):
        namespace = name.split(":")[2]
        groups = groups or ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    if name != ANONYMOUS.name and "system:authenticated" not in groups:
        groups = [*groups, "system:authenticated"]
    return User(name, tuple(groups), uid, extra)


def _wanted_extra(request: Request) -> dict[str, tuple[str, ...]]:
    """What `Impersonate-Extra-<key>` headers say of the user, by key: what stands in several lines has come as one."""
    return {
        unquote(header.removeprefix(_EXTRA)): tuple(value.split(", "))
        for header, value in request.headers.items()
        if header.startswith(_EXTRA)
    }


def resource_is_account(name: str) -> bool:
    """Whether a user name is that of a service account."""
    return name.startswith("system:serviceaccount:") and name.count(":") == 3


def _subject(name: str) -> tuple[str, str, str]:
    if resource_is_account(name):
        _, _, namespace, account = name.split(":")
        return ("serviceaccounts", namespace, account)
    return ("users", "", name)


def _remember(cache: OrderedDict[K, V], key: K, value: V) -> None:
    cache[key] = value
    while len(cache) > CACHED_CREDENTIALS:
        cache.popitem(last=False)
