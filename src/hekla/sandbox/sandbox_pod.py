"""The pod of a Sandbox: the document it is made from, and what of its metadata must follow the Sandbox later.

`sandbox.py` decides when. Labels and annotations under agents.x-k8s.io are the controllers' alone: one that a template
could set would let its pod be found in another Sandbox's place.
"""

from hekla.api.agents import Sandbox, SandboxWarmPool, names
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.sandbox import late_environment
from hekla.sandbox.owning import controller_of, is_reserved, name_hash, owner_reference

PASSED_ON = (
    names.MIN_ISOLATION, names.QUEUE, names.EGRESS, names.OWNER, names.FORK_OF, names.RESTORE_FROM, "hekla.dev/lineage",
    "hekla.dev/egress-secrets",
)  # fmt: skip
"""Annotations that a pod takes over from its Sandbox, where its template does not say them."""

_OF_SESSIONS = (names.SESSION_ID, names.WORKLOAD_NAME, names.OWNER_HASH)
_OF_EXTENSIONS = (names.WARM_POOL, names.TEMPLATE_REF_HASH, names.CREATED_BY, names.CLAIM_UID)


def pod_name(sandbox: Sandbox) -> str:
    """The name of a Sandbox's pod: its own, unless it adopted another."""
    return sandbox.metadata.annotations.get(names.POD_NAME) or sandbox.metadata.name


def claim_name(volume: str, sandbox: Sandbox) -> str:
    """The name of a volume claim."""
    return f"{volume}-{sandbox.metadata.name}"


def pod_document(sandbox: Sandbox, *, has_runtime: bool, has_idle_class: bool = False) -> Document:
    """The pod to make. `has_runtime`: there is a runtime class `sandbox`, which pods have that name none, or the one of the strength that they demand.

    `has_idle_class`: there is a priority class for pods that wait in pools, which are work that gives way to any other.
    """
    meta = sandbox.metadata
    spec = dict(sandbox.spec.pod_template.spec)
    if has_idle_class and is_idle(sandbox) and not spec.get("priorityClassName") and spec.get("priority") is None:
        spec["priorityClassName"] = names.IDLE_PRIORITY_CLASS
    if has_runtime and not spec.get("runtimeClassName"):
        demanded = pod_annotations(sandbox).get(names.MIN_ISOLATION, "")
        spec["runtimeClassName"] = names.RUNTIME_OF_STRENGTH.get(demanded, names.RUNTIME_CLASS)
    if claimed := [one.metadata.name for one in sandbox.spec.volume_claim_templates]:
        others = [one for one in spec.get("volumes") or () if one.get("name") not in claimed]
        spec["volumes"] = others + [
            {"name": name, "persistentVolumeClaim": {"claimName": claim_name(name, sandbox)}} for name in claimed
        ]
    metadata = {
        "name": meta.name,
        "namespace": meta.namespace,
        "labels": pod_labels(sandbox),
        "annotations": pod_annotations(sandbox),
        "ownerReferences": [owner_reference(sandbox)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_idle(sandbox: Sandbox) -> bool:
    """Whether a Sandbox waits in a pool."""
    owner = controller_of(sandbox)
    return owner is not None and owner.kind == SandboxWarmPool.kind_info.kind


def pod_labels(sandbox: Sandbox) -> dict[str, str]:
    """The labels that a pod has by its Sandbox."""
    labels = _propagated(sandbox.spec.pod_template.metadata.labels)
    meta = sandbox.metadata
    labels |= {key: meta.labels[key] for key in _OF_SESSIONS if meta.labels.get(key)}
    owner = controller_of(sandbox)
    kept = _OF_EXTENSIONS if owner is None or owner.kind != "SandboxClaim" else _OF_EXTENSIONS[1:]
    labels |= {key: meta.labels[key] for key in kept if meta.labels.get(key)}
    return labels | {names.SANDBOX_NAME_HASH: name_hash(meta.name), names.SANDBOX_NAME: _label_value(meta.name)}


def pod_annotations(sandbox: Sandbox) -> dict[str, str]:
    """The annotations that a pod has by its Sandbox, and the keys that came from its template."""
    template = sandbox.spec.pod_template.metadata
    given = sandbox.metadata.annotations
    annotations = {key: given[key] for key in PASSED_ON if given.get(key)} | _propagated(template.annotations)
    return annotations | {
        names.PROPAGATED_LABELS: ",".join(sorted(_propagated(template.labels))),
        names.PROPAGATED_ANNOTATIONS: ",".join(sorted(_propagated(template.annotations))),
    }


def metadata_patch(pod: Pod, sandbox: Sandbox) -> Document:
    """What must change in a pod's metadata so that it follows its Sandbox; empty if nothing does."""
    labels = _changes(pod.metadata.labels, pod_labels(sandbox), _came_from(pod, names.PROPAGATED_LABELS))
    wanted = pod_annotations(sandbox)
    gone = _came_from(pod, names.PROPAGATED_ANNOTATIONS)
    if names.WARM_POOL not in sandbox.metadata.labels:
        gone = [*gone, names.SAFE_TO_EVICT]  # whoever was claimed is not to be moved by an autoscaler
        labels |= {names.WARM_POOL: None} if names.WARM_POOL in pod.metadata.labels else {}
    wanted |= late_environment.note(sandbox, pod) | _protection(sandbox, pod)
    annotations = _changes(pod.metadata.annotations, wanted, gone)
    patch: Document = {}
    if labels:
        patch["labels"] = labels
    if annotations:
        patch["annotations"] = annotations
    return patch


def is_protected(sandbox: Sandbox, pod: Pod) -> bool:
    """Whether a pod has the mark already, or needs none."""
    return all(pod.metadata.annotations.get(key) == value for key, value in _protection(sandbox, pod).items())


def _protection(sandbox: Sandbox, pod: Pod) -> dict[str, str]:
    """A pod that waited keeps its low priority for life; once it is somebody's, it gives way to nobody for that."""
    began_idle = pod.spec.priority_class_name == names.IDLE_PRIORITY_CLASS
    own = sandbox.spec.pod_template
    if (
        not began_idle
        or is_idle(sandbox)
        or own.spec.get("priorityClassName")
        or names.PREEMPTABLE in own.metadata.annotations
    ):
        return {}
    return {names.PREEMPTABLE: "false"}


def _changes(there: dict[str, str], wanted: dict[str, str], gone: list[str]) -> Document:
    changed: Document = {key: value for key, value in wanted.items() if there.get(key) != value}
    return changed | {key: None for key in gone if key in there and key not in wanted}


def _came_from(pod: Pod, key: str) -> list[str]:
    return [one for one in pod.metadata.annotations.get(key, "").split(",") if one]


def _propagated(template: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in template.items() if not is_reserved(key)}


def _label_value(name: str) -> str:
    return name if len(name) <= 63 else name[:54] + "-" + name_hash(name)
