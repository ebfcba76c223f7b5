from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.meta import Kind, Scope
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.admission_rules.limit_ranger import LimitRanger
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.apiserver.quota_usage import pod_amounts, usage_of
from hekla.apiserver.status import StatusError

PODS = Kind(group="", version="v1", kind="Pod", plural="pods", singular="pod", scope=Scope.NAMESPACED)


class Objects:
    def __init__(self, **lists):
        self.lists = lists

    def get(self, resource, namespace, name):
        return None

    def list(self, resource, namespace=""):
        return self.lists.get(resource, [])


def container(name="c", requests=None, limits=None, **more):
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers, init=(), phase="Pending", **spec):
    return {
        "metadata": {"name": "x"},
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        "status": {"phase": phase},
    }


def quota(hard, **spec):
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}


def creating(document):
    return AdmissionRequest(
        kind=PODS,
        operation=Operation.CREATE,
        namespace="ns",
        name="big",
        subresource="",
        object=document,
        old=None,
        user=User("ann"),
    )


def check(document, *quotas, pods=()):
    ResourceQuotaRule().validate(creating(document), Objects(resourcequotas=list(quotas), pods=list(pods)))


def test_what_exceeds_a_quota_is_refused_with_the_numbers():
    with pytest.raises(StatusError) as refused:
        check(pod(container(requests={"cpu": "2"})), quota({"requests.cpu": "1", "pods": "20"}))
    assert refused.value.message == (
        'pods "big" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1'
    )


def test_a_limited_resource_must_be_said():
    with pytest.raises(StatusError) as refused:
        check(pod(container()), quota({"requests.cpu": "1"}))
    assert refused.value.message == 'pods "big" is forbidden: failed quota: q: must specify requests.cpu for: c'


def test_the_last_place_can_be_taken_once():
    one = pod(container(requests={"cpu": "500m"}))
    check(one, quota({"requests.cpu": "1"}), pods=[one])
    with pytest.raises(StatusError):
        check(one, quota({"requests.cpu": "1"}), pods=[one, one])


def test_pods_that_ended_give_their_place_back():
    done = pod(container(requests={"cpu": "1"}), phase="Succeeded")
    check(pod(container(requests={"cpu": "1"})), quota({"requests.cpu": "1"}), pods=[done])


def test_gpus_are_counted_by_their_request():
    gpu = pod(container(requests={"nvidia.com/gpu": "2"}))
    with pytest.raises(StatusError, match=r"requests\.nvidia\.com/gpu=2"):
        check(gpu, quota({"requests.nvidia.com/gpu": "3"}), pods=[gpu])


def test_a_scoped_quota_counts_only_its_pods():
    scoped = quota({"pods": "0"}, scopes=["Terminating"])
    check(pod(container()), scoped)
    with pytest.raises(StatusError):
        check(pod(container(), activeDeadlineSeconds=5), scoped)


def test_a_quota_on_a_priority_class_counts_that_class():
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    scoped = quota({"pods": "0"}, scopeSelector={"matchExpressions": [expression]})
    check(pod(container()), scoped)
    with pytest.raises(StatusError):
        check(pod(container(), priorityClassName="high"), scoped)


def test_sidecars_run_beside_and_init_steps_before():
    sidecar = container("s", {"cpu": "100m"}, restartPolicy="Always")
    step = container("i", {"cpu": "1"})
    amounts = pod_amounts(pod(container(requests={"cpu": "500m"}), init=[sidecar, step])["spec"], "requests")
    assert str(amounts["cpu"]) == "1100m"


def test_a_custom_resource_is_counted_by_its_name():
    assert str(usage_of("jobs.batch.volcano.sh", {"metadata": {}})["count/jobs.batch.volcano.sh"]) == "1"


cpus = st.integers(0, 4000).map(lambda milli: f"{milli}m")


@given(st.lists(cpus, min_size=1, max_size=4), st.lists(cpus, max_size=3))
def test_a_pod_asks_for_at_least_each_of_its_containers(running, steps):
    containers = [container(str(i), {"cpu": c}) for i, c in enumerate(running)]
    init = [container(f"i{i}", {"cpu": c}) for i, c in enumerate(steps)]
    whole = pod_amounts(pod(*containers, init=init)["spec"], "requests")["cpu"].value * 1000
    assert whole == max(sum(int(c[:-1]) for c in running), *[int(c[:-1]) for c in steps], 0)


def limited(document, *limits):
    request = creating(document)
    reader = Objects(limitranges=[{"spec": {"limits": list(limits)}}])
    LimitRanger().mutate(request, reader)
    LimitRanger().validate(request, reader)
    return document["spec"]["containers"][0]["resources"]


def test_containers_get_the_defaults_they_leave_unsaid():
    limit = {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}
    resources = limited(pod(container(limits={"memory": "2Gi"})), limit)
    assert resources == {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "100m"}}


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"min": {"cpu": "1"}}, "minimum cpu usage per Container is 1, but request is 500m"),
        ({"max": {"cpu": "1"}}, "maximum cpu usage per Container is 1, but limit is 2"),
        ({"max": {"memory": "1Gi"}}, "maximum memory usage per Container is 1Gi.  No limit is specified"),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        ),
    ],
)
def test_what_lies_outside_the_limits_is_refused(limit, sentence):
    with pytest.raises(StatusError) as refused:
        limited(pod(container(requests={"cpu": "500m"}, limits={"cpu": "2"})), {"type": "Container", **limit})
    assert refused.value.message == f'pods "big" is forbidden: {sentence}'


def test_what_a_limit_range_gives_is_told_and_counts_for_the_class_of_the_pod():
    limits = {
        "type": "Container",
        "default": {"cpu": "1", "memory": "1Gi"},
        "defaultRequest": {"cpu": "1", "memory": "1Gi"},
    }
    document = pod({"name": "a"}, container("b", limits={"cpu": "1"}, requests={"cpu": "1"}))
    document["status"]["qosClass"] = "BestEffort"
    LimitRanger().mutate(
        creating(document), Objects(limitranges=[{"metadata": {"name": "l"}, "spec": {"limits": [limits]}}])
    )
    assert document["metadata"]["annotations"] == {
        "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu, memory request for container a; "
        "cpu, memory limit for container a; memory request for container b; memory limit for container b"
    }
    assert document["status"]["qosClass"] == "Guaranteed"


def test_claims_may_ask_for_no_more_devices_than_a_quota_lets_them():
    claims = Kind(
        group="resource.k8s.io", version="v1", kind="ResourceClaim", plural="resourceclaims", singular="resourceclaim",
        scope=Scope.NAMESPACED,
    )  # fmt: skip
    asked = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    claim = {"metadata": {"name": "x"}, "spec": {"devices": {"requests": [{"name": "g", "exactly": asked}]}}}
    limit = quota({"gpu.deviceclass.resource.k8s.io/devices": "3"})
    request = replace(creating(claim), kind=claims)
    ResourceQuotaRule().validate(request, Objects(resourcequotas=[limit]))
    there = {"resourceclaims.resource.k8s.io": [claim]}
    with pytest.raises(StatusError) as refused:
        ResourceQuotaRule().validate(request, Objects(resourcequotas=[limit], **there))
    name = "gpu.deviceclass.resource.k8s.io/devices"
    assert str(refused.value).endswith(f"exceeded quota: q, requested: {name}=2, used: {name}=2, limited: {name}=3")
