"""Writes what a Prometheus and a Grafana beside an embedded platform need, into a directory of the user's choice.

DIR/prometheus.yml    what to read, with the platform's own certificates
DIR/rules.yml         the alerts
DIR/router.key        the key that opens the router's page (mode 0600); only where a router runs
DIR/dashboards/*.json the dashboards
DIR/grafana/          provisioning for `GF_PATHS_PROVISIONING`: the source of data, and the dashboards
"""

import json
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from hekla.api.meta import Document
from hekla.app.data_directory import DataDirectory, Running
from hekla.app.monitoring.dashboards import DASHBOARDS
from hekla.app.monitoring.grafana import dashboard_json
from hekla.app.monitoring.prometheus import RULES_FILE, configuration_of_platform, rules

OF_CLUSTERS = {"workloads": "controllers"}
"""Components of an embedded platform that are called otherwise on a cluster."""

PROMETHEUS = "http://127.0.0.1:9090"
"""Where a Prometheus listens that nobody told otherwise."""


def write_monitoring(platform: DataDirectory, running: Running, target: Path) -> list[Path]:
    """Write all files below `target`, in the place of those of an earlier time, and return their paths; OSError."""
    target.mkdir(parents=True, exist_ok=True)
    router, key = "", None
    if platform.router_url.exists():
        router, key = urlsplit(platform.router_url.read_text().strip()).netloc, target / "router.key"
        _put(key, _first_key(platform.router_keys), mode=0o600)
    configuration = configuration_of_platform(
        api=urlsplit(running.url).netloc, pki=platform.pki, router=router, router_key=key
    )
    dashboards = target / "dashboards"
    texts = {
        target / "prometheus.yml": _yaml(configuration),
        target / RULES_FILE: _yaml(rules(_without(running))),
        **{dashboards / f"{one.uid}.json": json.dumps(dashboard_json(one), indent=1) for one in DASHBOARDS},
        target / "grafana" / "datasources" / "hekla.yml": _yaml(_source()),
        target / "grafana" / "dashboards" / "hekla.yml": _yaml(_provider(dashboards)),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, text, mode=0o644)
    return [*texts, *([key] if key is not None else [])]


def _first_key(keys: Path) -> str:
    """The key of the first line `OWNER: KEY`; empty where there is none."""
    lines = (line.strip() for line in keys.read_text().splitlines())
    return next((line.rpartition(":")[2].strip() for line in lines if line and not line.startswith("#")), "")


def _without(running: Running) -> set[str]:
    """Components as `hekla install` calls them, of which the platform runs none."""
    return {OF_CLUSTERS.get(name, name) for name in running.without}


def _put(path: Path, text: str, *, mode: int) -> None:
    """A new file takes the place of what is there: others may write here, and nothing is written through a link of theirs."""
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _source() -> Document:
    source = {"name": "Hekla", "type": "prometheus", "access": "proxy", "url": PROMETHEUS, "isDefault": True}
    return {"apiVersion": 1, "datasources": [source]}


def _provider(dashboards: Path) -> Document:
    provider = {"name": "Hekla", "type": "file", "folder": "Hekla", "options": {"path": str(dashboards)}}
    return {"apiVersion": 1, "providers": [provider]}


def _yaml(document: Document) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=120)
