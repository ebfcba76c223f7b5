"""Issues and reviews service-account tokens: what TokenRequest and TokenReview ask for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from hekla.api.meta import Document, Kind, Scope
from hekla.apiserver.admission import Reader, User
from hekla.apiserver.auth.authenticate import Authenticator
from hekla.apiserver.auth.tokens import DEFAULT_AUDIENCE, DEFAULT_S, LONGEST_S, SHORTEST_S, Claims, TokenSigner
from hekla.apiserver.calls import Call
from hekla.apiserver.documents import number_in, part_of, text_in, texts_in
from hekla.apiserver.fielderrors import FieldError, invalid, invalid_object
from hekla.apiserver.status import bad_request, conflict, not_found

TOKEN_REQUEST = Kind(
    group="authentication.k8s.io",
    version="v1",
    kind="TokenRequest",
    plural="serviceaccounts",
    singular="tokenrequest",
    scope=Scope.NAMESPACED,
)


@dataclass(frozen=True)
class TokenDesk:
    """Hands tokens out and says whose they are."""

    signer: TokenSigner
    authenticator: Authenticator
    reader: Callable[[], Reader]
    new_id: Callable[[], str]

    def review(self, token: str, audiences: list[str]) -> tuple[User, list[str]]:
        """Whose token this is and for which of `audiences`; raises StatusError 401 if it is nobody's, or for none."""
        return self.authenticator.reviewed(token, audiences or (DEFAULT_AUDIENCE,))

    def issue(self, call: Call, request: Document) -> Document:
        """The answer to a TokenRequest for the service account that the call names."""
        spec = part_of(request, "spec")
        life_s = number_in(spec, "expirationSeconds") or DEFAULT_S
        errors = list(_life_errors(life_s))
        if errors:
            raise invalid_object(TOKEN_REQUEST, "", errors)
        namespace, name = call.target.namespace, call.target.name
        account = self.reader().get("serviceaccounts", namespace, name)
        if account is None:
            raise not_found("serviceaccounts", "", name)
        pod, pod_uid = self._bound_pod(part_of(spec, "boundObjectRef"), namespace, name)
        now_s = int(self.authenticator.clock())
        audiences = tuple(texts_in(spec, "audiences") or (DEFAULT_AUDIENCE,))
        claims = Claims(
            namespace=namespace,
            account=name,
            account_uid=account["metadata"]["uid"],
            pod=pod,
            pod_uid=pod_uid,
            audiences=audiences,
            expires_at=now_s + life_s,
            token_id=self.new_id(),
        )
        expires = datetime.fromtimestamp(claims.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": None},
            "spec": {**spec, "audiences": list(audiences), "expirationSeconds": life_s},
            "status": {"token": self.signer.sign(claims, issued_at=now_s), "expirationTimestamp": expires},
        }

    def _bound_pod(self, reference: Document, namespace: str, account: str) -> tuple[str, str]:
        if not reference:
            return "", ""
        if reference.get("kind") != "Pod" or reference.get("apiVersion") != "v1":
            raise bad_request(
                f"cannot bind token for serviceaccount {account!r} to an object of kind {reference.get('kind')!r}"
            )
        name = text_in(reference, "name")
        pod = self.reader().get("pods", namespace, name)
        if pod is None:
            raise not_found("pods", "", name)
        uid = pod["metadata"]["uid"]
        if reference.get("uid") not in (None, "", uid):
            why = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record ({uid})"
            raise conflict("pods", "", name, why)
        if pod["spec"].get("serviceAccountName") != account:
            raise bad_request(
                f"cannot bind token for serviceaccount {account!r} to pod running with different serviceaccount name."
            )
        return name, uid


def _life_errors(life_s: int) -> list[FieldError]:
    if life_s < SHORTEST_S:
        return [invalid("spec.expirationSeconds", life_s, "may not specify a duration less than 10 minutes")]
    if life_s > LONGEST_S:
        return [invalid("spec.expirationSeconds", life_s, "may not specify a duration larger than 2^32 seconds")]
    return []
