from hekla.api.core import Endpoints, Service
from hekla.api.discovery import EndpointSlice
from hekla.api.pods import Pod
from hekla.controlplane.endpoints import reconcile_endpoint_slices, reconcile_endpoints, reconcile_endpoints_orphan
from hekla.testing.reconcilers import assert_converges, assert_heals, converge
from hekla.testing.world import FakeWorld

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z1"}}}


def service(**spec):
    ports = spec.pop("ports", [{"name": "sql", "port": 5432, "targetPort": 5432, "protocol": "TCP"}])
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "db", "uid": "svc"},
        "spec": {"clusterIP": "10.0.0.7", "selector": {"app": "db"}, "ports": ports, **spec},
    }


def pod(name, ip, *, ready=True, port=0, **spec):
    container = {"name": "c", "ports": [{"name": "web", "containerPort": port}]} if port else {"name": "c"}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "db"}},
        "spec": {"nodeName": "n", "containers": [container], **spec},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions},
    }


def slices(world, now):
    converge(reconcile_endpoint_slices, world, "default", "db", now=now)
    return world.list(EndpointSlice)


def test_ready_pods_are_ready_endpoints(now):
    world = FakeWorld(NODE, service(), pod("a", "10.1.0.1"), pod("b", "10.1.0.2", ready=False))
    (one,) = slices(world, now)
    assert [(e.addresses, e.conditions.ready, e.node_name, e.zone) for e in one.endpoints] == [
        (["10.1.0.1"], True, "n", "z1"),
        (["10.1.0.2"], False, "n", "z1"),
    ]
    assert [(port.name, port.port) for port in one.ports] == [("sql", 5432)]


def test_a_service_without_pods_has_one_empty_slice(now):
    world = FakeWorld(NODE, service())
    (one,) = slices(world, now)
    assert not one.endpoints


def test_a_slice_follows_its_pods(now):
    world = FakeWorld(NODE, service(), pod("a", "10.1.0.1"), pod("b", "10.1.0.2"))
    (one,) = slices(world, now)
    world.remove(Pod, "default", "a")
    (after,) = slices(world, now)
    assert after.metadata.name == one.metadata.name
    assert [e.addresses for e in after.endpoints] == [["10.1.0.2"]]
    world.remove(Pod, "default", "b")
    assert not slices(world, now)[0].endpoints


def test_many_endpoints_fill_slices_of_a_hundred(now):
    pods = [pod(f"p{number:03d}", f"10.1.{number // 250}.{number % 250}") for number in range(230)]
    world = FakeWorld(NODE, service(), *pods)
    assert sorted(len(one.endpoints) for one in slices(world, now)) == [30, 100, 100]


def test_a_named_port_may_differ_from_pod_to_pod(now):
    ports = [{"name": "web", "port": 80, "targetPort": "web", "protocol": "TCP"}]
    world = FakeWorld(NODE, service(ports=ports), pod("a", "10.1.0.1", port=8080), pod("b", "10.1.0.2", port=9090))
    assert sorted(one.ports[0].port for one in slices(world, now)) == [8080, 9090]


def test_a_headless_service_names_its_pods(now):
    world = FakeWorld(NODE, service(clusterIP="None"), pod("db-0", "10.1.0.1", hostname="db-0", subdomain="db"))
    (one,) = slices(world, now)
    assert one.endpoints[0].hostname == "db-0"
    assert "service.kubernetes.io/headless" in one.metadata.labels


def test_a_pod_whose_node_is_unknown_is_no_endpoint_yet(now):
    world = FakeWorld(service(), pod("a", "10.1.0.1"))
    assert not slices(world, now)[0].endpoints
    assert world.requeues


def test_a_service_without_a_selector_is_left_alone(now):
    world = FakeWorld(service(selector={}))
    assert slices(world, now) == []


def test_the_older_endpoints_say_the_same(now):
    world = FakeWorld(NODE, service(), pod("a", "10.1.0.1"), pod("b", "10.1.0.2", ready=False))
    converge(reconcile_endpoints, world, "default", "db", now=now)
    (subset,) = world.get(Endpoints, "default", "db").subsets
    assert [one.ip for one in subset.addresses] == ["10.1.0.1"]
    assert [one.ip for one in subset.not_ready_addresses] == ["10.1.0.2"]
    world.remove(Pod, "default", "a")
    world.remove(Pod, "default", "b")
    converge(reconcile_endpoints, world, "default", "db", now=now)
    assert world.get(Endpoints, "default", "db").subsets == []


def test_the_properties_of_all_reconcilers_hold(now):
    def world():
        return FakeWorld(NODE, service(), pod("a", "10.1.0.1"), pod("b", "10.1.0.2", ready=False))

    for reconciler in (reconcile_endpoint_slices, reconcile_endpoints):
        assert_converges(reconciler, world(), "default", "db", now=now)
        assert_heals(reconciler, world, "default", "db", now=now)
    assert reconcile_endpoints.kind is Service


def test_endpoints_go_with_their_service_and_not_before(now):
    world = FakeWorld(NODE, service(), pod("a", "10.1.0.1"))
    converge(reconcile_endpoints, world, "default", "db", now=now)
    converge(reconcile_endpoints_orphan, world, "default", "db", now=now)
    assert world.get(Endpoints, "default", "db") is not None
    world.remove(Service, "default", "db")
    converge(reconcile_endpoints_orphan, world, "default", "db", now=now)
    assert world.get(Endpoints, "default", "db") is None


def test_endpoints_that_somebody_wrote_need_no_service(now):
    world = FakeWorld({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "db"}})
    converge(reconcile_endpoints_orphan, world, "default", "db", now=now)
    assert world.get(Endpoints, "default", "db") is not None
