"""External providers: whether one can be asked, and a request put into the words that it expects.

One attempt, and whatever the provider answers is the client's to read. Nothing of the client's goes there but the body and a few
headers that say what it is and where it belongs: its credential is for us. `conditions.py` words what is wrong for the object.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from hekla.api.core import Secret
from hekla.api.kthena import ExternalModelProvider
from hekla.api.kthena.provider import AuthScheme, ProviderType
from hekla.serving.router.bodies import with_model
from hekla.serving.router.plan import NO_PROVIDER, Attempt, Destination, Fault, Refusal, Usage
from hekla.serving.router.question import Question

PATHS: Final = {
    ProviderType.OPENAI: frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"}),
    ProviderType.ANTHROPIC: frozenset({"/v1/messages"}),
}
"""What each protocol can be asked."""

KEPT_HEADERS: Final = frozenset(
    {b"content-type", b"accept", b"x-request-id", b"traceparent", b"tracestate", b"baggage", b"x-b3-traceid"}
    | {b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"x-b3-flags", b"content-length"}
)
ANTHROPIC_HEADERS: Final = frozenset({b"anthropic-version", b"anthropic-beta"})
RESERVED_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "host", "content-length", "connection"}
    | {"keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "trailer", "te"}
)
"""Headers that a provider's static ones may not set."""

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
HEADER_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*\Z")


class CredentialTrouble:
    """Why there is no credential, as `CredentialsResolved` gives the reason."""

    NOT_FOUND = "CredentialNotFound"
    KEY_NOT_FOUND = "CredentialKeyNotFound"
    INVALID = "CredentialInvalid"


@dataclass(slots=True, eq=False)
class Provider:
    """One provider, ready to be asked, or with the reason why it is not; a `plan.Target`."""

    source: ExternalModelProvider
    name: str
    host: str
    port: int
    prefix: str
    """Path of the base URL, without a slash at its end."""
    is_tls: bool
    verifies: bool
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The credential, the static headers and the host."""
    trouble: str = ""
    """Why it cannot be asked: a reason of its conditions; empty: it can."""
    complaint: str = ""
    """The same as a sentence."""
    credential_trouble: str = ""
    """What of it is the credential's: a reason of `CredentialsResolved`."""
    credential_complaint: str = ""

    @property
    def secret_key(self) -> str:
        """`namespace/name` of its secret; empty: it needs none."""
        auth = self.source.spec.auth
        return f"{self.source.metadata.namespace}/{auth.secret_ref.name}" if auth else ""

    @property
    def protocol(self) -> ProviderType:
        """What it speaks."""
        return ProviderType(self.source.spec.provider_type or ProviderType.OPENAI)

    @classmethod
    def of(cls, source: ExternalModelProvider, secrets: Mapping[str, Secret]) -> "Provider":
        """Read an object and its secret once."""
        wrong = configuration_complaint(source)
        lacking, lack, token = credential(source, secrets)
        where = urlsplit(source.spec.base_url if not base_url_complaint(source.spec.base_url) else "https://invalid")
        return cls(
            source=source,
            name=source.metadata.name,
            host=where.hostname or "",
            port=where.port or 443,
            prefix=quote(where.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
            is_tls=True,
            verifies=not source.spec.insecure_skip_verify,
            headers=() if wrong or lacking else _headers(source, where.netloc, token),
            trouble="ConfigurationInvalid" if wrong else lacking,
            complaint=wrong or lack,
            credential_trouble=lacking,
            credential_complaint=lack,
        )


def configuration_complaint(source: ExternalModelProvider) -> str:
    """What is wrong with the object itself; empty: nothing."""
    spec = source.spec
    if spec.provider_type not in ("", *ProviderType):
        return f'unsupported provider type "{spec.provider_type}"'
    if said := base_url_complaint(spec.base_url):
        return f"invalid provider base URL: {said}"
    for name, value in spec.headers.items():
        if not HEADER_NAME.match(name):
            return f'static header "{name}" has an invalid name'
        if name.lower() in RESERVED_HEADERS:
            return f'static header "{name}" is reserved'
        if not HEADER_VALUE.match(value):
            return f'static header "{name}" has an invalid value'
    if spec.auth is not None and spec.auth.scheme not in ("", *AuthScheme):
        return f'unsupported provider auth scheme "{spec.auth.scheme}"'
    return ""


def base_url_complaint(text: str) -> str:
    """What is wrong with a base URL; empty: nothing."""
    try:
        where = urlsplit(text)
        port_is_read = where.port is None or where.port > 0
    except ValueError as error:
        return str(error)
    if where.scheme != "https" or not where.hostname or not port_is_read:
        return "provider base URL must use https and include a host"
    if where.username is not None or where.query or where.fragment or text.endswith(("?", "#")):
        return "provider base URL must not contain userinfo, query, or fragment"
    return ""


def credential(source: ExternalModelProvider, secrets: Mapping[str, Secret]) -> tuple[str, str, str]:
    """(reason, sentence, token): why there is no credential, or the credential; all empty where none is needed."""
    auth = source.spec.auth
    if auth is None:
        return "", "", ""
    secret = secrets.get(f"{source.metadata.namespace}/{auth.secret_ref.name}")
    if secret is None:
        said = "Credential Secret is not found or does not have label "
        label = "networking.serving.volcano.sh/external-model-provider-credential=true"
        return CredentialTrouble.NOT_FOUND, said + label, ""
    value = secret.data.get(auth.secret_ref.key)
    if not value:
        return CredentialTrouble.KEY_NOT_FOUND, "Credential Secret key is not found", ""
    try:
        token = base64.b64decode(value, validate=True).decode("latin-1").strip()
    except binascii.Error:
        return CredentialTrouble.INVALID, "provider credential is not base64", ""
    if not token:
        return CredentialTrouble.INVALID, "provider credential is empty after trimming whitespace", ""
    if not HEADER_VALUE.match(token):
        return CredentialTrouble.INVALID, "provider credential contains invalid HTTP header characters", ""
    return "", "", token


def _headers(source: ExternalModelProvider, host: str, token: str) -> tuple[tuple[bytes, bytes], ...]:
    spec = source.spec
    headers = {name.lower().encode(): value.encode() for name, value in spec.headers.items()}
    if token and spec.auth is not None:
        usual = AuthScheme.API_KEY if spec.provider_type == ProviderType.ANTHROPIC else AuthScheme.BEARER
        secret = token.encode("latin-1")  # the bytes of the Secret, as they are
        if (spec.auth.scheme or usual) == AuthScheme.BEARER:
            headers[b"authorization"] = b"Bearer " + secret
        else:
            headers[b"x-api-key"] = secret
    headers[b"host"] = host.encode()
    return tuple(headers.items())


def upstream_path(provider: Provider, path: str) -> str:
    """Where a request goes at the provider: its prefix and the path, without a second /v1."""
    if provider.protocol is ProviderType.ANTHROPIC:
        trims = provider.prefix.endswith("/v1")
    else:
        trims = bool(provider.prefix)
    rest = path.removeprefix("/v1") if trims and path.startswith("/v1/") else path
    return f"{provider.prefix}{rest}"


def with_query(path: str, question: Question) -> str:
    """Another path with the query that came."""
    return f"{path}?{question.query}" if question.query else path


def provider_plan(provider: Provider, question: Question, destination: Destination) -> "ProviderPlan | Refusal":
    """The way of a request to a provider, or why there is none."""
    if provider.trouble:
        said = f'external model provider "{provider.name}" is not ready: {provider.complaint}'
        return Refusal(503, "provider_config", NO_PROVIDER, detail=said)
    if question.path not in PATHS[provider.protocol]:
        said = f'provider type "{provider.protocol}" does not support path "{question.path}"'
        return Refusal(400, "provider_config", said)
    return ProviderPlan(provider, question, destination)


class ProviderPlan:
    """One attempt at one provider."""

    __slots__ = ("_fault", "_is_asked", "_provider", "_question", "destination")

    def __init__(self, provider: Provider, question: Question, destination: Destination) -> None:
        self.destination = destination
        self._provider = provider
        self._question = question
        self._is_asked = False
        self._fault: Fault | None = None

    def next(self, now: float) -> Attempt | Refusal:
        """Once; then why it failed."""
        provider, question = self._provider, self._question
        if self._fault is not None or self._is_asked:
            status = 504 if self._fault is Fault.TIMEOUT else 502
            said = f'request to external model provider "{provider.name}" failed'
            return Refusal(status, "proxy", "the request to the model's provider failed", detail=said)
        self._is_asked = True
        model = provider.source.spec.model
        kept = KEPT_HEADERS | ANTHROPIC_HEADERS if provider.protocol is ProviderType.ANTHROPIC else KEPT_HEADERS
        return Attempt(
            target=provider,
            body=with_model(question.body, model) if model and model != question.model else None,
            path=with_query(upstream_path(provider, question.path), question),
            headers=provider.headers,
            keep_headers=kept,
        )

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """There is no other to ask."""
        self._fault = fault

    def first_byte(self, now: float) -> None:
        """Nothing is counted on a provider."""

    def ended(self, usage: Usage | None, now: float) -> None:
        """Nothing is counted on a provider."""
