import pytest

from hekla.controlplane.go_dump import NotPlainError, go_dump
from hekla.controlplane.templates import MAX_GENERATE_NAME, pod_document, template_hash
from hekla.controlplane.views import ReplicaSet
from hekla.testing.world import FakeWorld


def template(image="x:1", **container):
    defaults = {
        "name": "c", "image": image, "resources": {}, "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
    }  # fmt: skip
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "containers": [defaults | container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler",
        },
    }  # fmt: skip


@pytest.mark.parametrize(("image", "hashed"), [("x:1", "599f4fbf56"), ("x:2", "746847646c")])
def test_a_plain_template_has_the_hash_that_a_real_cluster_gives_it(image, hashed):
    # Recorded from Kubernetes 1.36 (tests/kubetruth/controllers.jsonl).
    assert template_hash(template(image)) == hashed


def test_other_templates_have_a_hash_of_their_own():
    big = template(resources={"requests": {"nvidia.com/gpu": "8"}})
    small = template(resources={"requests": {"nvidia.com/gpu": "1"}})
    with pytest.raises(NotPlainError):
        go_dump(big)
    assert len(template_hash(big)) == 10
    assert template_hash(big) == template_hash(big)
    assert len({template_hash(big), template_hash(small), template_hash(big, 1), template_hash(template(), 1)}) == 4


def test_a_field_that_is_new_makes_another_hash():
    assert template_hash(template(futureField={"a": 1})) != template_hash(template())


def test_a_generated_name_leaves_room_for_its_letters():
    name = "w" * 90
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}}
    pod = pod_document(FakeWorld(owner).get(ReplicaSet, "default", name), template())
    assert len(pod["metadata"]["generateName"]) == MAX_GENERATE_NAME
