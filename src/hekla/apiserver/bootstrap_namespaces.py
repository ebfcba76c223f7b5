"""The four namespaces that are always there."""

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import render_of, tail_of
from hekla.apiserver.store import Key, RevisionMismatchError

ALWAYS_THERE = ("default", "kube-system", "kube-public", "kube-node-lease")


async def ensure_namespaces(backend: Backend) -> None:
    """Make those that are missing."""
    served = backend.registry.stored("namespaces")
    if served is None:
        return
    for name in ALWAYS_THERE:
        key = Key("namespaces", "", name)
        if backend.store.get(key) is not None:
            continue
        document = _namespace(backend, name)
        render = render_of(served.storage_head, tail_of(document))
        labels, fields = document["metadata"]["labels"], served.fields_of(document)
        try:
            await backend.store.put(key, render, expected=0, labels=labels, fields=fields)
        except RevisionMismatchError:
            continue  # somebody else has just made it


def _namespace(backend: Backend, name: str) -> Document:
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": backend.uids(),
            "creationTimestamp": backend.now(),
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
