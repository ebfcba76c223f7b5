"""Webhooks that change or refuse writes."""

from msgspec import Struct

from hekla.api.meta import Resource, Scope, resource
from hekla.api.selectors import LabelSelector


class ServiceReference(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The service in which the webhook runs."""

    name: str = ""
    namespace: str = ""
    path: str = ""
    port: int = 0


class WebhookClientConfig(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How the webhook is called."""

    ca_bundle: str = ""
    service: ServiceReference | None = None
    url: str = ""


class RuleWithOperations(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which writes it wants to see."""

    api_groups: list[str] = []
    api_versions: list[str] = []
    operations: list[str] = []
    resources: list[str] = []
    scope: str = ""


class MatchCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A CEL expression that must hold for the webhook to be called."""

    expression: str = ""
    name: str = ""


class MutatingWebhook(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A webhook that may change objects."""

    admission_review_versions: list[str] = []
    client_config: WebhookClientConfig | None = None
    failure_policy: str = ""
    match_conditions: list[MatchCondition] = []
    match_policy: str = ""
    name: str = ""
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    reinvocation_policy: str = ""
    rules: list[RuleWithOperations] = []
    side_effects: str = ""
    timeout_seconds: int | None = None


class ValidatingWebhook(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A webhook that may refuse objects."""

    admission_review_versions: list[str] = []
    client_config: WebhookClientConfig | None = None
    failure_policy: str = ""
    match_conditions: list[MatchCondition] = []
    match_policy: str = ""
    name: str = ""
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    rules: list[RuleWithOperations] = []
    side_effects: str = ""
    timeout_seconds: int | None = None


@resource(
    "admissionregistration.k8s.io/v1",
    plural="mutatingwebhookconfigurations",
    scope=Scope.CLUSTER,
    categories=("api-extensions",),
)
class MutatingWebhookConfiguration(Resource, kw_only=True, frozen=True, rename="camel"):
    """Webhooks that may change objects."""

    webhooks: list[MutatingWebhook] = []


@resource(
    "admissionregistration.k8s.io/v1",
    plural="validatingwebhookconfigurations",
    scope=Scope.CLUSTER,
    categories=("api-extensions",),
)
class ValidatingWebhookConfiguration(Resource, kw_only=True, frozen=True, rename="camel"):
    """Webhooks that may refuse objects."""

    webhooks: list[ValidatingWebhook] = []
