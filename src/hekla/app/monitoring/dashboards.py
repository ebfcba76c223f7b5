"""What operators see, as tables: panels with their questions, in rows. `grafana.py` makes JSON of them."""

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How a panel shows what it asks."""

    LINES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One question of a panel."""

    expr: str
    """In PromQL."""

    named: str = ""
    """What its lines are called, with `{{label}}`."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    series: tuple[Series, ...]
    unit: str = "short"
    """Grafana's name of the unit."""

    shape: Shape = Shape.LINES
    width: int = 8
    """Of 24 columns."""

    about: str = ""
    """How to read it, shown behind the title."""

    is_stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """What a reader can choose: values of a label."""

    name: str
    query: str
    """As Grafana's `label_values(metric, label)`."""


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()


def _one(expr: str, named: str = "") -> tuple[Series, ...]:
    return (Series(expr=expr, named=named),)


def _quantiles(family: str, *by: str, at: tuple[float, ...] = (0.5, 0.9, 0.99), where: str = "") -> tuple[Series, ...]:
    """Quantiles of a histogram over five minutes, for each value of the labels `by`."""
    labels = ", ".join((*by, "le"))
    named = " ".join(f"{{{{{label}}}}}" for label in by)
    return tuple(
        Series(
            expr=f"histogram_quantile({quantile:g}, sum by ({labels}) (rate({family}_bucket{where}[5m])))",
            named=f"{named} p{quantile * 100:g}".strip(),
        )
        for quantile in at
    )


_OF_QUEUE = '{queue=~"$queue"}'
_NAMED_QUEUE = '{queue_name=~"$queue"}'
_OF_GPU = '{queue_name=~"$queue", resource="nvidia.com/gpu"}'
_OF_MODEL = '{model=~"$model"}'

SCHEDULING = Dashboard(
    uid="hekla-scheduling",
    title="Hekla / scheduling",
    variables=(Variable(name="queue", query="label_values(volcano_queue_weight, queue_name)"),),
    rows=(
        Row(
            title="Who waits",
            panels=(
                Panel(
                    title="Waiting jobs by reason",
                    series=_one(f"sum by (reason) (hekla_waiting_jobs{_OF_QUEUE})", "{{reason}}"),
                    is_stacked=True,
                    about="The main reason of each job's last attempt. `hekla why JOB` has all, and the cheapest fix.",
                ),
                Panel(
                    title="Longest wait without a node",
                    series=_one(f"hekla_starvation_age_seconds{_OF_QUEUE}", "{{queue}}"),
                    unit="s",
                ),
                Panel(title="Waiting pods", series=_one(f"hekla_waiting_pods{_OF_QUEUE}", "{{queue}}")),
            ),
        ),
        Row(
            title="Queues",
            panels=(
                Panel(
                    title="GPUs held",
                    series=_one(f"volcano_queue_allocated_scalar_resources{_OF_GPU} / 1000", "{{queue_name}}"),
                    is_stacked=True,
                ),
                Panel(
                    title="GPUs deserved and asked for",
                    series=(
                        Series(
                            expr=f"volcano_queue_deserved_scalar_resources{_OF_GPU} / 1000",
                            named="{{queue_name}} deserves",
                        ),
                        Series(
                            expr=f"volcano_queue_request_scalar_resources{_OF_GPU} / 1000",
                            named="{{queue_name}} asks for",
                        ),
                    ),
                ),
                Panel(
                    title="CPU held",
                    series=_one(f"volcano_queue_allocated_milli_cpu{_NAMED_QUEUE} / 1000", "{{queue_name}}"),
                    is_stacked=True,
                ),
                Panel(
                    title="Share of what it deserves",
                    series=_one(f"volcano_queue_share{_NAMED_QUEUE}", "{{queue_name}}"),
                    unit="percentunit",
                    about="1: it holds all that it deserves; above, it borrows and can be reclaimed from.",
                ),
                Panel(
                    title="Gangs that run",
                    series=_one(f"volcano_queue_pod_group_running_count{_NAMED_QUEUE}", "{{queue_name}}"),
                    is_stacked=True,
                ),
                Panel(
                    title="Gangs that wait",
                    series=(
                        Series(
                            expr=f"volcano_queue_pod_group_pending_count{_NAMED_QUEUE}", named="{{queue_name}} pending"
                        ),
                        Series(
                            expr=f"volcano_queue_pod_group_inqueue_count{_NAMED_QUEUE}", named="{{queue_name}} in queue"
                        ),
                    ),
                    is_stacked=True,
                ),
            ),
        ),
        Row(
            title="Room",
            panels=(
                Panel(title="Nodes", series=_one("hekla_nodes", "{{state}}"), shape=Shape.NUMBER, width=4),
                Panel(
                    title="GPUs idle",
                    series=_one('hekla_idle_amount{resource="nvidia.com/gpu"}', "idle"),
                    shape=Shape.NUMBER,
                    width=4,
                ),
                Panel(
                    title="Idle, in pieces",
                    series=_one("hekla_fragmentation_ratio", "{{resource}}"),
                    unit="percentunit",
                    about="The part of what is idle that lies on nodes partly in use.",
                ),
                Panel(title="Nodes wholly idle", series=_one("hekla_idle_nodes", "{{resource}}")),
            ),
        ),
        Row(
            title="The scheduler",
            panels=(
                Panel(
                    title="Pods placed in a second",
                    series=_one("sum by (result) (rate(volcano_schedule_attempts_total[1m]))", "{{result}}"),
                    unit="ops",
                ),
                Panel(
                    title="A cycle",
                    series=_quantiles("volcano_e2e_scheduling_latency_milliseconds"),
                    unit="ms",
                ),
                Panel(
                    title="From created to bound",
                    series=_quantiles("volcano_task_scheduling_latency_milliseconds"),
                    unit="ms",
                ),
                Panel(
                    title="Time of actions",
                    series=_one(
                        "sum by (action) (rate(volcano_action_scheduling_latency_milliseconds_sum[5m]))", "{{action}}"
                    ),
                    unit="ms",
                    about="Milliseconds in each second.",
                    is_stacked=True,
                ),
                Panel(
                    title="Time of plug-ins",
                    series=_one(
                        "sum by (plugin) (rate(volcano_plugin_scheduling_latency_milliseconds_sum[5m]))", "{{plugin}}"
                    ),
                    unit="ms",
                    about="Milliseconds in each second.",
                    is_stacked=True,
                ),
                Panel(
                    title="Evictions",
                    series=_one("sum by (action, outcome) (rate(hekla_evictions_total[5m]))", "{{action}} {{outcome}}"),
                    unit="ops",
                ),
                Panel(
                    title="Run time lost by evictions",
                    series=_one("sum by (action) (rate(hekla_evicted_seconds_total[5m]))", "{{action}}"),
                    unit="s",
                    about="Seconds of work lost in each second.",
                ),
            ),
        ),
        Row(
            title="Controllers",
            panels=(
                Panel(
                    title="Reconciles that fail",
                    series=_one(
                        'sum by (reconciler, outcome) (rate(hekla_reconciles_total{outcome!="ok"}[5m]))',
                        "{{reconciler}} {{outcome}}",
                    ),
                    unit="ops",
                ),
                Panel(title="Objects that wait for a worker", series=_one("workqueue_depth", "{{name}}")),
                Panel(
                    title="Jobs retried",
                    series=_one("topk(10, volcano_job_retry_counts > 0)", "{{job_id}}"),
                ),
            ),
        ),
    ),
)

SERVING = Dashboard(
    uid="hekla-serving",
    title="Hekla / models",
    variables=(Variable(name="model", query="label_values(kthena_router_requests_total, model)"),),
    rows=(
        Row(
            title="What users see",
            panels=(
                Panel(
                    title="Requests in a second",
                    series=_one(
                        f"sum by (model, status_code) (rate(kthena_router_requests_total{_OF_MODEL}[1m]))",
                        "{{model}} {{status_code}}",
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="To the first token",
                    series=_quantiles("hekla_router_time_to_first_token_seconds", "model", where=_OF_MODEL),
                    unit="s",
                ),
                Panel(
                    title="Between tokens",
                    series=_quantiles("hekla_router_inter_token_latency_seconds", "model", where=_OF_MODEL),
                    unit="s",
                ),
                Panel(
                    title="To the end",
                    series=_quantiles("kthena_router_request_duration_seconds", "model", where=_OF_MODEL),
                    unit="s",
                ),
                Panel(
                    title="Tokens in a second",
                    series=_one(
                        f"sum by (model, token_type) (rate(kthena_router_tokens_total{_OF_MODEL}[1m]))",
                        "{{model}} {{token_type}}",
                    ),
                ),
                Panel(
                    title="Refusals and failures",
                    series=_one(
                        'sum by (model, error_type) (rate(kthena_router_requests_total{model=~"$model", error_type!=""}[5m]))',
                        "{{model}} {{error_type}}",
                    ),
                    unit="reqps",
                ),
            ),
        ),
        Row(
            title="Engines",
            panels=(
                Panel(
                    title="Requests at each engine",
                    series=_one("sum by (pool, pod) (hekla_router_engine_in_flight)", "{{pod}}"),
                ),
                Panel(
                    title="Tokens it has yet to read",
                    series=_one("sum by (pool, pod) (hekla_router_engine_prefill_tokens)", "{{pod}}"),
                ),
                Panel(
                    title="KV cache in use",
                    series=_one("max by (pool, pod) (hekla_router_engine_kv_usage)", "{{pod}}"),
                    unit="percentunit",
                ),
                Panel(
                    title="Part of a prompt that the engine had",
                    series=_one(
                        "sum by (model) (rate(kthena_router_prefix_cache_match_ratio_sum[5m]))"
                        " / sum by (model) (rate(kthena_router_prefix_cache_match_ratio_count[5m]))",
                        "{{model}}",
                    ),
                    unit="percentunit",
                ),
                Panel(title="Held for models that sleep", series=_one("hekla_router_held_requests", "{{pool}}")),
                Panel(
                    title="Speculated tokens accepted",
                    series=_one("max by (pool, pod) (hekla_router_engine_accepted_speculation)", "{{pod}}"),
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            title="The router",
            panels=(
                Panel(
                    title="Under way",
                    series=_one("sum by (model) (kthena_router_active_downstream_requests)", "{{model}}"),
                    is_stacked=True,
                ),
                Panel(
                    title="Over a limit",
                    series=_one(
                        "sum by (model, limit_type) (rate(kthena_router_rate_limit_exceeded_total[5m]))",
                        "{{model}} {{limit_type}}",
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="Changes of replicas",
                    series=_one("sum by (direction) (increase(hekla_autoscaler_scalings_total[10m]))", "{{direction}}"),
                ),
            ),
        ),
    ),
)

SANDBOXES = Dashboard(
    uid="hekla-sandboxes",
    title="Hekla / sandboxes",
    rows=(
        Row(
            title="Sessions",
            panels=(
                Panel(
                    title="Live sessions",
                    series=_one("sum by (state) (hekla_agents_sessions)", "{{state}}"),
                    is_stacked=True,
                ),
                Panel(
                    title="Starts in a second",
                    series=_one("sum by (start) (rate(hekla_agents_start_seconds_count[1m]))", "{{start}}"),
                    unit="ops",
                ),
                Panel(title="A start", series=_quantiles("hekla_agents_start_seconds", "start"), unit="s"),
                Panel(
                    title="A wake",
                    series=_quantiles("hekla_agents_wake_seconds", "sleep", at=(0.5, 0.99)),
                    unit="s",
                ),
                Panel(
                    title="Put to sleep",
                    series=_one("sum by (sleep) (rate(hekla_agents_slept_total[5m]))", "{{sleep}}"),
                    unit="ops",
                ),
                Panel(
                    title="Refused",
                    series=_one("sum by (reason) (rate(hekla_agents_refused_total[5m]))", "{{reason}}"),
                    unit="ops",
                ),
                Panel(
                    title="Ended",
                    series=_one("sum by (why) (rate(hekla_agents_ended_total[5m]))", "{{why}}"),
                    unit="ops",
                ),
            ),
        ),
        Row(
            title="Warm pools",
            panels=(
                Panel(
                    title="Ready and wanted",
                    series=(
                        Series(expr="hekla_agents_pool_ready", named="{{namespace}}/{{pool}} ready"),
                        Series(expr="hekla_agents_pool_wanted", named="{{namespace}}/{{pool}} wanted"),
                    ),
                    width=12,
                ),
                Panel(
                    title="Starts that found one waiting",
                    series=_one(
                        'sum(rate(hekla_agents_start_seconds_count{start="warm"}[5m]))'
                        ' / sum(rate(hekla_agents_start_seconds_count{start=~"warm|cold"}[5m]))',
                        "warm",
                    ),
                    unit="percentunit",
                    width=12,
                ),
            ),
        ),
        Row(
            title="The gateway",
            panels=(
                Panel(
                    title="Requests to sandboxes",
                    series=_one("sum by (class) (rate(hekla_agents_requests_passed_total[1m]))", "{{class}}xx"),
                    unit="reqps",
                ),
                Panel(title="A request to a sandbox", series=_quantiles("hekla_agents_passage_seconds"), unit="s"),
                Panel(
                    title="Answered itself",
                    series=_one(
                        "sum by (door, status) (rate(hekla_agents_requests_answered_total[1m]))", "{{door}} {{status}}"
                    ),
                    unit="reqps",
                ),
            ),
        ),
    ),
)

DASHBOARDS = (SCHEDULING, SERVING, SANDBOXES)
