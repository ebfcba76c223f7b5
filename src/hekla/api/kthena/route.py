"""ModelRoute of networking.serving.volcano.sh: which requests for a model go to which servers, and how many tokens they may ask.

`hekla.serving.router.routes` matches requests by it.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Limits
from hekla.api.fields import Rule as CelRule
from hekla.api.foreign.references import ParentReference
from hekla.api.meta import Column, Resource, resource
from hekla.api.volcano.topology import StrictCondition


class RateUnit(StrEnum):
    """What a token budget is counted over; a month has 30 days."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class StringMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Looks at text in one of three ways."""

    exact: str | None = None
    """The text is this."""

    prefix: str | None = None
    """The text begins with this."""

    regex: str | None = None
    """This expression of Go's regexp is found somewhere in the text."""


class BodyMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Looks at the body."""

    model: str | None = None
    """The model or adapter that the request names."""


class ModelMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """All of these must hold; nothing said always holds."""

    headers: dict[str, StringMatch] = {}
    """Headers by name."""

    uri: StringMatch | None = None
    """The path of the request."""

    body: BodyMatch | None = None
    """What the body says."""


ONE_TARGET = Limits(
    rules=(
        CelRule(
            rule=(
                '(has(self.modelServerName) && self.modelServerName != "") != '
                '(has(self.externalModelProviderName) && self.externalModelProviderName != "")'
            ),
            message="exactly one of modelServerName or externalModelProviderName must be set",
        ),
    )
)


class TargetModel(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where requests go: a ModelServer or an ExternalModelProvider of the same namespace."""

    model_server_name: str = ""
    """Name of a ModelServer."""

    external_model_provider_name: str = ""
    """Name of an ExternalModelProvider."""

    weight: Annotated[int | None, Limits(minimum=0, maximum=100, format="int32"), DEFAULTED] = 100
    """How much of the traffic goes there, in relation to the other targets."""


class Rule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Requests that match go to these targets."""

    name: str = ""
    """What people call the rule."""

    model_match: ModelMatch | None = None
    """Which requests match; absent: all."""

    target_models: Annotated[list[Annotated[TargetModel, ONE_TARGET]], Limits(min_items=1, max_items=16), REQUIRED] = []
    """Where they go."""


class RedisConfig(Struct, kw_only=True, frozen=True, rename="camel"):
    """A Redis or Valkey server."""

    address: Annotated[str, REQUIRED] = ""
    """`host:port`."""


class GlobalRateLimit(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where the budget is kept that all routers share."""

    redis: RedisConfig | None = None
    """The server."""


class RateLimit(Struct, kw_only=True, frozen=True, rename={
    "input_tokens_per_unit": "inputTokensPerUnit", "output_tokens_per_unit": "outputTokensPerUnit",
    "unit": "unit", "shared": "global",
}):  # fmt: skip
    """How many tokens requests for the route's model may ask."""

    input_tokens_per_unit: Annotated[int | None, Limits(minimum=1, format="int32")] = None
    """Tokens of prompts; no limit if absent."""

    output_tokens_per_unit: Annotated[int | None, Limits(minimum=1, format="int32")] = None
    """Tokens of answers; no limit if absent."""

    unit: Annotated[str, Limits(enum=tuple(RateUnit)), DEFAULTED, REQUIRED] = "second"
    """What they are counted over."""

    shared: GlobalRateLimit | None = None
    """Whether routers share the budget; absent: each has its own."""


IMMUTABLE_NAME = Limits(rules=(CelRule(rule="self == oldSelf", message="modelName is immutable"),))
SOME_NAME = Limits(
    rules=(
        CelRule(
            rule='(has(self.modelName) && self.modelName != "") || (has(self.loraAdapters) && size(self.loraAdapters) > 0)',
            message="ModelName and LoraAdapters cannot both be empty",
        ),
    )
)


class ModelRouteSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Names that clients use, and where requests for them go."""

    model_name: Annotated[str, IMMUTABLE_NAME] = ""
    """The model's name for clients."""

    lora_adapters: Annotated[list[str], Limits(max_items=10)] = []
    """Adapters that are asked for as if they were models."""

    parent_refs: list[ParentReference] = []
    """The Gateways that the route belongs to; absent: the default one."""

    rules: Annotated[list[Rule], Limits(max_items=16), REQUIRED] = []
    """In order; the first that matches counts."""

    rate_limit: RateLimit | None = None
    """How many tokens requests may ask."""


class ModelRouteStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What the router made of a route."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted, ResolvedRefs."""


@resource(
    "networking.serving.volcano.sh/v1alpha1",
    plural="modelroutes",
    has_status=True,
    columns=(
        Column(name="Model", json_path=".spec.modelName", description="The name that clients ask for"),
        Column(
            name="Accepted",
            json_path=".status.conditions[?(@.type=='Accepted')].status",
            description="Whether requests go by the route",
        ),
        Column(
            name="Resolved",
            json_path=".status.conditions[?(@.type=='ResolvedRefs')].status",
            description="Whether everything that it names is there",
        ),
        Column(
            name="Targets",
            json_path=".spec.rules[*].targetModels[*].modelServerName",
            description="The ModelServers that its rules name",
            priority=1,
        ),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class ModelRoute(Resource, kw_only=True, frozen=True, rename="camel"):
    """Which requests for a model go where."""

    spec: Annotated[ModelRouteSpec, SOME_NAME, REQUIRED] = field(default_factory=ModelRouteSpec)
    """Names and rules."""

    status: ModelRouteStatus = field(default_factory=ModelRouteStatus)
    """What the router made of it."""
