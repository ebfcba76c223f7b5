"""The pods of a ModelServing and the service of each instance, to the letter as Kthena's.

`serving_plugins/` changes pods before they are made.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hekla.api.core import Pod, Service
from hekla.api.kthena import ModelServing, labels
from hekla.api.meta import Document
from hekla.serving.serving_names import owner_reference, pod_name, role_id
from hekla.serving.serving_plugins.plugin import PodMaking, ServingPlugin
from hekla.serving.serving_revision import RoleTemplate

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
ENGINE: Final = "engine"
"""The name of a ModelBooster's engine, beside its side-car."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """What the pods of one instance are made from."""

    group: str
    role: RoleTemplate
    ordinal: int
    revision: str
    template_hash: str

    @property
    def instance(self) -> str:
        """The instance's name within its group."""
        return role_id(self.role.name, self.ordinal)

    def pod_name(self, index: int) -> str:
        """The name of one of its pods."""
        return pod_name(self.group, self.instance, index)


def new_pod(
    serving: ModelServing, plan: Blueprint, index: int, plugins: Sequence[ServingPlugin], entry: Pod | None = None
) -> Document:
    """The document of one pod; index 0 is the entry, which is given to its workers if it is there. Raises PluginError."""
    template = plan.role.document["entryTemplate" if index == 0 else "workerTemplate"] or {}
    given, spec = template.get("metadata") or {}, copy.deepcopy(template.get("spec") or {})
    if serving.spec.scheduler_name:
        spec["schedulerName"] = serving.spec.scheduler_name
    _set_environment(spec, serving, plan, index)
    metadata: Document = {
        "name": plan.pod_name(index),
        "namespace": serving.metadata.namespace,
        "labels": {**_labels(serving, plan, is_entry=index == 0), **(given.get("labels") or {})},
        "annotations": {**_default_container(spec), **(given.get("annotations") or {}), **_annotations(serving, plan)},
        "ownerReferences": [owner_reference(serving)],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    making = PodMaking(
        serving=serving, group=plan.group, role=plan.role.name, index=index, pod=pod, entry=plan.pod_name(0),
        size=plan.role.size, entry_pod=entry,
    )  # fmt: skip
    for plugin in plugins:
        if plugin.concerns(making):
            plugin.decorate(making)
    return pod


def new_service(serving: ModelServing, plan: Blueprint) -> Document:
    """The headless service by whose name workers find their entry pod."""
    kind = Service.kind_info
    about = {
        labels.GROUP_NAME: plan.group,
        labels.ROLE: plan.role.name,
        labels.ROLE_ID: plan.instance,
    }
    metadata = {
        "name": plan.pod_name(0),
        "namespace": serving.metadata.namespace,
        "labels": {labels.NAME: serving.metadata.name, **about},
        "ownerReferences": [owner_reference(serving)],
    }
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {**about, labels.ENTRY: "true"}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def has_service(role: RoleTemplate) -> bool:
    """Whether instances of a role have pods that must find each other."""
    return bool(role.document.get("workerTemplate"))


def _labels(serving: ModelServing, plan: Blueprint, *, is_entry: bool) -> dict[str, str]:
    own = {
        labels.NAME: serving.metadata.name,
        labels.GROUP_NAME: plan.group,
        labels.ROLE: plan.role.name,
        labels.ROLE_ID: plan.instance,
        labels.REVISION: plan.revision,
        labels.ROLE_TEMPLATE_HASH: plan.template_hash,
    }
    return {**own, labels.ENTRY: "true"} if is_entry else own


def _annotations(serving: ModelServing, plan: Blueprint) -> dict[str, str]:
    if serving.spec.scheduler_name != "volcano":
        return {}
    return {labels.POD_GROUP_NAME: plan.group, labels.TASK_SPEC: plan.instance}


def _default_container(spec: Document) -> dict[str, str]:
    """Whose log is meant where none is named. On pods alone: in a template it would make a new revision of everything that runs."""
    names = [one["name"] for one in spec.get("containers") or ()]
    return {DEFAULT_CONTAINER: ENGINE if ENGINE in names else names[0]} if len(names) > 1 else {}


def _set_environment(spec: Document, serving: ModelServing, plan: Blueprint, index: int) -> None:
    """Into every container, in the place of variables of the same names."""
    told = {
        labels.GROUP_SIZE_ENV: str(plan.role.size),
        labels.ENTRY_ADDRESS_ENV: f"{plan.pod_name(0)}.{serving.metadata.namespace}",
        labels.WORKER_INDEX_ENV: str(index),
    }
    own: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in told.items()]
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        kept = [one for one in container.get("env") or () if one.get("name") not in told]
        container["env"] = [*kept, *copy.deepcopy(own)]
        _write_amounts(container.get("resources") or {})


def _write_amounts(resources: Document) -> None:
    """A template is no pod, so its amounts may still be numbers; a pod's are text."""
    for part in ("limits", "requests"):
        if amounts := resources.get(part):
            resources[part] = {name: str(amount) for name, amount in amounts.items()}
