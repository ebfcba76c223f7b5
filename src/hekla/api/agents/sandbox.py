"""Sandbox of agents.x-k8s.io: one pod with a stable name and volumes, that can be suspended, resumed and shut down.

Fields, defaults and limits are agent-sandbox's v1beta1 (commit 2fd412d). `extensions.py` has what makes Sandboxes by the number.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import DEFAULTED, REQUIRED, Limits, Rule, Time
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.volcano.topology import StrictCondition

API_VERSION = "agents.x-k8s.io/v1beta1"
_CORE = "io.k8s.api.core.v1"
_FIXED_CLAIMS = Limits(
    rules=(
        Rule(
            rule="has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && "
            "(!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",
            message="volumeClaimTemplates is immutable",
        ),
    )
)


class OperatingMode(StrEnum):
    """Whether a Sandbox is to have a pod."""

    RUNNING = "Running"
    SUSPENDED = "Suspended"


class ShutdownPolicy(StrEnum):
    """What becomes of an object whose time is over."""

    DELETE = "Delete"
    DELETE_FOREGROUND = "DeleteForeground"
    """Of claims only: the object stays until its Sandbox and pod are gone."""

    RETAIN = "Retain"


class PodMetadata(Struct, kw_only=True, frozen=True, rename="camel"):
    """What of a pod's metadata a template may say."""

    labels: dict[str, str] = {}
    """Labels of the pod."""

    annotations: dict[str, str] = {}
    """Annotations of the pod."""


class SandboxPodTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pod of a Sandbox."""

    spec: Annotated[Document, Limits(schema_of=f"{_CORE}.PodSpec"), REQUIRED] = {}
    """The pod."""

    metadata: PodMetadata = field(default_factory=PodMetadata)
    """Its labels and annotations."""


class ClaimMetadata(Struct, kw_only=True, frozen=True, rename="camel"):
    """What of a volume claim's metadata a template may say."""

    name: str = ""
    """The volume's name in the pod; the claim is named after it and the Sandbox."""

    labels: dict[str, str] = {}
    """Labels of the claim."""

    annotations: dict[str, str] = {}
    """Annotations of the claim."""


class VolumeClaimTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """A volume claim of each Sandbox."""

    metadata: ClaimMetadata = field(default_factory=ClaimMetadata)
    """Its name, labels and annotations."""

    spec: Annotated[Document, Limits(schema_of=f"{_CORE}.PersistentVolumeClaimSpec"), REQUIRED] = {}
    """The claim."""


VolumeClaimTemplates = Annotated[list[VolumeClaimTemplate], Limits(list_type="atomic")]


class SandboxBlueprint(Struct, kw_only=True, frozen=True, rename="camel"):
    """What Sandboxes and their templates say in the same words."""

    pod_template: Annotated[SandboxPodTemplate, REQUIRED] = field(default_factory=SandboxPodTemplate)
    """The pod."""

    volume_claim_templates: VolumeClaimTemplates = []
    """Volume claims that are made with the pod, and stay when it is suspended."""

    service: bool | None = None
    """Whether there is a headless Service; absent: one that is there stays, none is made."""


class SandboxSpec(SandboxBlueprint, kw_only=True, frozen=True, rename="camel"):
    """One sandbox, and how long it is to live."""

    shutdown_time: Time = None
    """When its time is over; absent: never."""

    shutdown_policy: Annotated[str | None, Limits(enum=("Delete", "Retain")), DEFAULTED] = "Retain"
    """What becomes of the object then; pod and Service go in any case."""

    operating_mode: Annotated[str, Limits(enum=tuple(OperatingMode)), DEFAULTED] = "Running"
    """Suspended: no pod, while object, volumes and Service stay."""


class SandboxStatus(Struct, kw_only=True, frozen=True, rename={
    "service_fqdn": "serviceFQDN", "service": "service", "conditions": "conditions", "selector": "selector",
    "pod_ips": "podIPs", "node_name": "nodeName",
}):  # fmt: skip
    """How a Sandbox fares."""

    service_fqdn: str = ""
    """The Service's name in DNS."""

    service: str = ""
    """The Service."""

    conditions: list[StrictCondition] = []
    """Observations: Ready, Suspended, PodScheduled, Finished."""

    selector: str = ""
    """Finds the pod."""

    pod_ips: list[str] = []
    """Addresses of the pod, while there is one."""

    node_name: str = ""
    """The pod's node, while there is one."""


@resource(
    API_VERSION,
    plural="sandboxes",
    short=("sandbox",),
    has_status=True,
    columns=(
        Column(name="Ready", json_path=".status.conditions[?(@.type=='Ready')].status"),
        Column(name="Reason", json_path=".status.conditions[?(@.type=='Ready')].reason"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class Sandbox(Resource, kw_only=True, frozen=True, rename="camel"):
    """One isolated place to run code."""

    spec: Annotated[SandboxSpec, REQUIRED, _FIXED_CLAIMS] = field(default_factory=SandboxSpec)
    """The sandbox."""

    status: SandboxStatus = field(default_factory=SandboxStatus)
    """How it fares."""
