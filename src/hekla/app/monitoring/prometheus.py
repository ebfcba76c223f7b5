"""Rules and scrape configurations as Prometheus reads them. Pure."""

from collections.abc import Collection
from pathlib import Path

from hekla.api.meta import Document
from hekla.app.monitoring.alerts import GROUPS, Alert

SCRAPE_EVERY = "15s"
RULES_FILE = "rules.yml"


def rules(without: Collection[str] = ()) -> Document:
    """The alerts, but for those about the components `without`: a rule file, and the spec of a PrometheusRule."""
    groups = {component: alerts for component, alerts in GROUPS.items() if component not in without}
    return {
        "groups": [
            {"name": f"hekla-{component}", "rules": [_rule(one) for one in alerts]}
            for component, alerts in groups.items()
        ]
    }


def _rule(alert: Alert) -> Document:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity.value},
        "annotations": {"summary": alert.says, "description": alert.do},
    }


def configuration_of_platform(*, api: str, pki: Path, router: str = "", router_key: Path | None = None) -> Document:
    """prometheus.yml for an embedded platform: `api` and `router` are HOST:PORT, `pki` has its certificates.

    One page has the scheduler, the controllers and sandboxes; the router has its own, which `router_key` opens.
    """
    jobs: list[Document] = [
        {
            "job_name": "hekla",
            "scheme": "https",
            "tls_config": {
                "ca_file": str(pki / "ca.crt"),
                "cert_file": str(pki / "admin.crt"),
                "key_file": str(pki / "admin.key"),
            },
            "static_configs": [{"targets": [api]}],
        }
    ]
    if router:
        job: Document = {"job_name": "hekla-router", "static_configs": [{"targets": [router]}]}
        if router_key is not None:
            job["authorization"] = {"credentials_file": str(router_key)}
        jobs.append(job)
    return {
        "global": {"scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY},
        "rule_files": [RULES_FILE],
        "scrape_configs": jobs,
    }


def configuration_of_cluster(namespace: str) -> Document:
    """A job for a Prometheus that runs in the cluster and may list pods there: every pod of Hekla that has a port `metrics`."""
    meta = "__meta_kubernetes_pod"
    return {
        "job_name": "hekla",
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
        "relabel_configs": [
            {"source_labels": [f"{meta}_label_app_kubernetes_io_name"], "regex": "hekla", "action": "keep"},
            {"source_labels": [f"{meta}_container_port_name"], "regex": "metrics", "action": "keep"},
            {"source_labels": [f"{meta}_label_app_kubernetes_io_component"], "target_label": "component"},
            {"source_labels": [f"{meta}_name"], "target_label": "instance"},
        ],
    }
