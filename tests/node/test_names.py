import msgspec

from hekla.api.core import Service
from hekla.api.discovery import EndpointSlice
from hekla.api.pods import Pod
from hekla.node.names import MAX_LINES, NameTable, hostname_of, hosts_file


def pod(name, ip="", *, namespace="default", labels=None, phase="Running", ready=True, **spec):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"phase": phase, "podIP": ip, "conditions": conditions}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {"app": "x"}}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod)


def service(name, *, namespace="default", **spec):
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, Service)


HEADLESS = {"clusterIP": "None", "selector": {"app": "x"}}


def lines(services, pods, slices=(), namespace="default", addresses=None):
    return list(NameTable.of(services, pods, slices, addresses).lines_for(namespace))


def test_a_service_is_called_by_short_and_long_names():
    assert lines([service("web", clusterIP="127.96.0.1")], []) == [
        "127.96.0.1\tweb web.default.svc.cluster.local web.default web.default.svc"
    ]


def test_from_another_namespace_the_short_name_means_nothing():
    assert lines([service("web", namespace="ml", clusterIP="127.96.0.1")], []) == [
        "127.96.0.1\tweb.ml.svc.cluster.local web.ml web.ml.svc"
    ]


def test_a_headless_service_is_all_its_ready_pods():
    pods = [pod("a", "127.64.0.1"), pod("b", "127.64.0.2", ready=False), pod("c", "127.64.0.3", labels={"app": "y"})]
    assert [line.split()[:2] for line in lines([service("web", **HEADLESS)], pods)] == [["127.64.0.1", "web"]]


def test_a_member_is_found_by_its_ordinal_before_it_is_ready():
    member = pod("w-0", "127.64.0.1", ready=False, hostname="w-0", subdomain="web")
    assert lines([service("web", **HEADLESS)], [member]) == [
        "127.64.0.1\tw-0.web w-0.web.default.svc.cluster.local w-0.web.default w-0.web.default.svc"
    ]


def test_an_address_that_the_api_does_not_know_yet_is_a_name_already():
    member = pod("w-0", subdomain="web")
    found = lines(
        [service("web", publishNotReadyAddresses=True, **HEADLESS)], [member], addresses={"uid-w-0": "127.64.0.9"}
    )
    assert all(line.startswith("127.64.0.9\t") for line in found)
    assert len(found) == 2


def test_on_a_guest_names_lead_to_the_pods_and_not_where_their_statuses_say():
    """Those say `100::/64`, which leads nowhere: members of a gang would never meet."""
    member = pod("w-0", "100::5", hostname="w-0", subdomain="web")
    elsewhere = pod("w-1", "10.0.0.9", hostname="w-1", subdomain="web")
    of_machine = pod("m", "10.0.0.7", hostNetwork=True)
    addresses = {"uid-w-0": "127.64.0.9", "uid-m": "127.64.0.10"}
    found = lines([service("web", **HEADLESS)], [member, elsewhere, of_machine], addresses=addresses)
    told = {tuple(line.split()[:2]) for line in found}
    assert told == {
        ("127.64.0.9", "w-0.web"), ("127.64.0.9", "web"), ("10.0.0.9", "w-1.web"), ("10.0.0.9", "web"),
        ("10.0.0.7", "web"),
    }  # fmt: skip


def test_a_pod_that_has_ended_has_no_name():
    assert lines([service("web", **HEADLESS)], [pod("a", "127.64.0.1", phase="Succeeded")]) == []


def test_a_service_without_selector_follows_its_slices():
    each = {
        "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "ext"}},
        "endpoints": [{"addresses": ["10.0.0.1"], "hostname": "db"}],
    }
    found = lines([service("ext", clusterIP="None")], [], [msgspec.convert(each, EndpointSlice)])
    assert [line.split()[1] for line in found] == ["db.ext", "ext"]


def test_a_hosts_file_names_the_pod_its_aliases_and_what_its_namespace_shares():
    me = pod("p", "127.64.0.1", subdomain="web", hostAliases=[{"ip": "10.0.0.9", "hostnames": ["db", "cache"]}])
    text = hosts_file(me, "127.64.0.1", ["127.96.0.1\tweb"])
    assert "127.0.0.1\tlocalhost\n" in text
    assert "127.64.0.1\tp.web.default.svc.cluster.local p\n" in text
    assert "10.0.0.9\tdb cache\n" in text
    assert text.endswith("127.96.0.1\tweb\n")


def test_a_hosts_file_is_cut_at_its_bound_and_says_so():
    text = hosts_file(pod("p"), "127.64.0.1", (f"127.0.0.2\tn{number}" for number in range(MAX_LINES * 2)))
    assert text.count("\n") == MAX_LINES + 1
    assert "cut here" in text


def test_a_long_name_makes_a_host_name_of_63_letters():
    assert hostname_of(pod("a" * 62 + "-" + "b" * 100)) == "a" * 62
