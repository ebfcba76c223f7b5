"""When somebody should look, what that means, and what to do then: one row for each alert.

An expression holds where and only where something is wrong for users; what is merely busy is on the dashboards. Thresholds are for
clusters of any size: parts, ages and seconds, never counts of pods.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whom an alert calls."""

    CRITICAL = "critical"
    """Somebody, now."""

    WARNING = "warning"
    """Somebody, today."""

    INFO = "info"
    """Nobody; it is there when they look."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One rule."""

    name: str
    expr: str
    """In PromQL; holds while something is wrong."""

    lasts: str
    """For how long it must hold, as Prometheus writes durations."""

    severity: Severity
    says: str
    """What is wrong, with `{{ $labels.x }}` and `{{ $value }}`."""

    do: str
    """What to do, and where to look."""


SCHEDULING = (
    Alert(
        name="HeklaSchedulerAbsent",
        expr="absent(hekla_nodes)",
        lasts="2m",
        severity=Severity.CRITICAL,
        says="No scheduler of Hekla leads: nothing that waits is placed.",
        do="Look at the pods of hekla-scheduler and at /readyz?verbose of each; the Leases of its namespace say who led last.",
    ),
    Alert(
        name="HeklaSchedulerCyclesFail",
        expr='increase(hekla_scheduler_cycles_total{end="failed"}[10m]) > 0',
        lasts="5m",
        severity=Severity.CRITICAL,
        says="Scheduling cycles fail; {{ $value | humanize }} did within ten minutes.",
        do="The scheduler's log has a traceback of each (`cycle failed`); a `hekla snapshot` lets anybody repeat it.",
    ),
    Alert(
        name="HeklaBindingsRefused",
        expr='sum(rate(volcano_schedule_attempts_total{result="Error"}[10m])) > 0.05'
        ' * sum(rate(volcano_schedule_attempts_total{result=~"Success|Error"}[10m]))',
        lasts="10m",
        severity=Severity.WARNING,
        says="The API server refuses more than one in twenty of the scheduler's bindings.",
        do="The scheduler's log says why for each; a second scheduler for the same pods is the usual cause.",
    ),
    Alert(
        name="HeklaSchedulingSlow",
        expr="histogram_quantile(0.99, sum by (le) (rate(volcano_e2e_scheduling_latency_milliseconds_bucket[10m]))) > 1000",
        lasts="15m",
        severity=Severity.WARNING,
        says="One scheduling cycle in a hundred takes longer than a second.",
        do="The dashboard shows which action and which plug-in take the time; one that you do without can go from the configuration.",
    ),
    Alert(
        name="HeklaQueueStarves",
        expr="hekla_starvation_age_seconds > 3600",
        lasts="15m",
        severity=Severity.WARNING,
        says="A job of queue {{ $labels.queue }} has waited for {{ $value | humanizeDuration }} without a single node.",
        do="`hekla why queue/{{ $labels.queue }}` says what it waits for and the cheapest change that would let it start.",
    ),
    Alert(
        name="HeklaIdleInPieces",
        expr='hekla_fragmentation_ratio{resource="nvidia.com/gpu"} > 0.5 and on () sum(hekla_waiting_jobs) > 0',
        lasts="1h",
        severity=Severity.INFO,
        says="More than half of the idle GPUs lie on nodes partly in use while jobs wait.",
        do="binpack keeps nodes whole and shuffle (rescheduling) makes them so again; `hekla why` of a waiting job says whether it matters.",
    ),
    Alert(
        name="HeklaEvictionsCostly",
        expr="sum by (action) (increase(hekla_evicted_seconds_total[1h])) > 36000",
        lasts="10m",
        severity=Severity.WARNING,
        says="Evictions by {{ $labels.action }} have cost more than ten hours of run time within an hour.",
        do="docs/reference/evictions.md has what spares work: checkpoint annotations, minimum run times, cool-downs, budgets.",
    ),
    Alert(
        name="HeklaExtenderSilent",
        expr="hekla_extender_silent == 1",
        lasts="5m",
        severity=Severity.WARNING,
        says="The extender at {{ $labels.url }} has been silent; the scheduler decides without it.",
        do="Look at the extender; it is asked again by itself.",
    ),
    Alert(
        name="HeklaUsageUnknown",
        expr='sum(hekla_node_usage_nodes{state="old"}) > 0.1 * sum(hekla_nodes)',
        lasts="15m",
        severity=Severity.INFO,
        says="What more than a tenth of the nodes use is older than five minutes and not believed; the plug-in usage decides without it.",
        do="Look at the source of measurements in the scheduler's configuration (metrics.address).",
    ),
)

CONTROLLERS = (
    Alert(
        name="HeklaReconcilesFail",
        expr='sum by (reconciler) (rate(hekla_reconciles_total{outcome!="ok"}[10m]))'
        " > 0.2 * sum by (reconciler) (rate(hekla_reconciles_total[10m]))",
        lasts="15m",
        severity=Severity.WARNING,
        says="More than one in five reconciles of {{ $labels.reconciler }} fail.",
        do="The log says why for each object; events of the objects say it to their owners.",
    ),
    Alert(
        name="HeklaReconcileStuck",
        expr="workqueue_longest_running_processor_seconds > 300",
        lasts="5m",
        severity=Severity.WARNING,
        says="One object of {{ $labels.name }} has been worked on for {{ $value | humanizeDuration }}.",
        do="The API server or a webhook may not answer; the log names the object when its turn is over.",
    ),
    Alert(
        name="HeklaWebhooksUnreadable",
        expr='sum by (path) (increase(hekla_webhook_reviews_total{outcome="unreadable"}[10m])) > 0',
        lasts="10m",
        severity=Severity.WARNING,
        says="Reviews at {{ $labels.path }} cannot be read, so the API server refuses or skips what they are about.",
        do="Somebody else may call the webhooks, or the API server is of a version that writes them otherwise: see the webhooks' log.",
    ),
)

SERVING = (
    Alert(
        name="HeklaModelFails",
        expr='sum by (model) (rate(kthena_router_requests_total{status_code=~"5.."}[5m]))'
        " > 0.05 * sum by (model) (rate(kthena_router_requests_total[5m]))",
        lasts="10m",
        severity=Severity.CRITICAL,
        says="More than one in twenty requests to {{ $labels.model }} fail.",
        do="The router's access log has `error` and `error_origin` of each; `hekla why modelserver/NAME` says what its engines lack.",
    ),
    Alert(
        name="HeklaFirstTokenSlow",
        expr="histogram_quantile(0.9, sum by (model, le) (rate(hekla_router_time_to_first_token_seconds_bucket[10m]))) > 10",
        lasts="10m",
        severity=Severity.WARNING,
        says="One stream in ten of {{ $labels.model }} waits longer than ten seconds for its first token.",
        do="Engines are full (in flight, KV usage on the dashboard): let its AutoscalingPolicy have more, or look at its reasons.",
    ),
    Alert(
        name="HeklaEngineCacheFull",
        expr="hekla_router_engine_kv_usage > 0.95",
        lasts="15m",
        severity=Severity.WARNING,
        says="The KV cache of {{ $labels.pod }} has been full for a quarter of an hour: it preempts requests.",
        do="Add replicas, or lower --max-num-seqs of the engine.",
    ),
    Alert(
        name="HeklaModelsHeld",
        expr="hekla_router_held_requests > 0",
        lasts="5m",
        severity=Severity.WARNING,
        says="Requests to {{ $labels.pool }} have been held for five minutes: no engine of it comes up.",
        do="`hekla why` of its ModelServing or pods says what they wait for.",
    ),
    Alert(
        name="HeklaEnginesUnreadable",
        expr="increase(hekla_router_scrape_failures_total[10m]) > 30",
        lasts="10m",
        severity=Severity.INFO,
        says="Metrics pages of engines cannot be read; the router goes by its own counts.",
        do="The router's log names the engines; `workloadPort` of the ModelServer may be another than the engine's.",
    ),
    Alert(
        name="HeklaLimitsAlone",
        expr="hekla_router_shared_limits_alone == 1",
        lasts="5m",
        severity=Severity.WARNING,
        says="Global rate limits are counted by each router alone: Redis at {{ $labels.server }} is away.",
        do="Look at Redis; routers go on with what each has counted, and share again by themselves.",
    ),
)

SANDBOXES = (
    Alert(
        name="HeklaSandboxStartsSlow",
        expr='histogram_quantile(0.9, sum by (start, le) (rate(hekla_agents_start_seconds_bucket{start=~"warm|fork"}[10m]))) > 1',
        lasts="10m",
        severity=Severity.WARNING,
        says="One {{ $labels.start }} start of a sandbox in ten takes longer than a second.",
        do="Nodes or the store are slow: see the load of the nodes and the gateway's log.",
    ),
    Alert(
        name="HeklaPoolEmpty",
        expr="hekla_agents_pool_ready == 0 and hekla_agents_pool_wanted > 0",
        lasts="10m",
        severity=Severity.WARNING,
        says="The warm pool {{ $labels.namespace }}/{{ $labels.pool }} has been empty for ten minutes: sessions start cold.",
        do="`kubectl describe sandboxwarmpool {{ $labels.pool }} -n {{ $labels.namespace }}` says why; its members may have given way"
        " to other work, or their template cannot start.",
    ),
    Alert(
        name="HeklaSessionsRefused",
        expr="sum by (reason) (rate(hekla_agents_refused_total"
        '{reason=~"total_limit|create_timeout|node|api_server|store|start_failed|quota"}[10m])) > 0.1',
        lasts="10m",
        severity=Severity.WARNING,
        says="Sessions are refused for {{ $labels.reason }}, {{ $value | humanize }} in a second.",
        do="The gateway's log has the sentence of each; `--sessions` and `--sessions-per-owner` of `hekla run agents` are the limits.",
    ),
    Alert(
        name="HeklaSandboxesLost",
        expr='sum(increase(hekla_agents_ended_total{why="its sandbox is gone"}[15m])) > 0',
        lasts="1m",
        severity=Severity.WARNING,
        says="{{ $value | humanize }} sessions ended within a quarter of an hour because their sandbox was gone.",
        do="A node died or ran out of memory: `kubectl get events -A --field-selector type=Warning` and the nodes' logs.",
    ),
)

GROUPS = {
    "scheduler": SCHEDULING,
    "controllers": CONTROLLERS,
    "router": SERVING,
    "agents": SANDBOXES,
}
"""Alerts by the component that they are about: where it is not installed, nobody is called for want of it."""
