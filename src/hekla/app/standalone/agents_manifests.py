"""What the gateway of sandboxes needs on a cluster beyond what every component has: a place for its sessions, and a token that nodes take.

One replica, because its sessions are in a file; whoever sets STORE_TYPE to redis or valkey, and mounts one `sandboxes.key` for all, may have more.
"""

from hekla.api.agents.names import IDLE_PRIORITY, IDLE_PRIORITY_CLASS, IDLE_WORDS
from hekla.api.agents.node_contract import NODE_AUDIENCE
from hekla.api.meta import Document

PORT, STATE, NODE_TOKEN = 8090, "/var/lib/hekla", "/var/run/secrets/hekla.dev/nodes"
TOKEN_LIFE_S = 3600


def claim(metadata: Document) -> Document:
    """Rows of sessions and the keys of the gateway outlive its pod."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def idle_class(labels: Document) -> Document:
    """The priority of sandboxes that wait in a pool; without it they have that of any pod, and make way for nobody of the same."""
    told = {"name": IDLE_PRIORITY_CLASS, "labels": labels}
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": told, "value": IDLE_PRIORITY,
        "preemptionPolicy": "Never", "description": IDLE_WORDS,
    }  # fmt: skip


def arguments() -> list[str]:
    """Behind `hekla run agents`."""
    return [f"--agents-address=0.0.0.0:{PORT}", f"--agents-directory={STATE}", f"--node-token={NODE_TOKEN}/token"]


def volumes(name: str) -> list[Document]:
    """The token is of the gateway's account, for nodes alone; the kubelet keeps it fresh."""
    token = {"serviceAccountToken": {"audience": NODE_AUDIENCE, "expirationSeconds": TOKEN_LIFE_S, "path": "token"}}
    return [
        {"name": "state", "persistentVolumeClaim": {"claimName": name}},
        {"name": "node-token", "projected": {"sources": [token]}},
    ]


def mounts() -> list[Document]:
    """Where they are seen."""
    return [
        {"name": "state", "mountPath": STATE},
        {"name": "node-token", "mountPath": NODE_TOKEN, "readOnly": True},
    ]


def rollout() -> Document:
    """Never two at once over one file."""
    return {"replicas": 1, "strategy": {"type": "Recreate"}}
