"""What Kthena 1.0 leaves in a cluster for one ModelServing of two groups, prefill with a worker and decode: names, labels,
revisions by Go's hashes, and ControllerRevisions as Go writes structs. Written down from its controller's code
(pkg/model-serving-controller, Apache License 2.0).
"""

from typing import Any

from hekla.api.meta import Document

REVISION, PREFILL_HASH, DECODE_HASH = "5c7f9b8d6", "7b4d9c5f8", "68f5bcd97"
NAME, NAMESPACE, UID = "qwen", "default", "6c5a2b1e-take-over"
OWNER = {
    "apiVersion": "workload.serving.volcano.sh/v1alpha1",
    "kind": "ModelServing",
    "name": NAME,
    "uid": UID,
    "blockOwnerDeletion": True,
    "controller": True,
}


def engine(name: str) -> Document:
    """The container as the user wrote it."""
    return {
        "name": name,
        "image": "vllm/vllm-openai:v0.11.0",
        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "0.5", "nvidia.com/gpu": 1}, "requests": {"cpu": "0.5", "nvidia.com/gpu": 1}},
        "stdin": False,
    }


def spec() -> Document:
    """The spec as it is stored: written by hand, defaulted by the CRD."""
    roles = [
        {
            "name": "prefill",
            "replicas": 1,
            "workerReplicas": 1,
            "maxUnavailable": 1,
            "entryTemplate": {"metadata": {"labels": {"app": "p"}}, "spec": {"containers": [engine("leader")]}},
            "workerTemplate": {"spec": {"containers": [engine("worker")], "hostNetwork": False}},
        },
        {
            "name": "decode",
            "replicas": 2,
            "workerReplicas": 0,
            "maxUnavailable": 1,
            "entryTemplate": {"spec": {"containers": [engine("leader")]}},
        },
    ]
    return {
        "replicas": 2,
        "schedulerName": "volcano",
        "recoveryPolicy": "ServingGroupRecreate",
        "rolloutStrategy": {"type": "ServingGroupRollingUpdate"},
        "template": {"restartGracePeriodSeconds": 60, "roles": roles},
    }


def _as_go_writes(container: Document) -> Document:
    """Amounts in canonical form, what is false left out, what is empty but no pointer written."""
    kept = {key: value for key, value in container.items() if value is not False}
    amounts = {"cpu": "500m", "nvidia.com/gpu": "1"}
    return {**kept, "resources": {"limits": amounts, "requests": amounts}}


def revision() -> Document:
    """The ControllerRevision."""
    roles: list[Document] = []
    for role in spec()["template"]["roles"]:
        made = {**role, "entryTemplate": _template(role["entryTemplate"])}
        if "workerTemplate" in role:
            made["workerTemplate"] = _template(role["workerTemplate"])
        roles.append(made)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": _metadata(f"{NAME}-{REVISION}", {"modelserving.volcano.sh/revision": REVISION}),
        "data": {"data": roles},
        "revision": 1,
    }


def _template(template: Document) -> Document:
    containers = [_as_go_writes(one) for one in template["spec"]["containers"]]
    return {**template, "spec": {"containers": containers}}


def _metadata(name: str, labels: dict[str, str], **more: Any) -> Document:
    own = {"modelserving.volcano.sh/name": NAME, **labels}
    return {"name": name, "namespace": NAMESPACE, "labels": own, "ownerReferences": [OWNER], **more}


def status() -> Document:
    """As Kthena last wrote it."""
    available = {
        "type": "Available",
        "status": "True",
        "reason": "AllGroupsReady",
        "message": "All Serving groups are ready",
        "lastTransitionTime": "2025-12-31T00:00:00Z",
    }
    progressing = {
        **available,
        "type": "Progressing",
        "status": "False",
        "reason": "GroupProgressing",
        "message": "Some",
    }
    selector = (
        "modelserving.volcano.sh/entry=true,modelserving.volcano.sh/name=qwen,"
        "modelserving.volcano.sh/role=prefill,modelserving.volcano.sh/role-id=prefill-0"
    )
    return {
        "observedGeneration": 1,
        "replicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 2,
        "availableReplicas": 2,
        "currentRevision": REVISION,
        "updateRevision": REVISION,
        "labelSelector": selector,
        "conditions": [progressing, available],
    }


def pods() -> list[Document]:
    """Eight pods that have run for a day."""
    return [
        _pod(group, role, j, index)
        for group in (0, 1)
        for role, j, index in (("prefill", 0, 0), ("prefill", 0, 1), ("decode", 0, 0), ("decode", 1, 0))
    ]


def _pod(group: int, role: str, j: int, index: int) -> Document:
    labels = {
        "modelserving.volcano.sh/group-name": f"{NAME}-{group}",
        "modelserving.volcano.sh/role": role,
        "modelserving.volcano.sh/role-id": f"{role}-{j}",
        "modelserving.volcano.sh/revision": REVISION,
        "modelserving.volcano.sh/role-template-hash": PREFILL_HASH if role == "prefill" else DECODE_HASH,
        **({"modelserving.volcano.sh/entry": "true"} if index == 0 else {}),
    }
    annotations = {"scheduling.k8s.io/group-name": f"{NAME}-{group}", "volcano.sh/task-spec": f"{role}-{j}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(f"{NAME}-{group}-{role}-{j}-{index}", labels, annotations=annotations),
        "spec": {"containers": [_as_go_writes(engine("leader"))], "nodeName": "gpu-1", "schedulerName": "volcano"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def gangs() -> list[Document]:
    """The PodGroups, as Volcano's webhook left them."""
    shapes = (("prefill", 2, 1), ("decode", 1, 2))
    policies = [
        {
            "name": role,
            "labelSelector": {
                "matchLabels": {"modelserving.volcano.sh/name": NAME, "modelserving.volcano.sh/role": role}
            },
            "matchLabelKeys": ["modelserving.volcano.sh/role-id"],
            "subGroupSize": size,
            "minSubGroups": least,
        }
        for role, size, least in shapes
    ]
    return [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": _metadata(
                f"{NAME}-{group}",
                {"modelserving.volcano.sh/group-name": f"{NAME}-{group}"},
                annotations={"scheduling.k8s.io/group-name": f"{NAME}-{group}"},
            ),
            "spec": {
                "minMember": 4,
                "minResources": {"cpu": "2", "nvidia.com/gpu": "4"},
                "queue": "default",
                "subGroupPolicy": policies,
            },
            "status": {"phase": "Running"},
        }
        for group in (0, 1)
    ]


def services() -> list[Document]:
    """The headless services."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(
                f"{NAME}-{group}-prefill-0-0",
                {
                    "modelserving.volcano.sh/group-name": f"{NAME}-{group}",
                    "modelserving.volcano.sh/role": "prefill",
                    "modelserving.volcano.sh/role-id": "prefill-0",
                },
            ),
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True},
        }
        for group in (0, 1)
    ]


def serving() -> Document:
    """The ModelServing itself."""
    return {
        "apiVersion": OWNER["apiVersion"],
        "kind": "ModelServing",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1},
        "spec": spec(),
        "status": status(),
    }


def everything() -> list[Document]:
    """All of it but the ModelServing."""
    return [revision(), *pods(), *gangs(), *services()]
