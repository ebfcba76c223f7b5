"""`hekla why` about Gateways, HTTPRoutes and InferencePools: by statuses as the reconcilers write them."""

from datetime import UTC, datetime

from hekla.api.foreign import Gateway, HttpRoute, InferencePool
from hekla.cli.why_gateway import NOBODY_LOOKED, gateway_parts, pool_parts, route_parts
from hekla.serving.gateway_status import (
    reconcile_gateway,
    reconcile_gateway_class,
    reconcile_http_route,
    reconcile_inference_pool,
)
from hekla.serving.router.attachment import CONTROLLER_NAME
from hekla.testing.reconcilers import converge
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATEWAY_API = "gateway.networking.k8s.io/v1"
POOL_API = "inference.networking.k8s.io/v1"


def named(name, kind, spec, api=GATEWAY_API, **status):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "ml"}, "spec": spec, **status}


def route(name, *parents, pool="llama"):
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
    return named(name, "HTTPRoute", {"parentRefs": list(parents), "rules": [{"backendRefs": [backend]}]})


def pod(name, *, is_ready):
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": str(is_ready)}]}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ml", "labels": {"app": "llama"}}, "status": status}


PODS = [pod("one", is_ready=True), pod("two", is_ready=False)]


def looked_at(*routes):
    """The documents as they are once the reconcilers have looked: a Gateway, its routes, a pool."""
    gateway_class = {
        "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "ours"}, "spec": {"controllerName": CONTROLLER_NAME},
    }  # fmt: skip
    listeners = [
        {"name": "http", "port": 80, "protocol": "HTTP"},
        {"name": "odd", "port": 81, "protocol": "UDP"},
    ]
    gateway = named("door", "Gateway", {"gatewayClassName": "ours", "listeners": listeners})
    selector = {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}
    pool = named("llama", "InferencePool", selector, POOL_API)
    world = FakeWorld(gateway_class, gateway, pool, *routes)
    converge(reconcile_gateway_class, world, "", "ours", now=NOW)
    for one in routes:
        converge(reconcile_http_route, world, "ml", one["metadata"]["name"], now=NOW)
    converge(reconcile_gateway, world, "ml", "door", now=NOW)
    converge(reconcile_inference_pool, world, "ml", "llama", now=NOW)
    found = [world.document(HttpRoute, "ml", one["metadata"]["name"]) for one in routes]
    return world.document(Gateway, "ml", "door"), found, world.document(InferencePool, "ml", "llama")


def states(parts):
    return {one["name"]: one["state"] for one in parts}


def test_a_gateway_tells_its_listeners_and_which_routes_it_took():
    good, bad = route("good", {"name": "door"}), route("bad", {"name": "door", "sectionName": "none"})
    gateway, routes, _ = looked_at(good, bad)
    verdict, parts = gateway_parts(gateway, routes)
    assert verdict == "serves 1 of 2 listeners, and takes 1 of 2 routes that name it"
    assert states(parts) == {
        "listener http (HTTP, port 80)": "served, 1 route attached",
        "listener odd (UDP, port 81)": "not served",
        "HTTPRoute ml/bad": "refused",
        "HTTPRoute ml/good": "accepted",
    }
    [why] = next(one["says"] for one in parts if one["name"] == "HTTPRoute ml/bad")
    assert why.startswith("Accepted is false (NoMatchingParent): the Gateway has no listener of this name")
    assert next(one["says"] for one in parts if one["name"].startswith("listener odd"))


def test_a_route_tells_which_parent_refused_it_and_which_engines_are_ready():
    _, [found], pool = looked_at(
        route("r", {"name": "door"}, {"name": "door", "sectionName": "none"}, {"name": "gone"})
    )
    verdict, parts = route_parts(found, [{**pool, "kind": "InferencePool"}, *PODS])
    assert verdict == "is taken by 1 of 3 parents that it names"
    assert states(parts) == {
        "Gateway ml/door": "accepted",
        "Gateway ml/door, listener none": "refused",
        "Gateway ml/gone": NOBODY_LOOKED,
        "InferencePool ml/llama": "2 pods, 1 ready",
    }
    assert states(route_parts(found, PODS)[1])["InferencePool ml/llama"] == "is not there"


def test_a_pool_tells_its_engines_and_who_sends_requests():
    _, _, pool = looked_at(route("r", {"name": "door"}))
    verdict, parts = pool_parts(pool, PODS)
    assert verdict == "has 2 pods, 1 ready"
    assert parts[0]["says"] == ["at port 8000", "ready      one", "not ready  two: ask `hekla why pod/two`"]
    assert states(parts)["Gateway ml/door"] == "accepted"

    _, _, lonely = looked_at()
    verdict, parts = pool_parts(lonely, [])
    assert verdict == "has 0 pods, 0 ready"
    assert "no pod of the namespace has the labels app=llama" in parts[0]["says"]
    assert "no Gateway sends requests to it: no accepted HTTPRoute names it" in parts[0]["says"]


def test_what_nobody_has_looked_at_says_so():
    gateway = named(
        "door",
        "Gateway",
        {"gatewayClassName": "theirs", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    )
    verdict, parts = gateway_parts(gateway, [route("r", {"name": "door"})])
    assert verdict == f"is served by nobody: {NOBODY_LOOKED}; is its class 'theirs' there?"
    assert states(parts)["HTTPRoute ml/r"] == NOBODY_LOOKED
