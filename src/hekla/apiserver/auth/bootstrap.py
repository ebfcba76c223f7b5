"""The roles and bindings that every cluster has: who may administer, edit, view, and discover.

They are created at the first start and never overwritten, so that an administrator's changes stay. `admin`, `edit`
and `view` aggregate what carries their label, so that custom resources join them by a label.
"""

from collections.abc import Iterator, Sequence

from hekla.api.meta import Document
from hekla.apiserver.auth.openid import CONFIGURATION_PATH, KEYS_PATH

RBAC = "rbac.authorization.k8s.io/v1"
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]

VOLCANO_GROUPS = ["batch.volcano.sh", "scheduling.volcano.sh", "bus.volcano.sh", "flow.volcano.sh"]

_WORKLOADS: list[tuple[list[str], list[str]]] = [
    ([""], ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "replicationcontrollers", "services"]),
    (["apps"], ["daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale", "statefulsets",
                "statefulsets/scale"]),
    (["batch"], ["cronjobs", "jobs"]),
    (["autoscaling"], ["horizontalpodautoscalers"]),
    (["policy"], ["poddisruptionbudgets"]),
    (["networking.k8s.io"], ["ingresses", "networkpolicies"]),
]  # fmt: skip

_SEEN_ONLY: list[tuple[list[str], list[str]]] = [
    ([""], ["bindings", "events", "limitranges", "namespaces", "namespaces/status", "pods/log", "pods/status",
            "resourcequotas", "resourcequotas/status", "services/status", "persistentvolumeclaims/status"]),
    (["apps"], ["controllerrevisions", "daemonsets/status", "deployments/status", "replicasets/status",
                "statefulsets/status"]),
    (["batch"], ["cronjobs/status", "jobs/status"]),
    (["policy"], ["poddisruptionbudgets/status"]),
    (["discovery.k8s.io"], ["endpointslices"]),
]  # fmt: skip


def bootstrap_objects() -> Iterator[tuple[str, Document]]:
    """(resource, document) of every role and binding a fresh platform has."""
    for role in _cluster_roles():
        yield "clusterroles.rbac.authorization.k8s.io", role
    for binding in _bindings():
        yield "clusterrolebindings.rbac.authorization.k8s.io", binding


def _cluster_roles() -> Iterator[Document]:
    yield _role("cluster-admin", [_rule(["*"], ["*"], ["*"]), _paths(["*"], ["*"])])
    for name in ("admin", "edit", "view"):
        yield _aggregating(name)
    yield _role("system:aggregate-to-view", _view_rules(), joins=["view", "edit", "admin"])
    yield _role("system:aggregate-to-edit", _edit_rules(), joins=["edit", "admin"])
    yield _role("system:aggregate-to-admin", _admin_rules(), joins=["admin"])
    paths = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version",
             "/version/"]  # fmt: skip
    yield _role("system:discovery", [_paths(["get"], paths)])
    public = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
    yield _role("system:public-info-viewer", [_paths(["get"], public)])
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    yield _role(
        "system:basic-user",
        [
            _rule(["create"], ["authorization.k8s.io"], reviews),
            _rule(["create"], ["authentication.k8s.io"], ["selfsubjectreviews"]),
        ],
    )
    documents = [f"{path}{end}" for path in (CONFIGURATION_PATH, KEYS_PATH) for end in ("", "/")]
    yield _role("system:service-account-issuer-discovery", [_paths(["get"], documents)])


def _view_rules() -> list[Document]:
    readable = [_rule(READ, groups, resources) for groups, resources in [*_WORKLOADS, *_SEEN_ONLY]]
    accounts = _rule(READ, [""], ["serviceaccounts"])
    explanations = _rule(["get"], ["scheduling.hekla.dev"], ["explanations"])
    return [*readable, accounts, _rule(READ, VOLCANO_GROUPS, ["*"]), explanations]


def _edit_rules() -> list[Document]:
    writable = [_rule(WRITE, groups, resources) for groups, resources in _WORKLOADS]
    connect = _rule(
        [*READ, *WRITE], [""], ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "services/proxy"]
    )
    secrets = _rule([*READ, *WRITE], [""], ["secrets"])
    accounts = _rule([*WRITE, "impersonate"], [""], ["serviceaccounts"])
    others = _rule(["create"], [""], ["pods/eviction", "serviceaccounts/token"])
    leases = _rule([*READ, *WRITE], ["coordination.k8s.io"], ["leases"])
    volcano = [
        _rule(WRITE, ["batch.volcano.sh", "flow.volcano.sh", "bus.volcano.sh"], ["*"]),
        _rule(WRITE, ["scheduling.volcano.sh"], ["podgroups"]),
    ]
    return [*writable, connect, secrets, accounts, others, leases, *volcano]


def _admin_rules() -> list[Document]:
    return [
        _rule([*READ, *WRITE], ["rbac.authorization.k8s.io"], ["roles", "rolebindings"]),
        _rule(["create"], ["authorization.k8s.io"], ["localsubjectaccessreviews"]),
    ]


def _bindings() -> Iterator[Document]:
    yield _binding("cluster-admin", "cluster-admin", ["system:masters"])
    yield _binding("system:discovery", "system:discovery", ["system:authenticated"])
    yield _binding("system:basic-user", "system:basic-user", ["system:authenticated"])
    everybody = ["system:authenticated", "system:unauthenticated"]
    yield _binding("system:public-info-viewer", "system:public-info-viewer", everybody)
    discovery = "system:service-account-issuer-discovery"
    yield _binding(discovery, discovery, ["system:serviceaccounts"])


def _rule(verbs: Sequence[str], groups: Sequence[str], resources: Sequence[str]) -> Document:
    return {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}


def _paths(verbs: Sequence[str], paths: Sequence[str]) -> Document:
    return {"nonResourceURLs": list(paths), "verbs": list(verbs)}


def _role(name: str, rules: list[Document], joins: Sequence[str] = ()) -> Document:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults", **{AGGREGATE + one: "true" for one in joins}}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": metadata, "rules": rules}


def _aggregating(name: str) -> Document:
    role = _role(name, [])
    role["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {AGGREGATE + name: "true"}}]}
    return role


def _binding(name: str, role: str, groups: Sequence[str]) -> Document:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group} for group in groups]
    metadata = {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
    return {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": reference,
        "subjects": subjects,
    }
