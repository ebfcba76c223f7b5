import pytest

from hekla.api.core import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from hekla.api.meta import ObjectMeta
from hekla.kube.errors import ApiError, TransportError
from hekla.kube.quota_waiting import AT_ONCE, QuotaWaiting, is_over_quota

REFUSAL = 'pods "web-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'


def quota(hard="2", used="2", enforced="2", namespace="team"):
    return ResourceQuota(
        metadata=ObjectMeta(name="small", namespace=namespace),
        spec=ResourceQuotaSpec(hard={"pods": hard}),
        status=ResourceQuotaStatus(hard={"pods": enforced}, used={"pods": used}),
    )


def waiting(count, namespace="team"):
    some = QuotaWaiting()
    for number in range(count):
        some.refuse((namespace, f"set-{number:02}"))
    return some


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (ApiError(403, "Forbidden", REFUSAL), True),
        (ApiError(403, "Forbidden", 'pods "web-0" is forbidden: maximum cpu usage per Pod is 2'), False),
        (ApiError(500, "InternalError", REFUSAL), False),
        (TransportError(REFUSAL), False),
        (None, False),
    ],
)
def test_a_refusal_by_a_quota_is_known_from_others(error, is_one):
    assert is_over_quota(error) is is_one


@pytest.mark.parametrize(
    ("new", "woken"),
    [
        (quota(hard="3"), 20),  # raised by somebody
        (quota(enforced="3"), 20),  # and now in force, on Kubernetes
        (None, 20),  # taken away
        (quota(used="1"), AT_ONCE),  # a pod has gone
        (quota(used="1500m"), AT_ONCE),
        (quota(used="3"), 0),
        (quota(), 0),
    ],
)
def test_more_room_wakes_who_was_refused(new, woken):
    some = waiting(20)
    assert some.on_quota(quota(), new) == [("team", f"set-{number:02}") for number in range(woken)]


def test_a_quota_of_another_namespace_or_a_new_one_wakes_nobody():
    some = waiting(3)
    assert some.on_quota(quota(namespace="other"), quota(namespace="other", hard="9")) == []
    assert some.on_quota(None, quota(hard="9")) == []


def test_who_gets_what_it_wants_hands_on_and_who_does_not_goes_behind():
    some = waiting(3)
    some.refuse(("team", "set-00"))
    assert some.release(("team", "set-01")) == ("team", "set-02")
    assert some.release(("team", "set-01")) is None, "it had what it wanted"
    assert some.on_quota(quota(), None) == [("team", "set-02"), ("team", "set-00")]


def test_nothing_is_remembered_of_those_that_are_gone():
    some = waiting(2)
    assert some.release(("team", "set-00")) == ("team", "set-01")
    assert some.release(("team", "set-01")) is None
    assert some.on_quota(quota(), None) == []
