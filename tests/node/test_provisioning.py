import asyncio
from datetime import UTC, datetime

import pytest

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.kube.commands import Delete, Event
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
from hekla.testing.reconcilers import decide, writes
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


def claim_of(uid="u", volume="v", phase="Pending", name="c"):
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {**CLAIM["spec"], **({"volumeName": volume} if volume else {}), "storageClassName": ""},
        "status": {"phase": phase},
    }  # fmt: skip


def volume_of(phase="Available", policy="Retain", reference=None, name="v", **annotations):
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": policy}
    if reference is not None:
        spec["claimRef"] = {"namespace": "default", "name": "c", **reference}
    metadata = {"name": name, "annotations": annotations, "resourceVersion": "1"}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase},
    }


def settled(*objects, rounds=8):
    """Both reconcilers until neither has more to say: the world, and the events."""
    world, claims = FakeWorld(*objects), local_provisioner("/volumes")
    events = []
    for _ in range(rounds):
        done = []
        for claim in world.list(PersistentVolumeClaim):
            done += decide(claims, world, "default", claim.metadata.name, now=datetime.now(UTC))
        world.execute(writes(done))
        more = []
        for volume in world.list(PersistentVolume):
            more += decide(reconcile_volume, world, "", volume.metadata.name, now=datetime.now(UTC))
        world.execute(writes(more))
        events += [one for one in (*done, *more) if isinstance(one, Event)]
        if not writes(done) and not writes(more):
            break
    else:
        pytest.fail(f"they never agree: {done} {more}")
    return world, {one.reason: one.message for one in events}


def phases(world):
    volume = world.get(PersistentVolume, "", "v")
    claims = [each.status.phase for each in world.list(PersistentVolumeClaim)]
    return volume.status.phase if volume else None, *claims


@pytest.mark.parametrize("phase", ["Pending", "Bound"])
def test_a_volume_kept_by_name_is_free_until_its_claim_comes_and_then_bound(phase):
    world, _ = settled(volume_of("Pending", reference={}))
    assert phases(world) == ("Available",)
    world, _ = settled(volume_of("Pending", reference={}), claim_of(volume="v", phase=phase))
    assert phases(world) == ("Bound", "Bound")
    assert world.get(PersistentVolume, "", "v").spec.claim_ref.uid == "u"
    world, _ = settled(volume_of("Pending", reference={}), claim_of(volume=""))
    assert phases(world) == ("Bound", "Bound")


@pytest.mark.parametrize(
    ("policy", "phase", "reason"),
    [
        ("Retain", "Released", None),
        ("Delete", "Failed", "VolumeFailedDelete"),
        ("Recycle", "Failed", "VolumeFailedRecycle"),
    ],
)
def test_a_volume_that_people_made_is_released_or_has_failed_once_its_claim_is_gone(policy, phase, reason):
    for claims in ((), (claim_of(uid="another"),)):
        world, events = settled(
            volume_of("Bound", policy, {"uid": "u"}), *(each | {"spec": CLAIM["spec"]} for each in claims)
        )
        assert phases(world)[0] == phase
        assert reason is None or world.get(PersistentVolume, "", "v").status.message == events[reason]


def test_a_claim_whose_volume_is_gone_or_given_to_another_is_lost():
    world, events = settled(claim_of(volume="absent", phase="Bound"))
    assert world.list(PersistentVolumeClaim)[0].status.phase == "Lost"
    assert "has lost its PersistentVolume" in events["ClaimLost"]
    taken = volume_of("Bound", reference={"uid": "w", "name": "d"})
    world, events = settled(taken, claim_of(phase="Bound"), claim_of(uid="w", phase="Bound", name="d"))
    assert phases(world) == ("Bound", "Lost", "Bound")
    assert "Two claims are bound" in events["ClaimMisbound"]
    world, events = settled(taken, claim_of(), claim_of(uid="w", phase="Bound", name="d"))
    assert phases(world) == ("Bound", "Pending", "Bound")
    assert events["FailedBinding"] == 'volume "v" already bound to a different claim.'


def test_a_volume_whose_claim_took_another_is_free_again_or_kept_by_name():
    claim, other = claim_of(volume="w", phase="Bound"), volume_of("Bound", reference={"uid": "u"}, name="w")
    for annotations, reference in (({}, "c"), ({"pv.kubernetes.io/bound-by-controller": "yes"}, None)):
        world, _ = settled(volume_of("Bound", "Retain", {"uid": "u"}, **annotations), other, claim)
        volume = world.get(PersistentVolume, "", "v")
        assert phases(world) == ("Available", "Bound")
        assert (volume.spec.claim_ref and volume.spec.claim_ref.name) == reference
    ours = volume_of("Bound", "Delete", {"uid": "u"}, **{PROVISIONED_BY: PROVISIONER})
    world, _ = settled(ours, other, claim)
    assert phases(world)[0] is None
