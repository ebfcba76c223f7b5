"""AgentRuntime and CodeInterpreter of runtime.agentcube.volcano.sh: what a session of theirs starts, and how long it lives.

Fields, defaults and limits are AgentCube's (CRDs of commit 939abb5), so its manifests apply unchanged.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Duration, Int32, Limits
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.volcano.topology import StrictCondition

API_VERSION = "runtime.agentcube.volcano.sh/v1alpha1"
_CORE = "io.k8s.api.core.v1"
_AGE = (Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),)


class PortProtocol(StrEnum):
    """How a port is spoken to."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"


class AuthMode(StrEnum):
    """Who checks requests inside a sandbox."""

    PICOD = "picod"
    """The daemon, by a key that it is given."""

    NONE = "none"
    """Nobody: an image with a server of its own."""


class TargetPort(Struct, kw_only=True, frozen=True, rename="camel"):
    """A port that a runtime offers, and the paths that lead to it."""

    path_prefix: str = ""
    """Requests whose path begins with it go to this port; the longest prefix counts, by whole segments."""

    name: str = ""
    """Name of the port."""

    port: Annotated[int, Limits(format="int32"), REQUIRED] = 0
    """The port."""

    protocol: Annotated[str, Limits(enum=tuple(PortProtocol)), DEFAULTED, REQUIRED] = "HTTP"
    """HTTP or HTTPS."""


class AgentPodTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pod of an agent."""

    labels: dict[str, str] = {}
    """Labels of the pod."""

    annotations: dict[str, str] = {}
    """Annotations of the pod."""

    spec: Annotated[Document, Limits(schema_of=f"{_CORE}.PodSpec"), REQUIRED] = {}
    """The pod."""


class AgentRuntimeSpec(Struct, kw_only=True, frozen=True, rename={
    "target_ports": "targetPort", "pod_template": "podTemplate", "session_timeout": "sessionTimeout",
    "max_session_duration": "maxSessionDuration",
}):  # fmt: skip
    """What a session of an agent starts."""

    target_ports: Annotated[list[TargetPort], REQUIRED] = []
    """The agent's ports."""

    pod_template: Annotated[AgentPodTemplate, REQUIRED] = field(default_factory=AgentPodTemplate)
    """The agent's pod."""

    session_timeout: Annotated[Duration, DEFAULTED, REQUIRED] = "15m"
    """How long a session may be idle."""

    max_session_duration: Annotated[Duration, DEFAULTED, REQUIRED] = "8h"
    """How long a session may live at all."""


class AgentRuntimeStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How an agent fares."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted."""


@resource(API_VERSION, plural="agentruntimes", has_status=True, columns=_AGE)
class AgentRuntime(Resource, kw_only=True, frozen=True, rename="camel"):
    """An agent: a pod per session, with a server of its own."""

    spec: Annotated[AgentRuntimeSpec, REQUIRED] = field(default_factory=AgentRuntimeSpec)
    """What a session starts."""

    status: AgentRuntimeStatus = field(default_factory=AgentRuntimeStatus)
    """How it fares."""


class PullSecret(Struct, kw_only=True, frozen=True, rename="camel"):
    """A secret to pull images with."""

    name: Annotated[str, DEFAULTED] = ""
    """Its name."""


class InterpreterTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pod of a code interpreter."""

    labels: dict[str, str] = {}
    """Labels of the pod."""

    annotations: dict[str, str] = {}
    """Annotations of the pod."""

    runtime_class_name: str | None = None
    """The runtime; empty is as if absent: `sandbox`."""

    image: str = ""
    """The image; absent: the interpreter that the node brings."""

    image_pull_policy: str = ""
    """When the image is pulled."""

    image_pull_secrets: Annotated[
        list[Annotated[PullSecret, Limits(map_type="atomic")]], Limits(list_type="map", list_keys=("name",))
    ] = []
    """Secrets to pull it with."""

    environment: list[Annotated[Document, Limits(schema_of=f"{_CORE}.EnvVar")]] = []
    """Environment inside."""

    command: Annotated[list[str], Limits(list_type="atomic")] = []
    """The command; the image's if absent."""

    args: Annotated[list[str], Limits(list_type="atomic")] = []
    """Its arguments."""

    resources: Annotated[Document, Limits(schema_of=f"{_CORE}.ResourceRequirements")] = {}
    """What it needs and may use."""


class CodeInterpreterSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a session of an interpreter starts."""

    ports: list[TargetPort] = []
    """Its ports; absent: 8080, where the daemon answers."""

    template: Annotated[InterpreterTemplate, REQUIRED] = field(default_factory=InterpreterTemplate)
    """Its pod."""

    session_timeout: Annotated[Duration, DEFAULTED] = "15m"
    """How long a session may be idle."""

    max_session_duration: Annotated[Duration, DEFAULTED] = "8h"
    """How long a session may live at all."""

    warm_pool_size: Int32 | None = None
    """How many sandboxes wait for a session; absent or 0: none."""

    auth_mode: Annotated[str, Limits(enum=tuple(AuthMode)), DEFAULTED] = "picod"
    """Who checks requests inside."""


class CodeInterpreterStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How an interpreter fares."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Ready."""

    ready: bool = False
    """Whether sessions can be asked for."""


@resource(API_VERSION, plural="codeinterpreters", has_status=True, columns=_AGE)
class CodeInterpreter(Resource, kw_only=True, frozen=True, rename="camel"):
    """A place to run code that a model wrote: a sandbox per session."""

    spec: Annotated[CodeInterpreterSpec, REQUIRED] = field(default_factory=CodeInterpreterSpec)
    """What a session starts."""

    status: CodeInterpreterStatus = field(default_factory=CodeInterpreterStatus)
    """How it fares."""
