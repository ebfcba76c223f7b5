"""A real Prometheus reads a real platform by the files of `hekla monitoring`: it answers what dashboards and alerts ask."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.conftest import Hekla, clean_environment, run_hekla
from hekla.app.monitoring.alerts import GROUPS
from hekla.app.monitoring.dashboards import DASHBOARDS
from hekla.testing.kubernetes import free_ports
from hekla.testing.programs import started

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
OURS = "(hekla|volcano|kthena)_.+"
ALWAYS = (
    "Nodes",
    "A cycle",
    "Pods placed in a second",
    "Objects that wait for a worker",
    "Requests in a second",
    "Requests at each engine",
)
"""Panels that have something to show once a job has run and a chat was answered."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: `make test-deps` installs it"),
]


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **query: str) -> Any:
        """`data` of an answer of its API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def value(self, expr: str) -> list[Any]:
        """What an expression is now."""
        result: list[Any] = self.ask("query", query=expr)["result"]
        return result


def until(condition: Any, sentence: str) -> None:
    """Each question is pause enough for a server that reads once in a second."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, sentence


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Reads a platform that has answered a chat."""
    home = tmp_path_factory.mktemp("watched")
    data, watch, environment = home / "platform", home / "watch", clean_environment(home)
    ports = [word for name in ("port", "router-port", "agents-port") for word in (f"--{name}", "0")]
    run_hekla(environment, "up", "--detach", "--data-dir", str(data), *ports, "--gpus-per-node", "8")
    try:
        kubeconfig = ("--kubeconfig", str(data / "kubeconfig"))
        run_hekla(environment, "apply", "-f", str(ROOT / "examples/serving/chat.yaml"), *kubeconfig)
        written = run_hekla(environment, "monitoring", str(watch), "--data-dir", str(data)).out.split()
        assert str(watch / "prometheus.yml") in written
        assert (watch / "router.key").stat().st_mode & 0o777 == 0o600
        configuration = yaml.safe_load((watch / "prometheus.yml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (watch / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        chat(data)
        (port,) = free_ports(1)
        command = [
            "prometheus", f"--config.file={watch}/prometheus.yml", f"--storage.tsdb.path={home}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            prometheus = Prometheus(f"http://127.0.0.1:{port}")
            until(lambda: is_up(prometheus), "both pages were never read")
            yield prometheus
    finally:
        run_hekla(environment, "down", "--data-dir", str(data))


def is_up(prometheus: Prometheus) -> bool:
    try:
        targets = prometheus.ask("targets")["activeTargets"]
    except (urllib.error.URLError, ConnectionError):
        return False
    return len(targets) == 2 and all(target["health"] == "up" for target in targets)


def chat(data: Path) -> None:
    """The router holds the first one until an engine is there."""
    key = (data / "router.keys").read_text().partition(":")[2].strip()
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = (data / "router.url").read_text().strip() + "/v1/chat/completions"

    def answered() -> bool:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60):
                return True
        except urllib.error.HTTPError as error:
            if error.code not in (404, 503):
                raise
            return False

    until(answered, "no engine came")


def labels_in_reference() -> dict[str, set[str]]:
    """Of the tables in docs/reference/metrics.md, by the name without what a histogram appends."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    found = {}
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", text, re.MULTILINE):
        found[name] = set(re.findall(r"`(\w+)`", labels))
        if "backend" in labels.split("`")[-1]:
            found[name] |= {"model_route", "backend_type", "backend_name", "upstream_model"}
    return found


def test_a_prometheus_reads_the_platform_and_answers_every_dashboard_and_alert(
    watched: Prometheus,
) -> None:
    until(
        lambda: watched.value('count_over_time(hekla_nodes{state="usable"}[1m]) > 3'),
        "it was not read again and again",
    )
    for dashboard in DASHBOARDS:
        for panel in (panel for row in dashboard.rows for panel in row.panels):
            for series in panel.series:
                expr = series.expr.replace("$queue", ".*").replace("$model", ".*").replace("[5m]", "[1m]")
                found = watched.value(expr)
                assert found or panel.title not in ALWAYS, f"{dashboard.title}, {panel.title}: nothing for {expr}"
    for alert in (alert for group in GROUPS.values() for alert in group):
        assert not watched.value(alert.expr), f"{alert.name} on a platform that is well"
    rules = [rule for group in watched.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def test_the_reference_has_every_metric_that_is_told_with_its_labels(watched: Prometheus) -> None:
    known = labels_in_reference()
    in_words = {"hekla_reconcile", "hekla_autoscaler", "hekla_store", "hekla_webhook"}
    for series in watched.ask("series", **{"match[]": f'{{__name__=~"{OURS}"}}'}):
        name = series.pop("__name__")
        family = next((one for one in (name, re.sub(r"_(bucket|count|sum)$", "", name)) if one in known), None)
        if family is None:
            assert any(name.startswith(one) for one in in_words), f"docs/reference/metrics.md has no {name}"
        else:
            assert set(series) - {"job", "instance", "le"} <= known[family], f"{name}: {series}"


def test_monitoring_of_nothing_is_refused_with_a_sentence(cli: Hekla, tmp_path: Path) -> None:
    said = cli("monitoring", str(tmp_path / "watch"), "--data-dir", str(tmp_path / "none"), code=3)
    assert "start one with `hekla up --detach`" in said.err
    assert not (tmp_path / "watch").exists()
