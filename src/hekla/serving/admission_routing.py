"""What is refused in a ModelRoute, a ModelServer and an ExternalModelProvider, in the words of the router's webhook."""

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from hekla.api.fields import Duration
from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer
from hekla.api.kthena.provider import AuthScheme, ProviderType
from hekla.api.kthena.route import Rule
from hekla.api.kthena.server import SessionSource, SessionSticky, TrafficPolicy
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.fielderrors import FieldError, invalid, not_supported, required
from hekla.apiserver.validation.names import label_value, qualified_name
from hekla.edge.shared_buckets import place_of
from hekla.lib.expressions import ExpressionError, expression
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.serving.admission_words import denial
from hekla.serving.router.annotations import OF_A_SERVER, unknown, unreadable
from hekla.serving.router.providers import HEADER_NAME, HEADER_VALUE, RESERVED_HEADERS


def refuse_model_route(request: AdmissionRequest, reader: Reader) -> str:
    """Why a ModelRoute may not be written; empty if it may."""
    route = msgspec.convert(request.object or {}, ModelRoute)
    request.warnings.extend(one.sentence for one in unknown(route.metadata.annotations, ()))
    return denial(route_wrongs(route))


def refuse_model_server(request: AdmissionRequest, reader: Reader) -> str:
    """Why a ModelServer may not be written; empty if it may."""
    server = msgspec.convert(request.object or {}, ModelServer)
    request.warnings.extend(one.sentence for one in unknown(server.metadata.annotations, OF_A_SERVER))
    return denial([*server_wrongs(server), *_annotation_wrongs(server.metadata.annotations)], joint="")


def refuse_provider(request: AdmissionRequest, reader: Reader) -> str:
    """Why an ExternalModelProvider may not be written; empty if it may."""
    return denial(provider_wrongs(msgspec.convert(request.object or {}, ExternalModelProvider)))


def route_wrongs(route: ModelRoute) -> Iterator[FieldError]:
    """All that is wrong with a route."""
    spec = route.spec
    if not spec.model_name and not spec.lora_adapters:
        yield required("spec", "either modelName or loraAdapters must be specified")
    for number, name in enumerate(spec.lora_adapters):
        if not name:
            yield invalid(f"spec.loraAdapters[{number}]", name, "lora adapter name cannot be an empty string")
    for number, rule in enumerate(spec.rules):
        yield from _rule_wrongs(rule, f"spec.rules[{number}]", has_adapters=bool(spec.lora_adapters))
    shared = spec.rate_limit.shared if spec.rate_limit is not None else None
    if shared is not None and shared.redis is not None and place_of(shared.redis.address) is None:
        said = "it must be host:port, such as redis.cache.svc:6379"
        yield invalid("spec.rateLimit.global.redis.address", shared.redis.address, said)


def _rule_wrongs(rule: Rule, where: str, *, has_adapters: bool) -> Iterator[FieldError]:
    if not rule.target_models:
        yield required(f"{where}.targetModels", "each rule must have at least one target model")
        return
    for number, target in enumerate(rule.target_models):
        field = f"{where}.targetModels[{number}]"
        server, provider = target.model_server_name, target.external_model_provider_name
        if bool(server) == bool(provider):
            said = "exactly one of modelServerName or externalModelProviderName must be set"
            yield invalid(field, f"{server}/{provider}", said)
        if provider and has_adapters:
            yield invalid(f"{field}.externalModelProviderName", provider, "lora routes must target modelServerName")
    total = sum(100 if one.weight is None else one.weight for one in rule.target_models)
    if total == 0:
        yield invalid(f"{where}.targetModels", total, "total weight must be greater than zero")
    if rule.model_match is None:
        return
    for name, said_of in rule.model_match.headers.items():
        yield from _regex_wrongs(said_of.regex, f"{where}.modelMatch.headers[{name}].regex")
    if rule.model_match.uri is not None:
        yield from _regex_wrongs(rule.model_match.uri.regex, f"{where}.modelMatch.uri.regex")


def _regex_wrongs(pattern: str | None, field: str) -> Iterator[FieldError]:
    try:
        expression(pattern or "")
    except ExpressionError as error:
        yield invalid(field, pattern, f"error parsing regexp: {error}")


def server_wrongs(server: ModelServer) -> Iterator[FieldError]:
    """All that is wrong with a server."""
    selector, where = server.spec.workload_selector, "spec.workloadSelector"
    yield from _labels_wrongs(selector.match_labels, f"{where}.matchLabels")
    if selector.pd_group is not None:
        if not selector.pd_group.group_key:
            yield required(f"{where}.pdGroup.groupKey", "groupKey must be specified")
        yield from _labels_wrongs(selector.pd_group.prefill_labels, f"{where}.pdGroup.prefillLabels")
        yield from _labels_wrongs(selector.pd_group.decode_labels, f"{where}.pdGroup.decodeLabels")
    policy = server.spec.traffic_policy
    if policy is not None:
        yield from _policy_wrongs(policy, "spec.trafficPolicy")


def _policy_wrongs(policy: TrafficPolicy, where: str) -> Iterator[FieldError]:
    yield from _wait_wrongs(f"{where}.timeout", policy.timeout)
    if policy.retry is not None:
        yield from _wait_wrongs(f"{where}.retry.retryInterval", policy.retry.retry_interval)
    if policy.connection_pool is not None:
        yield from _wait_wrongs(f"{where}.connectionPool.idleTimeout", policy.connection_pool.idle_timeout)
    if policy.session_sticky is not None:
        yield from _sticky_wrongs(policy.session_sticky, f"{where}.sessionSticky")


def _wait_wrongs(field: str, value: Duration | None) -> Iterator[FieldError]:
    """Kthena's webhook cannot read an object with a text that is no duration, and refuses it too."""
    if not value:
        return
    try:
        if parse_duration(value).total_seconds() < 0:
            yield invalid(field, value, "it must not be negative; leave it out for no bound")
    except DurationError as error:
        yield invalid(field, value, str(error))


def _annotation_wrongs(told: Mapping[str, str]) -> Iterator[FieldError]:
    """What of our own annotations cannot be read, and so would be as if it were not there."""
    for one in unreadable(told, OF_A_SERVER):
        yield invalid(f"metadata.annotations[{one.name}]", one.value, one.why)


def _labels_wrongs(labels: Mapping[str, str], field: str) -> Iterator[FieldError]:
    if not labels:
        yield required(field, "labels must contain at least one label")
        return
    for name, value in labels.items():
        wrong = [f'key: Invalid value: "{name}": {said}' for said in qualified_name(name)]
        wrong += [f'values[0][{name}]: Invalid value: "{value}": {said}' for said in label_value(value)]
        if wrong:
            yield invalid(field, dict(labels), f"invalid selector: {'; '.join(wrong)}")
            return


def _sticky_wrongs(sticky: SessionSticky, where: str) -> Iterator[FieldError]:
    if not sticky.sources:
        yield required(f"{where}.sources", "sources must be non-empty when sessionSticky is set")
    seconds = sticky.session_affinity_seconds
    if seconds is not None and seconds < 1:
        yield invalid(f"{where}.sessionAffinitySeconds", seconds, "sessionAffinitySeconds must be at least 1")
    for number, source in enumerate(sticky.sources):
        if source.type not in list(SessionSource):
            yield not_supported(f"{where}.sources[{number}].type", source.type, [str(one) for one in SessionSource])
        if not source.name:
            yield required(f"{where}.sources[{number}].name", "source name must be non-empty")


def provider_wrongs(provider: ExternalModelProvider) -> Iterator[FieldError]:
    """All that is wrong with a provider."""
    spec = provider.spec
    if spec.provider_type not in ("", *ProviderType):
        yield not_supported("spec.providerType", spec.provider_type, [str(one) for one in ProviderType])
    yield from _url_wrongs(spec.base_url)
    for name, value in spec.headers.items():
        field = f"spec.headers[{name}]"
        if not HEADER_NAME.match(name):
            yield invalid(field, name, "header name is invalid")
            continue
        if name.lower() in RESERVED_HEADERS:
            yield invalid(field, name, "header is reserved and cannot be configured as a static header")
        if "\r" in value or "\n" in value:
            yield invalid(field, value, "header value must not contain CR or LF")
        elif not HEADER_VALUE.match(value):
            yield invalid(field, value, "header value must not contain control characters")
    if spec.auth is None:
        return
    if spec.auth.scheme not in ("", *AuthScheme):
        yield not_supported("spec.auth.scheme", spec.auth.scheme, [str(one) for one in AuthScheme])
    secret = spec.auth.secret_ref
    if not secret.name:
        yield required("spec.auth.secretRef.name", "secret name is required")
    if not secret.key:
        yield required("spec.auth.secretRef.key", "secret key is required")
    if secret.optional:
        yield invalid("spec.auth.secretRef.optional", True, "optional must be false or unset")


def _url_wrongs(text: str) -> Iterator[FieldError]:
    try:
        where = urlsplit(text)
        is_https = where.scheme == "https" and bool(where.netloc)
    except ValueError:
        is_https = False
    if not is_https:
        yield invalid("spec.baseURL", text, "baseURL must use https")
    elif where.username is not None or where.query or where.fragment:
        yield invalid("spec.baseURL", text, "baseURL must not contain userinfo, query, or fragment")
