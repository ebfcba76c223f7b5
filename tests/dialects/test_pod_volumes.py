from typing import Any

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.dialects.pod_volumes import VolumeDemands, volume_demands
from hekla.dialects.surroundings import EmptySurroundings
from hekla.placement.constraint import Operator


class Storage(EmptySurroundings):
    def __init__(self, **claim: Any) -> None:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", **claim.pop("spec", {})}
        document = {"metadata": {"name": "data", "namespace": "default", **claim.pop("metadata", {})}, "spec": spec}
        self.the_claim = msgspec.convert(document, PersistentVolumeClaim)
        self.the_class: StorageClass | None = None
        self.volumes: list[PersistentVolume] = []

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self.the_claim if name == "data" else None

    def storage_class(self, name: str) -> StorageClass | None:
        return self.the_class

    def volume(self, name: str) -> PersistentVolume | None:
        return next((v for v in self.volumes if v.metadata.name == name), None)

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        return self.volumes

    def with_class(self, **fields: Any) -> "Storage":
        document = {"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer", **fields}
        self.the_class = msgspec.convert(document, StorageClass)
        return self

    def with_volume(self, name: str, node: str, *, size: str = "10Gi", **spec: Any) -> "Storage":
        term = {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}
        affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if node else {}
        whole = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], **affinity, **spec}
        self.volumes.append(msgspec.convert({"metadata": {"name": name}, "spec": whole}, PersistentVolume))
        return self


def demands(storage: EmptySurroundings, claim: str = "data") -> VolumeDemands:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": "default"}, "spec": {"volumes": volumes}}, Pod)
    return volume_demands(pod, storage)


def nodes_of(found: VolumeDemands) -> list[list[str]]:
    return [
        [value for term in terms for r in (*term.labels, *term.names) for value in r.values] for terms in found.terms
    ]


@pytest.mark.parametrize(
    ("storage", "claim", "sentence"),
    [
        (Storage(), "other", 'persistentvolumeclaim "other" not found'),
        (Storage(), "data", "pod has unbound immediate PersistentVolumeClaims"),
        (
            Storage().with_class(volumeBindingMode="Immediate"),
            "data",
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            Storage(spec={"volumeName": "gone"}),
            "data",
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"',
        ),
        (
            Storage(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            "data",
            'persistentvolumeclaim "data" is being deleted',
        ),
        (
            Storage().with_class(provisioner="kubernetes.io/no-provisioner"),
            "data",
            "node(s) didn't find available persistent volumes to bind",
        ),
    ],
)
def test_a_claim_that_cannot_serve_yet_blocks_the_pod_and_says_why(storage: Storage, claim: str, sentence: str) -> None:
    blocked = demands(storage, claim).blocked
    assert blocked is not None
    assert blocked.sentence == sentence


def test_a_bound_claim_allows_the_nodes_that_reach_its_volume() -> None:
    assert nodes_of(demands(Storage(spec={"volumeName": "v1"}).with_volume("v1", "n1"))) == [["n1"]]


def test_a_volume_that_is_reached_everywhere_demands_nothing() -> None:
    assert demands(Storage(spec={"volumeName": "v1"}).with_volume("v1", "")) == VolumeDemands()


def test_a_claim_that_waits_for_its_consumer_allows_every_node_or_the_topologies_of_its_class() -> None:
    assert demands(Storage().with_class(provisioner="x")) == VolumeDemands(attached=(("x", "default/data"),))
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]
    (terms,) = demands(Storage().with_class(provisioner="x", allowedTopologies=topologies)).terms
    assert terms[0].labels[0].operator is Operator.IN
    assert terms[0].labels[0].values == ("a", "b")


def test_once_a_node_was_chosen_the_claim_stays_with_it() -> None:
    chosen = {"annotations": {"volume.kubernetes.io/selected-node": "n7"}}
    assert nodes_of(demands(Storage(metadata=chosen).with_class(provisioner="x"))) == [["n7"]]


def test_without_a_provisioner_free_volumes_that_are_large_enough_are_the_choice_the_smallest_first() -> None:
    storage = Storage(spec={"resources": {"requests": {"storage": "5Gi"}}}).with_class(
        provisioner="kubernetes.io/no-provisioner"
    )
    storage.with_volume("small", "n1", size="1Gi").with_volume("right", "n2").with_volume(
        "taken", "n3", claimRef={"namespace": "default", "name": "other"}
    )
    storage.with_volume("larger", "n4", size="20Gi").with_volume("raw", "n5", volumeMode="Block")
    storage.with_volume("least", "n1", size="5Gi")
    (claim,) = demands(storage).unbound
    assert claim.requested == 5 << 30
    assert [volume.name for volume in claim.choices] == ["least", "right", "larger"]


def test_a_volume_that_is_kept_for_the_claim_is_the_only_choice() -> None:
    storage = Storage().with_class(provisioner="kubernetes.io/no-provisioner").with_volume("free", "n1")
    storage.with_volume("kept", "n2", claimRef={"namespace": "default", "name": "data"})
    (claim,) = demands(storage).unbound
    assert [volume.name for volume in claim.choices] == ["kept"]


def test_claims_choose_by_labels_where_they_select() -> None:
    selector = {"matchLabels": {"disk": "ssd"}}
    storage = Storage(spec={"selector": selector}).with_class(provisioner="kubernetes.io/no-provisioner")
    blocked = demands(storage.with_volume("v1", "n1")).blocked
    assert blocked is not None
    assert blocked.sentence == "node(s) didn't find available persistent volumes to bind"


def test_the_zones_of_a_bound_volume_are_read_from_its_labels() -> None:
    storage = Storage(spec={"volumeName": "v1"}).with_volume("v1", "")
    labels = {"topology.kubernetes.io/zone": "b__a", "topology.kubernetes.io/region": "r", "zone": "x"}
    storage.volumes[0].metadata.labels.update(labels)
    assert demands(storage).zones == (
        ("topology.kubernetes.io/zone", ("a", "b")),
        ("topology.kubernetes.io/region", ("r",)),
    )


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        ({"csi": {"driver": "d"}}, "d"),
        ({"awsElasticBlockStore": {"volumeID": "x"}}, "ebs.csi.aws.com"),
        ({"gcePersistentDisk": {"pdName": "x"}}, "pd.csi.storage.gke.io"),
        ({"azureDisk": {"diskName": "x", "diskURI": "y"}}, "disk.csi.azure.com"),
        ({"cinder": {"volumeID": "x"}}, "cinder.csi.openstack.org"),
        ({"vsphereVolume": {"volumePath": "x"}}, "csi.vsphere.vmware.com"),
    ],
)
def test_built_in_volumes_are_attached_by_the_drivers_that_took_them_over(source: Any, driver: str) -> None:
    storage = Storage(spec={"volumeName": "v1"}).with_volume("v1", "", **source)
    assert demands(storage).attached == ((driver, "default/data"),)


@pytest.mark.parametrize(
    ("provisioner", "driver"),
    [("kubernetes.io/aws-ebs", "ebs.csi.aws.com"), ("d", "d"), ("kubernetes.io/something", "")],
)
def test_a_volume_that_is_still_to_be_made_is_attached_by_its_provisioner(provisioner: str, driver: str) -> None:
    attached = demands(Storage().with_class(provisioner=provisioner)).attached
    assert attached == (((driver, "default/data"),) if driver else ())


def test_a_claim_for_one_pod_is_exclusive() -> None:
    storage = Storage(spec={"accessModes": ["ReadWriteOncePod"]}).with_class(provisioner="x")
    assert demands(storage).exclusive == ("default/data",)
