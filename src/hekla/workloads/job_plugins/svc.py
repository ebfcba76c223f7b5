"""Gives the pods of a job names that resolve, and tells every pod the names of all.

A headless Service called like the job makes `<pod>.<job>` resolve; a ConfigMap holds the names as `<task>.host` files and
as VC_<TASK>_HOSTS and VC_<TASK>_NUM; a NetworkPolicy lets in the job's own pods only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.core import ConfigMap, Service
from hekla.api.meta import Document
from hekla.api.networking import NetworkPolicy
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads import keys
from hekla.workloads.job_plugins.plugin import Owned, add_env, containers, host_names

MOUNT_PATH = "/etc/volcano"


@dataclass(frozen=True, kw_only=True)
class Svc:
    """A headless Service, the hosts as files and variables, and a NetworkPolicy."""

    name: ClassVar[str] = "svc"

    publish_not_ready_addresses: bool = False
    """Whether names resolve before their pods are ready."""

    disable_network_policy: bool = False
    """Whether to leave the job's pods open to others."""

    inject_hosts_env: bool = True
    """Whether to set the hosts as variables; a job of thousands of pods exceeds what a process may be given."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """The ConfigMap, the Service and, unless refused, the NetworkPolicy."""
        selector = {keys.JOB_NAME: job.metadata.name, keys.JOB_NAMESPACE: job.metadata.namespace}
        yield Owned(ConfigMap, {"metadata": {"name": _config_map(job)}, "data": hosts(job)})
        service: Document = {"clusterIP": "None", "selector": selector}
        if self.publish_not_ready_addresses:
            service["publishNotReadyAddresses"] = True
        yield Owned(Service, {"metadata": {"name": job.metadata.name}, "spec": service})
        if not self.disable_network_policy:
            own_pods = {"matchLabels": selector}
            ingress = [{"from": [{"podSelector": own_pods}]}]
            policy = {"podSelector": own_pods, "ingress": ingress, "policyTypes": ["Ingress"]}
            yield Owned(NetworkPolicy, {"metadata": {"name": job.metadata.name}, "spec": policy})

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Name the pod as its Service expects, and mount the hosts."""
        spec, name = pod["spec"], _config_map(job)
        spec["hostname"] = spec.get("hostname") or pod["metadata"]["name"]
        spec["subdomain"] = spec.get("subdomain") or job.metadata.name
        spec.setdefault("volumes", []).append({"name": name, "configMap": {"name": name}})
        for container in containers(pod):
            if self.inject_hosts_env:
                add_env(container, *(_from_config_map(name, key) for one in job.spec.tasks for key in _variables(one)))
            container.setdefault("volumeMounts", []).append({"name": name, "mountPath": MOUNT_PATH})


def hosts(job: Job) -> dict[str, str]:
    """What the ConfigMap holds."""
    data: dict[str, str] = {}
    for task in job.spec.tasks:
        names = list(host_names(job, task))
        data[f"{task.name.replace('-', '_')}.host"] = "\n".join(names)
        data |= zip(_variables(task), (",".join(names), str(len(names))), strict=True)
    return data


def _config_map(job: Job) -> str:
    return f"{job.metadata.name}-svc"


def _variables(task: TaskSpec) -> tuple[str, str]:
    stem = task.name.replace("-", "_").upper()
    return f"VC_{stem}_HOSTS", f"VC_{stem}_NUM"


def _from_config_map(config_map: str, key: str) -> Document:
    return {"name": key, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": key}}}
