"""ModelServer of networking.serving.volcano.sh: the engines that serve one model, and how they are spoken to.

`route.py` says which requests go to it; `hekla.serving.router` reads both.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Count, Duration, Int32, Limits
from hekla.api.meta import Column, Resource, resource
from hekla.api.volcano.topology import StrictCondition


class Engine(StrEnum):
    """The inference engines whose metrics and protocols are known."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


class Connector(StrEnum):
    """How a prefill engine hands its cache to a decode engine."""

    HTTP = "http"
    LMCACHE = "lmcache"
    NIXL = "nixl"
    MOONCAKE = "mooncake"


class SessionSource(StrEnum):
    """Where a request may name its session."""

    HEADER = "Header"
    QUERY = "Query"
    COOKIE = "Cookie"
    JWT_CLAIM = "JWTClaim"


class PdGroup(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which of the pods prefill, which decode, and which of them belong together."""

    group_key: Annotated[str, REQUIRED] = ""
    """The label whose value pairs prefill pods with decode pods."""

    prefill_labels: Annotated[dict[str, str], REQUIRED] = {}
    """Labels of the pods that prefill, besides `matchLabels`."""

    decode_labels: Annotated[dict[str, str], REQUIRED] = {}
    """Labels of the pods that decode, besides `matchLabels`."""


class WorkloadSelector(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pods that serve, all in the ModelServer's namespace."""

    match_labels: dict[str, str] = {}
    """Labels that every pod has."""

    pd_group: PdGroup | None = None
    """How prefill and decode pods are told apart; absent: every pod does both."""


class WorkloadPort(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where an engine listens."""

    port: Annotated[int, Limits(minimum=1, maximum=65535, format="int32"), REQUIRED] = 0
    """TCP port of the engine."""

    protocol: Annotated[str, Limits(enum=("http", "https")), DEFAULTED] = "http"
    """How the engine is spoken to; `https` checks no certificate's name, as pods are dialled by address."""


class Retry(Struct, kw_only=True, frozen=True, rename="camel"):
    """How often another engine is asked, before the first byte of an answer."""

    attempts: Int32 = 0
    """How many more engines may be asked after the first; 0: as many as there are, five at most."""

    retry_interval: Annotated[Duration | None, DEFAULTED] = "100ms"
    """How long to wait between two attempts; 0: not at all."""


class SessionKeySource(Struct, kw_only=True, frozen=True, rename="camel"):
    """One place to look for a session's name."""

    type: Annotated[str, Limits(enum=tuple(SessionSource)), REQUIRED] = ""
    """Where to look."""

    name: Annotated[str, Limits(min_length=1), REQUIRED] = ""
    """Name of the header, the query parameter, the cookie or the claim."""


class SessionSticky(Struct, kw_only=True, frozen=True, rename="camel"):
    """Requests of one session go to one engine while it can be chosen."""

    session_affinity_seconds: Annotated[int | None, Limits(minimum=1, format="int32")] = None
    """How long a session stays bound after its last request; 300 if absent."""

    sources: Annotated[list[SessionKeySource], Limits(max_items=16)] = []
    """Where to look for the session's name; the first value that is not empty counts."""


class ConnectionPool(Struct, kw_only=True, frozen=True, rename="camel"):
    """Bounds of the connections that the router keeps to the engines."""

    max_idle_connections: Count | None = None
    """How many connections may lie idle; no engine keeps more than this."""

    max_idle_connections_per_host: Count | None = None
    """How many connections to one engine may lie idle; the router's own bound if absent."""

    max_connections_per_host: Count | None = None
    """How many connections one engine may have at all; 0, as if absent: the router's own bound."""

    idle_timeout: Duration | None = None
    """How long a connection may lie idle; the router's own bound if absent."""


class TrafficPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How engines are spoken to."""

    timeout: Duration | None = None
    """How long to wait for the head of an answer; for ever if absent."""

    retry: Retry | None = None
    """How often another engine is asked."""

    session_sticky: SessionSticky | None = None
    """Whether sessions stay with their engine."""

    connection_pool: ConnectionPool | None = None
    """Bounds of the connections that are kept."""


class KvConnector(Struct, kw_only=True, frozen=True, rename="camel"):
    """How prefill hands over to decode."""

    type: Annotated[str, Limits(enum=tuple(Connector)), DEFAULTED] = "http"
    """The engines' connector."""


class ModelServerSpec(Struct, kw_only=True, frozen=True, rename={
    "model": "model", "inference_engine": "inferenceEngine", "workload_selector": "workloadSelector",
    "workload_port": "workloadPort", "traffic_policy": "trafficPolicy", "kv_connector": "kvConnector",
}):  # fmt: skip
    """Which engines serve, under which name, and how they are spoken to."""

    model: Annotated[str | None, Limits(max_length=256)] = None
    """The model's name inside the engine; requests are rewritten to it, unless they name an adapter."""

    inference_engine: Annotated[str, Limits(enum=tuple(Engine)), REQUIRED] = ""
    """The engine: its metrics and protocols."""

    workload_selector: Annotated[WorkloadSelector, REQUIRED] = field(default_factory=WorkloadSelector)
    """The pods."""

    workload_port: Annotated[WorkloadPort, REQUIRED] = field(default_factory=WorkloadPort)
    """Where they listen."""

    traffic_policy: TrafficPolicy | None = None
    """How they are spoken to."""

    kv_connector: KvConnector | None = None
    """How prefill hands over to decode."""


class ModelServerStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What the router found."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""

    matched_replicas: Count = 0
    """Pods that the selector finds."""

    ready_replicas: Count = 0
    """Those of them that take requests."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Ready."""


@resource(
    "networking.serving.volcano.sh/v1alpha1",
    plural="modelservers",
    has_status=True,
    columns=(
        Column(
            name="Engine",
            json_path=".spec.inferenceEngine",
            description="Inference engine used to serve the model",
        ),
        Column(name="Port", json_path=".spec.workloadPort.port", type="integer", description="Model server port"),
        Column(name="Protocol", json_path=".spec.workloadPort.protocol", description="Model server protocol"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class ModelServer(Resource, kw_only=True, frozen=True, rename="camel"):
    """The engines that serve one model."""

    spec: ModelServerSpec = field(default_factory=ModelServerSpec)
    """Which engines, and how they are spoken to."""

    status: ModelServerStatus = field(default_factory=ModelServerStatus)
    """What the router found."""
