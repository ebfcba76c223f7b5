"""The alerts, asked by Prometheus' own tool: each fires in its world, none in one that is well; and all name metrics that there are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hekla.app.monitoring.alerts import GROUPS
from hekla.app.monitoring.dashboards import DASHBOARDS
from hekla.app.monitoring.prometheus import RULES_FILE, configuration_of_cluster, configuration_of_platform, rules
from hekla.placement.registry import ACTIONS, load
from hekla.sandbox.sessions.counts import ENDED, SessionCounts
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.metrics import CYCLES, LOST_WORK, SchedulerMetrics

WORLDS = Path(__file__).with_name("alerts.yaml")
REFERENCE = Path(__file__).parents[3] / "docs/reference/metrics.md"
ALERTS = [alert for group in GROUPS.values() for alert in group]
BACKEND = {"model_route", "backend_type", "backend_name", "upstream_model"}
PROCESS = {
    "hekla_reconciles_total": {"reconciler", "outcome"},
    "hekla_webhook_reviews_total": {"path", "outcome"},
    "hekla_autoscaler_scalings_total": {"direction"},
}
"""Counters of every process, which the reference tells in words."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: `make test-deps` installs it"
)


def promtool(*words, cwd):
    return subprocess.run(["promtool", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def told(expr):
    """The alert that a world without annotations expects is compared without them."""
    return {key: value for key, value in expr.items() if key != "annotations"}


@needs_promtool
def test_each_alert_fires_in_its_world_and_a_platform_that_is_well_is_silent(tmp_path):
    bare = rules()
    for group in bare["groups"]:
        group["rules"] = [told(rule) for rule in group["rules"]]
    (tmp_path / RULES_FILE).write_text(yaml.safe_dump(bare))
    (tmp_path / WORLDS.name).write_text(WORLDS.read_text())
    done = promtool("test", "rules", WORLDS.name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_world():
    worlds = yaml.safe_load(WORLDS.read_text())["tests"]
    tried = {one["alertname"] for world in worlds for one in world["alert_rule_test"]}
    assert tried == {alert.name for alert in ALERTS}


@needs_promtool
def test_prometheus_takes_the_rules_and_both_configurations(tmp_path):
    (tmp_path / RULES_FILE).write_text(yaml.safe_dump(rules()))
    for name in ("ca.crt", "admin.crt", "admin.key", "router.key"):
        (tmp_path / name).write_text("")
    platform = configuration_of_platform(
        api="127.0.0.1:6443", pki=tmp_path, router="127.0.0.1:8080", router_key=tmp_path / "router.key"
    )
    cluster = configuration_of_cluster("hekla-system")
    assert cluster.pop("kubernetes_sd_configs")[0]["namespaces"] == {
        "names": ["hekla-system"]
    }  # Debian's has no such part
    for text in (platform, {"scrape_configs": [{**cluster, "static_configs": []}]}):
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(text))
        done = promtool("check", "config", "--syntax-only", "prometheus.yml", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("check", "rules", RULES_FILE, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def known_metrics():
    """Labels by metric, of the tables of docs/reference/metrics.md; a histogram is there by its three names."""
    found = dict(PROCESS)
    for row in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", REFERENCE.read_text(), re.MULTILINE):
        name, kind, labels = row
        of = set(re.findall(r"`(\w+)`", labels)) | (BACKEND if "backend" in labels.split("`")[-1] else set())
        names = (f"{name}_bucket", f"{name}_count", f"{name}_sum") if kind == "histogram" else (name,)
        found |= {one: of | ({"le"} if one.endswith("_bucket") else set()) for one in names}
    return found


EXPRESSIONS = [
    *((alert.name, alert.expr) for alert in ALERTS),
    *(
        (f"{dashboard.title}: {panel.title}", series.expr)
        for dashboard in DASHBOARDS
        for row in dashboard.rows
        for panel in row.panels
        for series in panel.series
    ),
]


@pytest.mark.parametrize(("where", "expr"), EXPRESSIONS, ids=[f"{where}" for where, _ in EXPRESSIONS])
def test_expressions_name_metrics_and_labels_that_there_are(where, expr):
    known = known_metrics()
    bare = re.sub(r'"[^"]*"', '""', expr)
    named = re.findall(r"\b((?:hekla|volcano|kthena_router|workqueue)_\w+)(?:\{([^}]*)\})?", bare)
    assert named
    labels = set()
    for name, matchers in named:
        assert name in known, f"{where}: there is no metric {name}"
        asked = set(re.findall(r"(\w+)\s*(?:=|!)", matchers))
        assert asked <= known[name], f"{where}: {name} has no label {asked - known[name]}"
        labels |= known[name]
    for by in re.findall(r"\bby \(([^)]*)\)", bare):
        asked = {label.strip() for label in by.split(",")}
        assert asked <= labels, f"{where}: grouped by {asked - labels}, which no metric of it has"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_what_an_alert_says_uses_labels_that_its_expression_keeps(alert):
    asked = set(re.findall(r"\$labels\.(\w+)", alert.says + alert.do))
    grouped = re.findall(r"\b(?:sum|max) by \(([^)]*)\)", alert.expr)
    if grouped:
        assert asked <= {label.strip() for by in grouped for label in by.split(",")} - {"le"}
    else:
        (first, *_) = re.findall(r"\b((?:hekla|volcano|kthena_router|workqueue)_\w+)", alert.expr)
        assert asked <= known_metrics()[first]


def test_counters_whose_first_step_is_an_alert_are_told_as_0_from_the_start():
    """An increase is between two readings: a series that begins at 40 lost sandboxes has none."""
    desk = {
        (sample.name, *sample.labels.values())
        for family in SessionCounts().tally.collect((ENDED,))
        for sample in family.samples
    }
    assert ("hekla_agents_ended_total", "its sandbox is gone") in desk
    load()
    tally = SchedulerMetrics(BatchScheduler.__new__(BatchScheduler)).tally
    scheduler = {
        (sample.name, *sample.labels.values())
        for family in tally.collect((CYCLES, LOST_WORK))
        for sample in family.samples
    }
    assert ("hekla_scheduler_cycles_total", "failed") in scheduler
    assert {action for name, action in scheduler if name == LOST_WORK.name} == {
        name for name in ACTIONS if name not in ("enqueue", "allocate", "backfill")
    }


def test_alerts_about_what_is_not_installed_are_left_out():
    names = [group["name"] for group in rules(without={"scheduler", "agents"})["groups"]]
    assert names == ["hekla-controllers", "hekla-router"]
