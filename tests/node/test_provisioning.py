import asyncio
from datetime import UTC, datetime

import pytest

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.kube.commands import Delete
from hekla.kube.runtime import Runtime
from hekla.node.provisioning import (
    PROVISIONED_BY,
    PROVISIONER,
    default_storage_class,
    local_provisioner,
    reconcile_ephemeral_claims,
    reconcile_volume,
)
from hekla.node.volume_directories import VolumeDirectories
from hekla.testing.reconcilers import decide
from hekla.testing.world import FakeWorld

CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
SPEC = {
    "containers": [
        {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo $HOSTNAME >> /data/f; cat /data/f"],
         "volumeMounts": [{"name": "d", "mountPath": "/data"}]}
    ],
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
}  # fmt: skip


def provisioned(live, story):
    """Live a story with the provisioner running."""

    async def told(cluster):
        directory = cluster.directory / "volumes"
        await cluster.client.create(StorageClass, default_storage_class())
        directories = VolumeDirectories(cluster.informers, directory)
        await directories.start()
        reconcilers = [local_provisioner(str(directory)), reconcile_volume, reconcile_ephemeral_claims]
        runtime = Runtime(cluster.informers, reconcilers)
        work = asyncio.create_task(runtime.run())
        try:
            await story(cluster, directory)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await directories.close()

    live(told)


def test_a_claim_waits_for_its_first_pod_and_keeps_data_for_the_next(live):
    async def story(cluster, directory):
        await cluster.client.create(PersistentVolumeClaim, CLAIM, "default")
        await cluster.event("WaitForFirstConsumer")
        _, log = await cluster.run("one", SPEC)
        assert log == "one\n"
        _, log = await cluster.run("two", SPEC)
        assert log == "one\ntwo\n"
        claim = await cluster.client.get(PersistentVolumeClaim, "data", "default")
        assert claim.status.phase == "Bound"
        volume = await cluster.client.get(PersistentVolume, claim.spec.volume_name)
        assert volume.spec.node_affinity.required.node_selector_terms[0].match_expressions[0].values == ["n0"]

    provisioned(live, story)


def test_a_claim_that_goes_takes_its_volume_and_directory_along(live):
    async def story(cluster, directory):
        await cluster.client.create(PersistentVolumeClaim, CLAIM, "default")
        await cluster.run("one", SPEC)
        assert len(list(directory.iterdir())) == 1
        await cluster.client.delete(Pod, "one", "default")
        await cluster.gone("one")
        await cluster.client.delete(PersistentVolumeClaim, "data", "default")
        async with asyncio.timeout(30):
            while list(directory.iterdir()) or (await cluster.client.list(PersistentVolume)).items:
                await asyncio.sleep(0.01)

    provisioned(live, story)


def test_an_ephemeral_volume_is_a_claim_that_the_pod_owns(live):
    async def story(cluster, directory):
        template = {"metadata": {"labels": {"x": "y"}}, "spec": CLAIM["spec"]}
        spec = {**SPEC, "volumes": [{"name": "d", "ephemeral": {"volumeClaimTemplate": template}}]}
        pod, log = await cluster.run("one", spec)
        assert log == "one\n"
        claim = await cluster.client.get(PersistentVolumeClaim, "one-d", "default")
        assert claim.metadata.owner_references[0].uid == pod.metadata.uid
        assert (claim.metadata.labels, claim.status.phase) == ({"x": "y"}, "Bound")

    provisioned(live, story)


@pytest.mark.parametrize(("provisioned_by", "is_deleted"), [(PROVISIONER, True), ("somebody.else/csi", False)])
def test_only_volumes_of_our_own_making_are_deleted_with_their_claim(provisioned_by, is_deleted):
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "v", "annotations": {PROVISIONED_BY: provisioned_by}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "default", "name": "gone", "uid": "u"},
        },
    }
    commands = decide(reconcile_volume, FakeWorld(volume), "", "v", now=datetime.now(UTC))
    assert any(isinstance(command, Delete) for command in commands) == is_deleted
