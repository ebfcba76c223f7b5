"""What `hekla run` can be told. A field is a flag, and its docstring the flag's help."""

from dataclasses import dataclass
from pathlib import Path

from hekla.workloads.ours import DEFAULT_SCHEDULER, USUAL, Ours

CONTROLLERS, SCHEDULER, WEBHOOKS, SERVING = "controllers", "scheduler", "webhooks", "serving"
COMPONENTS = (CONTROLLERS, SCHEDULER, WEBHOOKS, SERVING)
"""What can run by itself; `hekla run all` runs them in one process."""

DEFAULT_NAMESPACE = "hekla-system"
CONTROLLERS_LEASE = "vc-controller-manager"
"""Volcano's name, too: two of either kind in one namespace never act at the same time, so one can take over from the
other. The scheduler's lease is called like the scheduler, as Volcano's is (docs/adr/0016)."""


AGENTS = "agents"
"""Runs by itself, too (`agents_settings.py`): reconcilers behind a lease, and a gateway in every replica."""
AGENTS_LEASE = "agent-sandbox-controller"

NODE = "node"
"""Runs by itself, too (`node_settings.py`); no lease: every process has nodes of its own."""

ROUTER = "router"
"""Runs by itself, too, with settings of its own (`serving/router/settings.py`); no lease: every replica routes."""
SERVING_LEASE = "kthena.controller-manager"
"""Kthena's name, for the same reason."""


class StandaloneSettingsError(Exception):
    """A setting that cannot be; the sentence names it, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class StandaloneSettings:
    """Settings of one process."""

    components: tuple[str, ...]

    kubeconfig: str = ""
    """Path of a kubeconfig; in a pod its service account, else $KUBECONFIG or ~/.kube/config."""

    namespace: str = DEFAULT_NAMESPACE
    """Namespace of the leases, the scheduler's ConfigMap and the webhooks' Secret."""

    leader_elect: bool = True
    """Wait for a Lease before acting, so that several replicas may run."""

    metrics_address: str = "127.0.0.1:8080"
    """Where /metrics, /healthz and /readyz are answered; port 0 picks one."""

    webhook_address: str = "127.0.0.1:8443"
    """Where the webhooks are answered, over TLS."""

    answers_address: str = "127.0.0.1:0"
    """Where a scheduler answers the questions that API servers pass on (`hekla why`, `hekla snapshot`), over TLS; port 0
    picks one."""

    scheduler_conf: Path | None = None
    """Volcano's scheduler configuration file to decide by; the ConfigMap of the namespace goes before it."""

    scheduler_names: tuple[str, ...] = USUAL.schedulers
    """Pods that name this scheduler are placed, checked and given their groups; repeatable, `volcano` by default. A Job that
    names none gets the first. Tell scheduler, controllers and webhooks the same."""

    default_queue: str = USUAL.queue
    """Queue of jobs, plain gangs and lone pods that name none; the scheduler makes it."""

    every_pod_has_a_group: bool = True
    """Controllers give each plain pod of these schedulers a PodGroup, and schedulers wait for it, as Volcano's do (its
    controllers and schedulers may be the other half). Without it only gangs get one, and of a gang that no webhook marked
    as its pods were made, pods may start before the rest."""

    sharding_mode: str = "none"
    """Where several schedulers share a cluster by NodeShards: `hard` uses the nodes of this scheduler's shard alone, `soft`
    the others when none of these will do, `none` heeds no shards."""

    sharding_name: str = "volcano"
    """The NodeShard of this scheduler."""

    log_level: str = "info"
    """What is logged: debug, info, warning or error."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for flag, text in (
            ("--metrics-address", self.metrics_address),
            ("--webhook-address", self.webhook_address),
            ("--answers-address", self.answers_address),
        ):
            host_and_port(flag, text)
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise StandaloneSettingsError(f'--log-level is "{self.log_level}"; use debug, info, warning or error')
        if self.sharding_mode not in ("none", "soft", "hard"):
            sentence = f'--scheduler-sharding-mode is "{self.sharding_mode}"; use none, soft or hard'
            raise StandaloneSettingsError(sentence)
        if not self.namespace or not all(self.scheduler_names) or not self.scheduler_names:
            raise StandaloneSettingsError("--namespace and --scheduler-name must not be empty")
        if self.default_queue in ("", "root"):
            raise StandaloneSettingsError(f'--default-queue is "{self.default_queue}"; name a queue that takes work')

    @property
    def ours(self) -> Ours:
        """Which pods webhooks and controllers take for ours."""
        return Ours(self.scheduler_names, self.default_queue)

    @property
    def scheduler_lease(self) -> str:
        """The scheduler's lease; two with other names for pods do not exclude each other."""
        return lease_of(self.scheduler_names)


def lease_of(scheduler_names: tuple[str, ...]) -> str:
    """The lease by which a scheduler of these names leads."""
    return scheduler_names[0] if len(scheduler_names) == 1 else DEFAULT_SCHEDULER


def host_and_port(flag: str, text: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080` or `:8080` (every address) in two parts."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise StandaloneSettingsError(f'{flag} is "{text}"; write HOST:PORT, such as 127.0.0.1:8080 or 0.0.0.0:8080')
    return host.strip("[]") or "0.0.0.0", int(port)
