from hekla.api.core import ResourceQuota
from hekla.controlplane.quota_status import reconcile_quota
from hekla.testing.reconcilers import assert_converges, converge
from hekla.testing.world import FakeWorld


def pod(name, cpu, phase="Pending"):
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]},
        "status": {"phase": phase},
    }  # fmt: skip


def quota(**hard):
    names = {
        "cpu": "requests.cpu",
        "gpu": "requests.nvidia.com/gpu",
        "configs": "configmaps",
        "jobs": "count/jobs.batch",
    }
    said = {names.get(key, key): value for key, value in hard.items()}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": said}}


def used(now, *objects, **hard):
    world = FakeWorld(quota(**hard), *objects)
    converge(reconcile_quota, world, "default", "q", now=now)
    return world.get(ResourceQuota, "default", "q").status.used


def test_running_pods_are_added_up_and_ended_ones_are_not(now):
    pods = [pod("a", "500m"), pod("b", "2"), pod("c", "8", phase="Succeeded")]
    assert used(now, *pods, cpu="4", gpu="8", pods="10") == {
        "pods": "2", "requests.cpu": "2500m", "requests.nvidia.com/gpu": "2"
    }  # fmt: skip


def test_other_kinds_are_counted(now):
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    assert used(now, config, job, configs="3", jobs="5") == {"configmaps": "1", "count/jobs.batch": "1"}


def test_a_limit_that_is_taken_away_leaves_the_status(now):
    world = FakeWorld(quota(pods="3", cpu="1"))
    converge(reconcile_quota, world, "default", "q", now=now)
    world.change(ResourceQuota, "default", "q", {"spec": {"hard": {"requests.cpu": None}}})
    converge(reconcile_quota, world, "default", "q", now=now)
    assert world.get(ResourceQuota, "default", "q").status.hard == {"pods": "3"}


def test_it_converges(now):
    assert_converges(reconcile_quota, FakeWorld(quota(pods="3"), pod("a", "1")), "default", "q", now=now)


def device_claim(name, *requests):
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": f"r{at}", **one} for at, one in enumerate(requests)]}},
    }  # fmt: skip


def test_devices_of_claims_are_added_up_by_their_class(now):
    a, b = "a.example.deviceclass.resource.k8s.io/devices", "b.example.deviceclass.resource.k8s.io/devices"
    claims = [
        device_claim("two", {"exactly": {"deviceClassName": "a.example", "allocationMode": "ExactCount", "count": 2}}),
        device_claim("all", {"exactly": {"deviceClassName": "b.example", "allocationMode": "All"}}),
        device_claim(
            "first",
            {
                "firstAvailable": [
                    {"name": "x", "deviceClassName": "a.example", "allocationMode": "ExactCount", "count": 3},
                    {"name": "y", "deviceClassName": "a.example", "allocationMode": "ExactCount", "count": 1},
                    {"name": "z", "deviceClassName": "b.example", "allocationMode": "ExactCount", "count": 4},
                ]
            },
        ),
        device_claim("new", {"exactly": {"deviceClassName": "a.example", "allocationMode": "Unheard"}}),
    ]
    limits = {a: "10", b: "99", "count/resourceclaims.resource.k8s.io": "9"}
    assert used(now, *claims, **limits) == {a: "5", b: "36", "count/resourceclaims.resource.k8s.io": "4"}
