import pytest

from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.controlplane.volume_protection import reconcile_claim_protection, reconcile_volume_protection
from hekla.testing.reconcilers import converge
from hekla.testing.world import FakeWorld

AT = "2026-01-01T00:00:00Z"


def claim(leaving=True):
    metadata = {"name": "data", "finalizers": ["kubernetes.io/pvc-protection"]}
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata | ({"deletionTimestamp": AT} if leaving else {}),
    }  # fmt: skip


def pod(node="n", phase="Running"):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": node, "volumes": [volume]}, "status": {"phase": phase},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("objects", "stays"),
    [
        ([claim()], False),
        ([claim(), pod()], True),
        ([claim(), pod(phase="Succeeded")], False),
        ([claim(), pod(node="", phase="Pending")], False),
        ([claim(leaving=False)], True),
    ],
)
def test_a_claim_stays_while_a_pod_uses_it(now, objects, stays):
    world = FakeWorld(*objects)
    converge(reconcile_claim_protection, world, "default", "data", now=now)
    assert (world.get(PersistentVolumeClaim, "default", "data") is not None) == stays


@pytest.mark.parametrize(("phase", "stays"), [("Bound", True), ("Released", False)])
def test_a_volume_stays_while_it_is_bound(now, phase, stays):
    metadata = {"name": "pv", "finalizers": ["kubernetes.io/pv-protection"], "deletionTimestamp": AT}
    world = FakeWorld(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "status": {"phase": phase}}
    )
    converge(reconcile_volume_protection, world, "", "pv", now=now)
    assert (world.get(PersistentVolume, "", "pv") is not None) == stays
