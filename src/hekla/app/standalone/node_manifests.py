"""Nodes whose agent is Hekla's, in a cluster of machines with kubelets: off unless asked for (`hekla install --with node`).

A DaemonSet in a namespace of its own, for it is privileged: it makes namespaces and cgroups for what it runs. It takes the machines that
are labelled for it, and as much of each as its container's limits say; the machine's own kubelet counts the same as taken. The runtime
classes lead pods there, past the taint. Simulated nodes (`--with simulated-nodes`) are an ordinary Deployment.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from hekla.api.agents.names import RUNTIME_CLASS
from hekla.api.agents.node_contract import NODE_RUNTIME_LABEL
from hekla.api.meta import Document
from hekla.app.front_proxy import CONFIG_MAP, NAMESPACE, READER
from hekla.app.standalone.node_settings import NODE_KEY, PORT, PROCESS, PROCESSES_LABEL, SIMULATED
from hekla.app.standalone.settings import NODE
from hekla.node.registration import LEASE_NAMESPACE

HOST_LABEL: Final = "hekla.dev/host"
"""Label of the machines that are to have such a node; not of the nodes themselves."""
METRICS_PORT: Final = 10261
"""On the machine's loopback alone: nobody is asked there who he is. The kubelet's probes come from the machine."""
LOOPBACK: Final = "127.0.0.1"
DIRECTORY: Final = "/var/lib/hekla"
SIMULATED_NODES: Final = "simulated-nodes"
PROCESSES: Final = "node-processes"
"""Beside `node`: its nodes take pods that are processes of the machine, and a runtime class leads there."""
_RBAC: Final = "rbac.authorization.k8s.io"


def home_of(namespace: str) -> str:
    """The namespace of the DaemonSet: pods of the others' may have no privileges."""
    return f"{namespace}-nodes"


def place(namespace: str, labels: Mapping[str, str]) -> Document:
    """That namespace."""
    told = {**labels, "pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home_of(namespace), "labels": told}}


def may_ask_whom_to_believe(account: str, namespace: str, labels: Mapping[str, str]) -> Document:
    """Whose certificates API servers show."""
    return {
        "apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding",
        "metadata": {"name": f"{account}-{CONFIG_MAP}", "namespace": NAMESPACE, "labels": dict(labels)},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }  # fmt: skip


def lease_roles(account: str, namespace: str, labels: Mapping[str, str]) -> Iterator[Document]:
    """Simulated nodes keep their leases as one account; a real one does it as the node that it is."""
    metadata = {"name": account, "namespace": LEASE_NAMESPACE, "labels": dict(labels)}
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch"]}
    yield {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    yield {
        "apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }  # fmt: skip


def runtime_classes(
    labels: Mapping[str, str], *, simulated: bool = False, processes: bool = False
) -> Iterator[Document]:
    """By which pods ask for these nodes. `gvisor` is not among them: clusters have a class of that name that leads elsewhere."""
    ways = {name: {f"{NODE_RUNTIME_LABEL}{name}": "true"} for name in (RUNTIME_CLASS, "oci", "microvm")}
    if processes:
        ways[PROCESS] = {PROCESSES_LABEL: "true"}
    if simulated:
        ways = {SIMULATED: {"hekla.dev/runtime": SIMULATED}}
    for name, chosen in ways.items():
        scheduling = {"nodeSelector": chosen, "tolerations": [{"key": NODE_KEY, "operator": "Exists"}]}
        yield {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name, "labels": dict(labels)},
            "handler": name, "scheduling": scheduling,
        }  # fmt: skip


def daemon_set(metadata: Document, selector: Mapping[str, str], image: str, *, processes: bool = False) -> Document:
    """One agent on each machine that is labelled for it; `processes`: it takes pods that are no sandboxes."""
    template = {"metadata": {"labels": metadata["labels"]}, "spec": _pod(metadata["name"], image, processes=processes)}
    # one after another: sandboxes end with the container of their agent, and are made anew
    rollout = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    spec = {"selector": {"matchLabels": dict(selector)}, "updateStrategy": rollout, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}


def _pod(account: str, image: str, *, processes: bool) -> Document:
    return {
        "serviceAccountName": account,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {HOST_LABEL: "true"},
        "hostNetwork": True,  # API servers and gateways find the endpoint at the machine's address
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 60,
        "containers": [_container(image, processes=processes)],
        "volumes": [
            {"name": "state", "hostPath": {"path": DIRECTORY, "type": "DirectoryOrCreate"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }


def _container(image: str, *, processes: bool) -> Document:
    size = {"cpu": "2", "memory": "4Gi"}
    return {
        "name": NODE,
        "image": image,
        "command": ["hekla"],
        "args": [
            "run", NODE, "--node-name=$(MACHINE)-hekla", "--node-address=$(ADDRESS)", f"--node-listen=0.0.0.0:{PORT}",
            f"--node-directory={DIRECTORY}/node", f"--metrics-address={LOOPBACK}:{METRICS_PORT}",
            "--cpu-per-node=$(CPU)", "--memory-per-node=$(MEMORY)",
            *(["--allow-processes"] if processes else []),
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "NUMBA_CACHE_DIR", "value": "/tmp/numba"},
            {"name": "MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}, {"name": "endpoint", "containerPort": PORT}],
        "livenessProbe": {"httpGet": {"host": LOOPBACK, "path": "/healthz", "port": "metrics"}, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"host": LOOPBACK, "path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
        "resources": {"requests": size, "limits": size},
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [{"name": "state", "mountPath": DIRECTORY}, {"name": "scratch", "mountPath": "/tmp"}],
    }  # fmt: skip
