"""Monitoring as objects: a PodMonitor and a PrometheusRule of the Prometheus Operator, and ConfigMaps that Grafana's side-car takes up."""

import json
from collections.abc import Collection

from hekla.api.meta import Document
from hekla.app.monitoring.dashboards import DASHBOARDS
from hekla.app.monitoring.grafana import dashboard_json
from hekla.app.monitoring.prometheus import SCRAPE_EVERY, rules

API_VERSION = "monitoring.coreos.com/v1"
GRAFANA_LABEL = {"grafana_dashboard": "1"}
"""What the side-car of kube-prometheus-stack's Grafana looks for."""


def objects(namespace: str, labels: dict[str, str], without: Collection[str] = ()) -> list[Document]:
    """All of them; `labels` are those of everything that belongs to an installation, which is `without` some components."""
    metadata = {"name": "hekla", "namespace": namespace, "labels": labels}
    component = {
        "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
        "targetLabel": "component",
    }
    monitor = {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "hekla"}},
        "podMetricsEndpoints": [{"port": "metrics", "interval": SCRAPE_EVERY, "relabelings": [component]}],
    }
    return [
        {"apiVersion": API_VERSION, "kind": "PodMonitor", "metadata": metadata, "spec": monitor},
        {"apiVersion": API_VERSION, "kind": "PrometheusRule", "metadata": metadata, "spec": rules(without)},
        *(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": one.uid, "namespace": namespace, "labels": {**labels, **GRAFANA_LABEL}},
                "data": {f"{one.uid}.json": json.dumps(dashboard_json(one), indent=1)},
            }
            for one in DASHBOARDS
        ),
    ]
