"""SandboxTemplate, SandboxWarmPool and SandboxClaim of extensions.agents.x-k8s.io: Sandboxes that wait, and who takes them.

Fields, defaults and limits are agent-sandbox's v1beta1 (commit 2fd412d).
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.agents.sandbox import PodMetadata, SandboxBlueprint, ShutdownPolicy, VolumeClaimTemplates
from hekla.api.fields import DEFAULTED, REQUIRED, Count, Limits, Time
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.volcano.topology import StrictCondition

API_VERSION = "extensions.agents.x-k8s.io/v1beta1"
_NETWORKING = "io.k8s.api.networking.v1"


class Injection(StrEnum):
    """What a claim may add to what its template says."""

    DISALLOWED = "Disallowed"
    ALLOWED = "Allowed"
    """New names only."""

    OVERRIDES = "Overrides"
    """New names, and other values for those that are there."""


class PolicyManagement(StrEnum):
    """Who keeps the network policy of a template's Sandboxes."""

    MANAGED = "Managed"
    UNMANAGED = "Unmanaged"


class SandboxNetworkPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who may reach the Sandboxes, and whom they may reach; what is not allowed is refused."""

    ingress: list[Annotated[Document, Limits(schema_of=f"{_NETWORKING}.NetworkPolicyIngressRule")]] = []
    """Rules for what comes in; empty: nothing does."""

    egress: list[Annotated[Document, Limits(schema_of=f"{_NETWORKING}.NetworkPolicyEgressRule")]] = []
    """Rules for what goes out; empty: nothing does."""


class SandboxTemplateSpec(SandboxBlueprint, kw_only=True, frozen=True, rename="camel"):
    """What Sandboxes are made from, and what claims may add."""

    network_policy: SandboxNetworkPolicy | None = None
    """The network policy; absent: in from the router only, out to the public Internet only."""

    network_policy_management: Annotated[str, Limits(enum=tuple(PolicyManagement)), DEFAULTED] = "Managed"
    """Unmanaged: no policy is made."""

    env_vars_injection_policy: Annotated[str, Limits(enum=tuple(Injection)), DEFAULTED] = "Disallowed"
    """Whether claims may add environment."""

    volume_claim_templates_policy: Annotated[str, Limits(enum=tuple(Injection)), DEFAULTED] = "Disallowed"
    """Whether claims may add volume claims."""


@resource(API_VERSION, plural="sandboxtemplates", short=("sandboxtemplate",))
class SandboxTemplate(Resource, kw_only=True, frozen=True, rename="camel"):
    """What Sandboxes are made from."""

    spec: Annotated[SandboxTemplateSpec, REQUIRED] = field(default_factory=SandboxTemplateSpec)
    """The blueprint, and what claims may add."""


class SandboxTemplateRef(Struct, kw_only=True, frozen=True, rename="camel"):
    """A SandboxTemplate of the same namespace."""

    name: Annotated[str, REQUIRED] = ""
    """Its name."""


class PoolUpdateStrategy(Struct, kw_only=True, frozen=True, rename="camel"):
    """What becomes of waiting Sandboxes when their template changes."""

    type: Annotated[str, Limits(enum=("Recreate", "OnReplenish")), DEFAULTED] = "OnReplenish"
    """Recreate: they are replaced at once. OnReplenish: they are used up first."""


class SandboxWarmPoolSpec(Struct, kw_only=True, frozen=True, rename={
    "replicas": "replicas", "template_ref": "sandboxTemplateRef", "update_strategy": "updateStrategy",
}):  # fmt: skip
    """How many Sandboxes wait, and of what template."""

    replicas: Annotated[Count | None, DEFAULTED] = 1
    """How many wait."""

    template_ref: Annotated[SandboxTemplateRef, REQUIRED] = field(default_factory=SandboxTemplateRef)
    """Their template."""

    update_strategy: PoolUpdateStrategy | None = None
    """What becomes of them when it changes."""


class SandboxWarmPoolStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a pool fares."""

    replicas: Count = 0
    """Sandboxes that wait or are about to."""

    ready_replicas: Count = 0
    """Those of them that can be claimed."""

    selector: str = ""
    """Finds them."""

    observed_generation: Annotated[int, Limits(format="int64", minimum=0)] = 0
    """The generation that was looked at."""


@resource(
    API_VERSION,
    plural="sandboxwarmpools",
    short=("swp",),
    has_status=True,
    label_selector_path=".status.selector",
    columns=(
        Column(name="Ready", json_path=".status.readyReplicas", type="integer"),
        Column(name="Desired", json_path=".spec.replicas", type="integer"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class SandboxWarmPool(Resource, kw_only=True, frozen=True, rename="camel"):
    """Sandboxes that wait to be claimed."""

    spec: Annotated[SandboxWarmPoolSpec, REQUIRED] = field(default_factory=SandboxWarmPoolSpec)
    """How many wait."""

    status: SandboxWarmPoolStatus = field(default_factory=SandboxWarmPoolStatus)
    """How it fares."""


class SandboxWarmPoolRef(Struct, kw_only=True, frozen=True, rename="camel"):
    """A SandboxWarmPool of the same namespace."""

    name: Annotated[str, REQUIRED] = ""
    """Its name."""


class ClaimLifecycle(Struct, kw_only=True, frozen=True, rename={
    "shutdown_time": "shutdownTime", "ttl_seconds_after_finished": "ttlSecondsAfterFinished",
    "shutdown_policy": "shutdownPolicy",
}):  # fmt: skip
    """When a claim ends, and what becomes of it then."""

    shutdown_time: Time = None
    """When its time is over."""

    ttl_seconds_after_finished: Count | None = None
    """How long it stays after its pod has ended."""

    shutdown_policy: Annotated[str, Limits(enum=tuple(ShutdownPolicy)), DEFAULTED] = "Retain"
    """What becomes of the claim; its Sandbox goes in any case."""


class ClaimEnvVar(Struct, kw_only=True, frozen=True, rename="camel"):
    """One variable of the environment."""

    name: Annotated[str, REQUIRED] = ""
    """Its name."""

    value: Annotated[str, REQUIRED] = ""
    """Its value."""

    container_name: str = ""
    """The container; the first one if absent."""


class SandboxClaimSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which pool a Sandbox is taken from, and what is added to it."""

    warm_pool_ref: Annotated[SandboxWarmPoolRef, REQUIRED] = field(default_factory=SandboxWarmPoolRef)
    """The pool."""

    lifecycle: ClaimLifecycle | None = None
    """When the claim ends."""

    additional_pod_metadata: PodMetadata = field(default_factory=PodMetadata)
    """Labels and annotations for the pod, as far as they are allowed."""

    env: Annotated[list[ClaimEnvVar], Limits(list_type="atomic")] = []
    """Environment, as far as the template allows it."""

    volume_claim_templates: VolumeClaimTemplates = []
    """Volume claims, as far as the template allows them; a Sandbox that waits has none, so one is made."""


class ClaimedSandbox(Struct, kw_only=True, frozen=True, rename={"name": "name", "pod_ips": "podIPs"}):
    """The Sandbox of a claim."""

    name: str = ""
    """Its name."""

    pod_ips: list[str] = []
    """Addresses of its pod."""


class SandboxClaimStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a claim fares."""

    conditions: list[StrictCondition] = []
    """Observations: Ready, Finished."""

    sandbox: ClaimedSandbox = field(default_factory=ClaimedSandbox)
    """Its Sandbox."""


@resource(
    API_VERSION,
    plural="sandboxclaims",
    short=("sandboxclaim",),
    has_status=True,
    columns=(
        Column(name="Ready", json_path=".status.conditions[?(@.type=='Ready')].status"),
        Column(name="Sandbox", json_path=".status.sandbox.name"),
        Column(name="Reason", json_path=".status.conditions[?(@.type=='Ready')].reason"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class SandboxClaim(Resource, kw_only=True, frozen=True, rename="camel"):
    """Takes a Sandbox out of a pool."""

    spec: Annotated[SandboxClaimSpec, REQUIRED] = field(default_factory=SandboxClaimSpec)
    """Which pool, and what is added."""

    status: SandboxClaimStatus = field(default_factory=SandboxClaimStatus)
    """How it fares."""
