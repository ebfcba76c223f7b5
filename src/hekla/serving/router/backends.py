"""What stands behind a target: a ModelServer's or an InferencePool's engines, as the objects describe them.

A backend lives as long as its object; its pools keep what was learned while pods come and go. `world.py` fills them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from hekla.api.core import Pod
from hekla.api.foreign import InferencePool
from hekla.api.kthena import ModelServer, labels
from hekla.api.kthena.server import ConnectionPool, Engine, PdGroup, Retry, SessionSticky
from hekla.dialects.timestamps import seconds as seconds_of
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.serving.router.annotations import (
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    MOONCAKE_BOOTSTRAP,
    MOST_PORT,
    RANKS,
    SKIP_PREFILL,
    TOKENIZER,
    TOPOLOGY_KEY,
    number_of,
    text_of,
)
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.local_plan import MOST_ATTEMPTS
from hekla.serving.router.pool import Pool
from hekla.serving.router.proxy.bounds import Bounds

MakePool = Callable[[str], Pool]
"""A pool of this name, with the policy that is configured."""

RANK_HEADER = b"X-data-parallel-rank"
"""What vLLM and SGLang take a rank's number in, for chats and completions."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What an object says of its engines, read once."""

    key: str
    backend_type: str
    """In the words of the metrics: model_server or inference_pool."""
    match_labels: Mapping[str, str]
    ports: tuple[int, ...]
    model: str = ""
    """The name inside the engine; empty: as asked for."""
    engine: str = Engine.VLLM
    is_tls: bool = False
    head_timeout_s: float = 0.0
    most_attempts: int = MOST_ATTEMPTS
    retry_s: float = 0.0
    """Between two attempts; Kthena's field, which its router does not read."""
    pd: PdGroup | None = None
    connector: str = "http"
    topology_key: str = ""
    skip_below_tokens: int = 0
    bootstrap_port: int = 0
    events_port: int = 0
    replay_port: int = 0
    ranks: int = 0
    tokenizer: str = ""
    sticky: SessionSticky | None = None
    connections: ConnectionPool | None = None

    @property
    def books(self) -> str:
        """What it is called where ModelServers and InferencePools are kept together: one of each may have a name."""
        return self.key if self.backend_type == "model_server" else f"{self.key}/inference-pool"


@dataclass(slots=True, eq=False)
class Backend:
    """The engines behind one target; without a PD group, `decode` has all of them and `prefill` none."""

    traits: Traits
    decode: Pool
    prefill: Pool
    matched: set[str] = field(default_factory=set)
    """Pods that the selector finds, ready or not, as `namespace/name`."""
    unplaced: set[str] = field(default_factory=set)
    """Those of them that the scheduler has no room for yet."""
    joined: dict[str, list[tuple[Pool, Endpoint]]] = field(default_factory=dict)
    """What each ready pod brought."""

    @property
    def is_empty(self) -> bool:
        """Whether no request can be answered, as engines of some role are missing."""
        return not self.decode.members or (self.traits.pd is not None and not self.prefill.members)

    @property
    def name(self) -> str:
        """Of the object, without its namespace."""
        return self.traits.key.partition("/")[2]


def traits_of_server(server: ModelServer) -> Traits:
    """What a ModelServer says."""
    spec, annotations = server.spec, server.metadata.annotations
    policy = spec.traffic_policy
    connector = spec.kv_connector.type if spec.kv_connector else ""
    return Traits(
        key=f"{server.metadata.namespace}/{server.metadata.name}",
        backend_type="model_server",
        match_labels=spec.workload_selector.match_labels,
        ports=(spec.workload_port.port,),
        model=spec.model or "",
        engine=spec.inference_engine,
        is_tls=spec.workload_port.protocol == "https",
        head_timeout_s=seconds(policy.timeout if policy else None),
        most_attempts=_attempts(policy.retry if policy else None),
        retry_s=seconds(policy.retry.retry_interval) if policy and policy.retry else 0.0,
        pd=spec.workload_selector.pd_group,
        connector=connector or ("sglang" if spec.inference_engine == Engine.SGLANG else "http"),
        topology_key=text_of(annotations, TOPOLOGY_KEY),
        skip_below_tokens=number_of(annotations, SKIP_PREFILL),
        bootstrap_port=number_of(annotations, MOONCAKE_BOOTSTRAP),
        events_port=number_of(annotations, KV_EVENTS_PORT),
        replay_port=number_of(annotations, KV_REPLAY_PORT),
        ranks=number_of(annotations, RANKS),
        tokenizer=text_of(annotations, TOKENIZER),
        sticky=policy.session_sticky if policy else None,
        connections=policy.connection_pool if policy else None,
    )


def traits_of_pool(pool: InferencePool) -> Traits:
    """What an InferencePool says; every port of a pod is an engine of its own."""
    return Traits(
        key=f"{pool.metadata.namespace}/{pool.metadata.name}",
        backend_type="inference_pool",
        match_labels=pool.spec.selector.match_labels,
        ports=tuple(one.number for one in pool.spec.target_ports),
    )


def bounded_by(bounds: Bounds, said: ConnectionPool) -> Bounds:
    """The router's bounds of connections to one engine, with what a ModelServer says in their place."""
    idle = [one for one in (said.max_idle_connections, said.max_idle_connections_per_host) if one is not None]
    return replace(
        bounds,
        engine_idle_connections=min(idle, default=bounds.engine_idle_connections),
        engine_connections=said.max_connections_per_host or bounds.engine_connections,
        engine_idle_s=seconds(said.idle_timeout) or bounds.engine_idle_s,
    )


def seconds(text: str | None) -> float:
    """A duration of the API; 0 for none, or one that cannot be read."""
    try:
        return parse_duration(text).total_seconds() if text else 0.0
    except DurationError:
        return 0.0


def _attempts(retry: Retry | None) -> int:
    """How many engines may be asked, the first one included."""
    return min(MOST_ATTEMPTS, retry.attempts + 1) if retry is not None and retry.attempts > 0 else MOST_ATTEMPTS


def is_ready(pod: Pod) -> bool:
    """Whether a pod takes requests: running, ready, reachable, and not on its way out."""
    status = pod.status
    return (
        status.phase == "Running"
        and bool(status.pod_ip)
        and pod.metadata.deletion_timestamp is None
        and any(one.type == "Ready" and one.status == "True" for one in status.conditions)
    )


def selects(wanted: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether all the wanted labels are there; nothing wanted selects nothing."""
    return bool(wanted) and all(given.get(key) == value for key, value in wanted.items())


def endpoints_of(pod: Pod, backend: Backend) -> list[tuple[Pool, Endpoint]]:
    """The engines that a ready pod brings to a backend, each with the pool that it joins."""
    traits = backend.traits
    pool, role = backend.decode, ""
    if traits.pd is not None:
        role = _role(pod, traits.pd)
        if not role:
            return []
        pool = backend.prefill if role == "prefill" else backend.decode
    return [(pool, one) for port in traits.ports for one in _ranks(pod, traits, _endpoint(pod, traits, port, role))]


def _ranks(pod: Pod, traits: Traits, whole: Endpoint) -> Iterator[Endpoint]:
    """An engine, or where it has several data-parallel ranks each of these as one: with a cache and a queue of its own.

    Of a pair of SGLang the room decides the rank, so there an engine stays one.
    """
    count = number_of(pod.metadata.annotations, RANKS) or traits.ranks
    if count < 2 or (traits.pd is not None and traits.connector == "sglang"):
        yield whole
        return
    for rank in range(count):
        yield replace(
            whole,
            name=f"{whole.name}@{rank}" if rank else whole.name,
            rank=rank,
            headers=((RANK_HEADER, b"%d" % rank),),
            events_port=_of_rank(whole.events_port, rank),
            replay_port=_of_rank(whole.replay_port, rank),
        )


def _of_rank(port: int, rank: int) -> int:
    return port + rank if 0 < port <= MOST_PORT - rank else 0


def _role(pod: Pod, pd: PdGroup) -> str:
    own = pod.metadata.labels
    if pd.group_key not in own:
        return ""
    return "prefill" if selects(pd.prefill_labels, own) else "decode" if selects(pd.decode_labels, own) else ""


def _endpoint(pod: Pod, traits: Traits, port: int, role: str) -> Endpoint:
    meta = pod.metadata
    containers = pod.status.container_statuses
    restarts = sum(one.restart_count for one in containers)
    began = [seconds_of(one.state.running.started_at) for one in containers if one.state and one.state.running]
    return Endpoint(
        name=meta.name if port == traits.ports[0] else f"{meta.name}:{port}",
        host=pod.status.pod_ip,
        port=port,
        is_tls=traits.is_tls,
        namespace=meta.namespace,
        role=role,
        group=meta.labels.get(traits.pd.group_key, "") if traits.pd else "",
        domain=meta.labels.get(traits.topology_key, "") if traits.topology_key else "",
        revision=meta.labels.get(labels.REVISION, ""),
        incarnation=f"{meta.uid}/{restarts}",
        started_s=max(began, default=0.0),
        events_port=number_of(meta.annotations, KV_EVENTS_PORT) or traits.events_port,
        replay_port=number_of(meta.annotations, KV_REPLAY_PORT) or traits.replay_port,
    )
