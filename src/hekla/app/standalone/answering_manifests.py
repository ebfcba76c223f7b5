"""The manifests by which API servers find the scheduler's answers (docs/adr/0017); `manifests.py` puts them among the others."""

from collections.abc import Iterator, Mapping

from hekla.api.explanation import EXPLANATION
from hekla.api.meta import Document
from hekla.app.front_proxy import CONFIG_MAP, NAMESPACE, READER
from hekla.app.standalone.answering import PORT_NAME, USUAL, place_of
from hekla.app.standalone.settings import SCHEDULER


def answers(namespace: str, labels: Mapping[str, str], port: int, lease: str) -> Iterator[Document]:
    """The Services select nothing: the replica that leads says where they lead. One of another name than `volcano` has two."""
    ports = [{"name": PORT_NAME, "port": 443, "targetPort": port}]
    for service in dict.fromkeys((USUAL.service, place_of(lease).service)):
        home = {"name": service, "namespace": namespace, "labels": dict(labels)}
        yield {"apiVersion": "v1", "kind": "Service", "metadata": home, "spec": {"ports": ports}}
    yield from _roles(namespace, labels)


def _roles(namespace: str, labels: Mapping[str, str]) -> Iterator[Document]:
    """Whoever may look at a namespace may ask why its pods wait; and the scheduler may read whose word to believe."""
    group = "rbac.authorization.k8s.io"
    joins = {f"{group}/aggregate-to-{one}": "true" for one in ("view", "edit", "admin")}
    rule = {"apiGroups": [EXPLANATION.group], "resources": [EXPLANATION.plural], "verbs": ["get"]}
    metadata: Document = {"name": "hekla-explanations", "labels": {**labels, **joins}}
    yield {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    yield {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"hekla-scheduler-{CONFIG_MAP}", "namespace": NAMESPACE, "labels": dict(labels)},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": f"hekla-{SCHEDULER}", "namespace": namespace}],
    }
