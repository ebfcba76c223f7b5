"""The objects that a fresh platform starts with, in waves: what a later wave needs stands in an earlier one."""

from collections.abc import Iterator, Sequence

from hekla.api import agents, foreign, kthena, volcano
from hekla.api.agents.names import IDLE_PRIORITY, IDLE_PRIORITY_CLASS, IDLE_WORDS
from hekla.api.agents.node_contract import NODE_RUNTIME_LABEL
from hekla.api.meta import Document, Resource
from hekla.apiserver.auth.bootstrap import bootstrap_objects

Creation = tuple[str, Document]
"""(collection path, document)."""


def first_objects() -> Iterator[Sequence[Creation]]:
    """Roles, priority classes, storage and the CRDs of Hekla's dialects; then the queues."""
    yield [*_roles(), *_priority_classes(), *_crds(), *_runtime_classes(), *_accounts(), _storage()]
    yield list(_queues())


def _roles() -> Iterator[Creation]:
    for resource, document in bootstrap_objects():
        yield f"/apis/rbac.authorization.k8s.io/v1/{resource.partition('.')[0]}", document


def _priority_classes() -> Iterator[Creation]:
    classes = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
    for name, value in classes:
        document = {"metadata": {"name": name}, "value": value, "description": "Used for pods that the platform needs."}
        yield "/apis/scheduling.k8s.io/v1/priorityclasses", document
    idle = {"metadata": {"name": IDLE_PRIORITY_CLASS}, "value": IDLE_PRIORITY, "preemptionPolicy": "Never"}
    yield "/apis/scheduling.k8s.io/v1/priorityclasses", idle | {"description": IDLE_WORDS}


def _runtime_classes() -> Iterator[Creation]:
    for runtime in ("process", "sandbox", "simulated"):
        yield "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": runtime}, "handler": runtime}
    for runtime in ("oci", "gvisor", "microvm"):  # not every host has what these need
        chosen = {"nodeSelector": {f"{NODE_RUNTIME_LABEL}{runtime}": "true"}}
        document = {"metadata": {"name": runtime}, "handler": runtime, "scheduling": chosen}
        yield "/apis/node.k8s.io/v1/runtimeclasses", document


def _accounts() -> Iterator[Creation]:
    # the controller makes them for every namespace; these two are there before the first pod can ask
    for namespace in ("default", "kube-system"):
        yield f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}


def _storage() -> Creation:
    from hekla.node.provisioning import default_storage_class

    return "/apis/storage.k8s.io/v1/storageclasses", default_storage_class()


def _crds() -> Iterator[Creation]:
    from hekla.api.crd import crd_document

    for kind in custom_kinds():
        yield "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_document(kind, with_older=True)


def custom_kinds() -> list[type[Resource]]:
    """The kinds that are custom resources on a real cluster."""
    return [*volcano.VOLCANO_KINDS, *kthena.KTHENA_KINDS, *agents.AGENT_KINDS, *foreign.FOREIGN_KINDS]


def _queues() -> Iterator[Creation]:
    queue = volcano.Queue.kind_info
    root = {"metadata": {"name": "root"}, "spec": {"weight": 1, "reclaimable": False}}
    default = {"metadata": {"name": "default"}, "spec": {"weight": 1, "reclaimable": True}}
    for document in (root, default):
        yield queue.path(), {"apiVersion": queue.api_version, "kind": queue.kind, **document}
