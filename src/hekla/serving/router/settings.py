"""What a router can be told, by flags and, as Kthena's deployments do, by the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hekla.edge.shared_buckets import place_of
from hekla.serving.router.fair_queue import Fairness, read_fairness
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.session_boost import SessionBoost, read_session_boost
from hekla.serving.router.trace_settings import TraceSettings, read_traces
from hekla.serving.router.variables import Reader, VariableError

CONFIGURATION_FILE = "/etc/config/routerConfiguration.yaml"
"""Where Kthena's chart mounts it; read when it exists."""


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Settings of one router."""

    host: str = "0.0.0.0"
    """Address to listen on."""

    port: int = 8080
    """Port for clients; 0 picks one."""

    tls_cert: str = ""
    """Certificate chain (PEM); with --tls-key clients must speak HTTPS."""

    tls_key: str = ""
    """Its key (PEM)."""

    namespace: str = ""
    """Serve the objects of one namespace; empty: of all."""

    with_gateways: bool = False
    """Follow Gateway, HTTPRoute and InferencePool too."""

    own_namespace: str = "default"
    """Where the router runs; its Gateway `default` is made there."""

    metrics_host: str = "0.0.0.0"
    """Address of /metrics."""

    metrics_port: int = 9090
    """Port of /metrics; 0 picks one, -1 is none."""

    expose_metrics_on_router_port: bool = False
    """Answer /metrics to clients, too."""

    debug_port: int = 15000
    """Port of /debug on 127.0.0.1; 0 picks one, -1 is none."""

    configuration_file: str = CONFIGURATION_FILE
    """Kthena's routerConfiguration.yaml, read again when it changes; missing: the default policy."""

    api_keys_file: str = ""
    """A file of lines USER: KEY, read again when it changes; who asks needs one of the keys."""

    engine_ca_file: str = ""
    """Certificate authority of engines that speak HTTPS; without it their certificates are not checked."""

    tokenizer: str = ""
    """Who turns text into token ids where KV events are followed and a ModelServer does not say: engine, or a tokenizer.json."""

    shares_port: bool = False
    """Let several router processes listen on the same port, one for each core."""

    replicas_directory: str = ""
    """Directory of sockets by which router processes of one host tell one another what they sent where."""

    processes: int = 1
    """Processes that are this router together: one for each core it may use. They share port, budgets and knowledge."""

    compiled_choosing: bool = True
    """Choose engines in machine code after a thousand prompts: the same choices, sooner. It takes numba, and 55 MB."""

    fast_lane: bool = True
    """Move the bytes of plain requests in machine code, too, once engines are chosen in it: the same answers, sooner."""

    family: str = ""
    """Of the processes of one router the name that they have in common; given by the one that starts them."""

    siblings: int = 1
    """How many processes of one router there are, this one included; given likewise."""

    scrape_interval_s: float = 1.0
    drain_timeout_s: float = 300.0
    access_log_enabled: bool = True
    access_log_format: str = "text"
    access_log_output: str = "stdout"
    redis: str = ""
    """HOST:PORT of the Redis by which replicas on several hosts tell one another."""
    redis_password: str = ""
    traces: TraceSettings | None = None
    """Where traces go, and which; None: there are none."""
    fairness: Fairness | None = None
    session_boost: SessionBoost | None = None
    bounds: Bounds = field(default_factory=Bounds)


def part_of_bounds(bounds: Bounds, siblings: int) -> Bounds:
    """What one of so many processes may take, so that all together take what one would; a whole body always fits."""
    if siblings <= 1:
        return bounds
    return replace(
        bounds,
        connections=max(1, bounds.connections // siblings),
        bodies_bytes=max(bounds.body_bytes, bounds.bodies_bytes // siblings),
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """The fields that the environment says; raises VariableError."""
    read = Reader(environment)
    found: dict[str, object] = {
        "scrape_interval_s": read.seconds("METRICS_SCRAPE_INTERVAL", 1.0, least=0.05),
        "drain_timeout_s": read.seconds("DRAIN_TIMEOUT", 300.0),
        "access_log_enabled": read.flag("ACCESS_LOG_ENABLED", default=True),
        "access_log_format": read.text("ACCESS_LOG_FORMAT", "text"),
        "access_log_output": read.text("ACCESS_LOG_OUTPUT", "stdout"),
        "redis_password": read.text("REDIS_PASSWORD", ""),
        "traces": read_traces(environment),
        "own_namespace": read.text("POD_NAMESPACE", "default"),
    }
    if found["access_log_format"] not in ("text", "json"):
        raise VariableError(f'ACCESS_LOG_FORMAT "{found["access_log_format"]}" must be "text" or "json"')
    if host := read.text("REDIS_HOST", ""):
        found["redis"] = f"{host}:{int(read.number('REDIS_PORT', 6379, least=1, most=65_535))}"
        if place_of(str(found["redis"])) is None:
            raise VariableError(f'REDIS_HOST "{host}" must be a host, such as redis.cache.svc; its port is REDIS_PORT')
    is_fair, is_boosting = read.flag("ENABLE_FAIRNESS_SCHEDULING"), read.flag("ENABLE_SESSION_BOOST")
    if is_fair and is_boosting:
        raise VariableError("ENABLE_FAIRNESS_SCHEDULING and ENABLE_SESSION_BOOST exclude each other; switch one off")
    if is_fair:
        found["fairness"] = read_fairness(environment)
    if is_boosting:
        found["session_boost"] = read_session_boost(environment)
    return found
