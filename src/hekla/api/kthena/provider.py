"""ExternalModelProvider of networking.serving.volcano.sh: a model that somebody else serves, such as OpenAI or Anthropic.

`hekla.serving.router.providers` speaks to it.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Limits, Rule
from hekla.api.meta import Column, Resource, resource
from hekla.api.scalars import wire_names
from hekla.api.volcano.topology import StrictCondition


class ProviderType(StrEnum):
    """The protocols that a provider may speak."""

    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"


class AuthScheme(StrEnum):
    """How a credential is sent."""

    BEARER = "Bearer"
    API_KEY = "APIKey"


class SecretKey(Struct, kw_only=True, frozen=True, rename="camel"):
    """One key of a Secret."""

    name: str = ""
    """Name of the Secret."""

    key: Annotated[str, REQUIRED] = ""
    """Key within it."""

    optional: bool | None = None
    """Whether it may be absent; a provider's may not."""


MUST_EXIST = Limits(
    rules=(
        Rule(
            rule="!has(self.secretRef.optional) || !self.secretRef.optional",
            message="secretRef.optional must be false or unset",
        ),
    )
)


class ProviderAuth(Struct, kw_only=True, frozen=True, rename="camel"):
    """The credential and how it is sent."""

    scheme: Annotated[str, Limits(enum=tuple(AuthScheme))] = ""
    """Bearer sends `Authorization`, APIKey sends `x-api-key`; absent: Bearer for OpenAI, APIKey for Anthropic."""

    secret_ref: Annotated[SecretKey, Limits(map_type="atomic"), REQUIRED] = field(default_factory=SecretKey)
    """Where the credential is, in the same namespace."""


class ExternalModelProviderSpec(
    Struct, kw_only=True, frozen=True, rename=wire_names(base_url="baseURL", insecure_skip_verify="insecureSkipVerify")
):
    """Where the provider is, what it speaks, and how it knows us."""

    provider_type: Annotated[str, Limits(enum=tuple(ProviderType)), DEFAULTED] = "OpenAI"
    """The protocol that it speaks."""

    model: Annotated[str | None, Limits(max_length=256)] = None
    """The model's name there; requests are rewritten to it."""

    base_url: Annotated[str, Limits(min_length=1, pattern="^https://.+"), REQUIRED] = ""
    """Root of its addresses, such as https://api.openai.com."""

    insecure_skip_verify: Annotated[bool, DEFAULTED] = False
    """Whether its certificate is taken without a check."""

    auth: Annotated[ProviderAuth | None, MUST_EXIST] = None
    """The credential; absent: none."""

    headers: dict[str, str] = {}
    """Headers that are added to every request; nothing secret."""


class ExternalModelProviderStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """Whether requests can be sent."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Ready, CredentialsResolved."""


@resource(
    "networking.serving.volcano.sh/v1alpha1",
    plural="externalmodelproviders",
    has_status=True,
    columns=(
        Column(name="Type", json_path=".spec.providerType", description="What it speaks"),
        Column(name="URL", json_path=".spec.baseURL", description="Where it is"),
        Column(
            name="Ready",
            json_path=".status.conditions[?(@.type=='Ready')].status",
            description="Whether requests can be sent",
        ),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class ExternalModelProvider(Resource, kw_only=True, frozen=True, rename="camel"):
    """A model that somebody else serves."""

    spec: ExternalModelProviderSpec = field(default_factory=ExternalModelProviderSpec)
    """Where it is and what it speaks."""

    status: ExternalModelProviderStatus = field(default_factory=ExternalModelProviderStatus)
    """Whether requests can be sent."""
