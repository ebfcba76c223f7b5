"""Reconciles Namespace: what every namespace has from the start, the `default` service account and the cluster's CA.

`namespace_deletion.py` takes care of its end.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.core import ConfigMap, Namespace, ServiceAccount
from hekla.kube.commands import Command, Create, Patch, target_of
from hekla.kube.reconcile import Reconciler, World, reconciler

ROOT_CA = "kube-root-ca.crt"
ROOT_CA_NOTE = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
)


def _namespace_of(obj: ServiceAccount | ConfigMap) -> Iterator[tuple[str, str]]:
    if obj.metadata.name in ("default", ROOT_CA):
        yield "", obj.metadata.namespace


@reconciler(Namespace, wakes={ServiceAccount: _namespace_of}, name="service-accounts")
def reconcile_default_account(namespace: Namespace, world: World, now: datetime) -> Iterator[Command]:
    """Make the `default` service account where it is missing."""
    name = namespace.metadata.name
    if namespace.metadata.deletion_timestamp is None and world.get(ServiceAccount, name, "default") is None:
        yield Create(ServiceAccount, {"metadata": {"name": "default", "namespace": name}})


def root_ca_publisher(ca_pem: str) -> Reconciler:
    """A reconciler that keeps the CA of the API server in every namespace, where pods mount it."""

    @reconciler(Namespace, wakes={ConfigMap: _namespace_of}, name="root-ca")
    def reconcile_root_ca(namespace: Namespace, world: World, now: datetime) -> Iterator[Command]:
        if namespace.metadata.deletion_timestamp is not None:
            return
        name, data = namespace.metadata.name, {"ca.crt": ca_pem}
        present = world.get(ConfigMap, name, ROOT_CA)
        if present is None:
            metadata = {"name": ROOT_CA, "namespace": name, "annotations": {"kubernetes.io/description": ROOT_CA_NOTE}}
            yield Create(ConfigMap, {"metadata": metadata, "data": data})
        elif present.data != data:
            yield Patch(target_of(present), {"data": data})

    return reconcile_root_ca
