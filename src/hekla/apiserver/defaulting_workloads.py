"""What Kubernetes fills in for Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob and PodTemplate."""

from hekla.api.meta import Document
from hekla.apiserver.defaulting_pods import default_pod_template

_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_LONGEST_COUNT = 18  # digits: what a user writes there is any text
_LARGEST_INT32 = 2**31 - 1


def default_deployment(deployment: Document) -> None:
    """One replica, a rolling update by quarters."""
    spec = _spec(deployment)
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def default_replica_set(replica_set: Document) -> None:
    """One replica."""
    _spec(replica_set).setdefault("replicas", 1)


def default_replication_controller(controller: Document) -> None:
    """One replica; labels and selector are the template's."""
    spec = controller.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    if "template" in spec:
        default_pod_template(spec["template"])
        labels = spec["template"]["metadata"].get("labels")
        if labels:
            spec.setdefault("selector", dict(labels))
            controller["metadata"].setdefault("labels", dict(labels))


def default_stateful_set(stateful_set: Document) -> None:
    """Pods one after another, claims that stay."""
    spec = _spec(stateful_set)
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("serviceName", "")  # Go always writes it
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy["rollingUpdate"].setdefault("partition", 0)
    if "ordinals" in spec:
        spec["ordinals"].setdefault("start", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    spec.setdefault("revisionHistoryLimit", 10)
    for claim in spec.get("volumeClaimTemplates", ()):
        claim["kind"], claim["apiVersion"] = "PersistentVolumeClaim", "v1"
        claim.setdefault("spec", {"resources": {}}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {}).setdefault("phase", "Pending")


def default_daemon_set(daemon_set: Document) -> None:
    """One node after another."""
    spec = _spec(daemon_set)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


def start_daemon_set(daemon_set: Document) -> None:
    """The annotation in which Kubernetes still counts templates."""
    daemon_set["status"] = {}
    daemon_set["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = "1"


def advance_daemon_set(new: Document, old: Document) -> None:
    """Count a template that changed."""
    count = old["metadata"].get("annotations", {}).get(_TEMPLATE_GENERATION, "0")
    changed = new["spec"].get("template") != old["spec"].get("template")
    is_number = count.isascii() and count.isdigit() and len(count) <= _LONGEST_COUNT
    counted = int(count) + 1 if changed and is_number else count
    new["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = str(counted)


def default_job(job: Document) -> None:
    """Once, six tries."""
    spec = _spec(job)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", _LARGEST_INT32 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in spec.get("podFailurePolicy", {}).get("rules") or ():
        for pattern in rule.get("onPodConditions", ()):
            if not pattern.get("status"):
                pattern["status"] = "True"
    _label_like_template(job)


def start_job(job: Document) -> None:
    """Select the job's own pods by its uid; the server has set the uid by now."""
    spec, metadata = job["spec"], job["metadata"]
    job["status"] = {}
    if metadata.get("labels") == spec["template"]["metadata"].get("labels"):
        metadata.pop("labels", None)  # they were the template's, and will be with what is added to those
    if metadata.get("uid") and metadata.get("name") and not spec.get("manualSelector"):
        _select_by_uid(spec, metadata["name"], metadata["uid"])
    _label_like_template(job)


def _select_by_uid(spec: Document, name: str, uid: str) -> None:
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels.setdefault(f"{prefix}controller-uid", uid)
        labels.setdefault(f"{prefix}job-name", name)
    selector = spec.setdefault("selector", {})
    selector.setdefault("matchLabels", {}).setdefault("batch.kubernetes.io/controller-uid", uid)


def _label_like_template(job: Document) -> None:
    labels = job["spec"]["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = dict(labels)


def default_cron_job(cron_job: Document) -> None:
    """Overlapping runs allowed, three successes and one failure kept."""
    spec = cron_job.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    job = spec.setdefault("jobTemplate", {}).setdefault("spec", {})
    spec["jobTemplate"].setdefault("metadata", {})
    default_pod_template(job.setdefault("template", {}))


def default_pod_template_object(template: Document) -> None:
    """A PodTemplate object."""
    default_pod_template(template.setdefault("template", {}))


def _spec(workload: Document) -> Document:
    spec: Document = workload.setdefault("spec", {})
    default_pod_template(spec.setdefault("template", {}))
    return spec
