import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.pods import Pod
from hekla.kube import sharing
from hekla.kube.decoding import decode_page, decoder
from hekla.kube.errors import TransportError
from hekla.kube.sharing import MOST_SPECS, decode_pod

plainly = msgspec.json.Decoder(Pod).decode

names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=8)
specs = st.fixed_dictionaries(
    {},
    optional={
        "nodeName": names,
        "containers": st.lists(st.fixed_dictionaries({"name": names, "image": names}), max_size=2),
        "nodeSelector": st.dictionaries(names, names, max_size=2),
        "priority": st.integers(-5, 5),
    },
)


def pod(name="a", node="", **spec):
    spec = {"nodeName": node, **spec} if node else spec
    return msgspec.json.encode({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}})


@given(st.lists(specs, min_size=1, max_size=4), st.booleans())
def test_a_pod_that_shares_equals_one_that_does_not(some, has_type):
    for number, spec in enumerate(some * 2):
        document = {"metadata": {"name": f"p{number}", "labels": {"a": "b"}}, "spec": spec, "status": {"podIP": "::1"}}
        if has_type:
            document |= {"apiVersion": "v1", "kind": "Pod"}
        body = msgspec.json.encode(document)
        assert decode_pod(body) == plainly(body)


def test_pods_of_one_template_share_all_of_the_spec_but_the_node():
    containers = [{"name": "main", "image": "trainer:1"}]
    first, second, waiting = (
        decode_pod(pod(f"p{number}", node, containers=containers)) for number, node in enumerate(("n1", "n2", ""))
    )
    assert [one.spec.node_name for one in (first, second, waiting)] == ["n1", "n2", ""]
    assert first.spec.containers is second.spec.containers is waiting.spec.containers


def pod_saying(**status):
    return decode_pod(msgspec.json.encode({"metadata": {"name": "a"}, "status": status}))


def test_pods_that_nobody_runs_yet_share_the_whole_status():
    bound = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    assert pod_saying(**bound).status is pod_saying(**bound).status
    assert pod_saying(**bound).status != pod_saying(phase="Pending").status


def test_a_pod_with_an_address_has_a_status_of_its_own():
    running = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    first, second = pod_saying(**running).status, pod_saying(**running).status
    assert first == second
    assert first is not second
    assert first.conditions[0] is second.conditions[0]


def test_what_is_remembered_is_bounded():
    for number in range(MOST_SPECS + 10):
        decode_pod(pod(priority=number))
        pod_saying(message=str(number))
    assert len(sharing._specs) <= MOST_SPECS
    assert len(sharing._statuses) <= MOST_SPECS


@pytest.mark.parametrize(
    "body", [b"{", b'{"spec": 3}', b'{"spec": {"containers": 1}}', b'{"status": []}', b'{"spec": null}']
)
def test_a_pod_that_cannot_be_read_is_refused_as_any_other_object(body):
    with pytest.raises(TransportError, match="the server's Pod cannot be read"):
        decoder(Pod)(body)


def test_one_unreadable_pod_of_a_page_is_left_out():
    page = decode_page(Pod, b'{"metadata":{"resourceVersion":"7"},"items":[%s,{"spec":3},%s]}' % (pod("a"), pod("b")))
    assert [one.metadata.name for one in page.items] == ["a", "b"]
    assert page.resource_version == "7"
