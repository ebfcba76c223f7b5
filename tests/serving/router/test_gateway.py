"""Whether requests that come in by Gateways find their listener, ModelRoute or InferencePool, in any order of objects."""

import random
from typing import Any

import msgspec
import pytest

from hekla.api.core import Namespace
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant
from hekla.api.foreign.gateway import PathMatch, UrlRewrite
from hekla.serving.router.attachment import common_hosts, host_fits
from hekla.serving.router.backends import Backend
from hekla.serving.router.gateway import GatewayDesk, wanted_ports
from hekla.serving.router.http_routes import path_fits, rewritten
from hekla.serving.router.plan import Plan, Refusal
from hekla.serving.router.question import Question
from hekla.serving.router.tokenizing import Held
from serving.router.worldkit import attempt_of, pod, question, route, server, to, world

POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}


def gateway(
    name: str, *listeners: dict[str, Any], namespace: str = "ml", of: str = "kthena-router", day: int = 1
) -> Gateway:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
    spec = {"gatewayClassName": of, "listeners": list(listeners) or [listener()]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Gateway)


def listener(name: str = "http", port: int = 80, hostname: str | None = None, **allowed: Any) -> dict[str, Any]:
    return {"name": name, "port": port, "protocol": "HTTP", "hostname": hostname, "allowedRoutes": allowed}


def http_route(name: str, *rules: dict[str, Any], parents: Any = None, namespace: str = "ml", **spec: Any) -> HttpRoute:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"parentRefs": parents or [{"name": "gw"}], "rules": list(rules), **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec}, HttpRoute)


def rule(*pools: str, path: str = "/", kind: str = "PathPrefix", filters: Any = (), **match: Any) -> dict[str, Any]:
    backends = [{**POOL, "name": one} for one in pools]
    return {"matches": [{"path": {"type": kind, "value": path}, **match}], "backendRefs": backends, "filters": filters}


def pool(name: str, *ports: int) -> InferencePool:
    spec = {"selector": {"matchLabels": {"app": name}}, "targetPorts": [{"number": one} for one in ports or (8000,)]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "ml"}, "spec": spec}, InferencePool)


def desk(*objects: Any, port: int = 80, **more: Any) -> GatewayDesk:
    return GatewayDesk(world(*objects), lambda: 0.0, port, **more)


def asked(path: str = "/v1/chat/completions", model: str = "m", **headers: str) -> Question:
    return question(model, path=path, headers=headers)


def goes_to(made: GatewayDesk, one: Question) -> str:
    plan = made.plan(one, 0.0)
    if isinstance(plan, Refusal):
        return f"{plan.status} {plan.for_operators}"
    return attempt_of(plan).target.name  # type: ignore[arg-type]  # nothing waits here


PODS = (pod("a", {"app": "a"}), pod("b", {"app": "b"}))
POOLS = (pool("a"), pool("b"))


def test_an_http_route_leads_to_an_inference_pool() -> None:
    """Kthena GatewayInferenceExtension."""
    made = desk(gateway("gw"), http_route("r", rule("a")), *POOLS, *PODS)
    assert goes_to(made, asked()) == "a"
    assert wanted_ports(made.world) == {80: False}


def test_a_model_route_goes_before_an_http_route() -> None:
    """Kthena BothAPIsConfigured."""
    mine = route("mr", to("b"), model="m", parentRefs=[{"name": "gw"}])
    made = desk(gateway("gw"), http_route("r", rule("a")), mine, server("b"), *POOLS, *PODS)
    assert goes_to(made, asked()) == "b"
    assert goes_to(made, asked(model="other")) == "a"
    assert goes_to(made, asked("/custom/chat")) == "a"
    assert made.models() == ["m"]


def test_order_of_objects_does_not_matter() -> None:
    """Kthena HTTPRouteNotSkippedAfterRouterRestart, GatewayCreatedLaterThanHTTPRoute."""
    objects = [gateway("gw"), http_route("r", rule("a")), *POOLS, *PODS]
    for seed in range(6):
        random.Random(seed).shuffle(objects)
        made = desk(*objects)
        assert goes_to(made, asked()) == "a"
    late = desk(http_route("r", rule("a")), *POOLS, *PODS)
    assert goes_to(late, asked()).startswith("404")
    late.world.note(None, gateway("gw"))
    assert goes_to(late, asked()) == "a"


def test_one_model_may_be_served_by_two_gateways() -> None:
    """Kthena DuplicateModelName (Gateway API), TestMatchModelTarget_GatewayScoped."""
    objects = [
        gateway("one", listener(port=80)),
        gateway("two", listener(port=81)),
        route("ra", to("a"), model="m", parentRefs=[{"name": "one"}]),
        route("rb", to("b"), model="m", parentRefs=[{"name": "two"}]),
        server("a"),
        server("b"),
        *PODS,
    ]
    assert goes_to(desk(*objects, port=80), asked()) == "a"
    assert goes_to(desk(*objects, port=81), asked()) == "b"


@pytest.mark.parametrize(
    ("reference", "fits"),
    [
        ({"name": "gw"}, True),
        ({"name": "gw", "sectionName": "http"}, True),
        ({"name": "gw", "sectionName": "other"}, False),
        ({"name": "gw", "port": 80}, True),
        ({"name": "gw", "port": 81}, False),
        ({"name": "gw", "kind": "Service"}, False),
        ({"name": "gw", "namespace": "elsewhere"}, False),
    ],
)
def test_a_route_names_the_gateway_or_one_of_its_listeners(reference: dict[str, Any], fits: bool) -> None:
    made = desk(gateway("gw"), route("r", to("a"), model="m", parentRefs=[reference]), server("a"), *PODS)
    assert (goes_to(made, asked()) == "a") is fits


def test_a_model_route_without_parents_belongs_to_gateways_of_its_namespace_and_to_the_default_port() -> None:
    own = route("r", to("a"), model="m")
    there = gateway("gw", namespace="elsewhere")
    assert goes_to(desk(gateway("gw"), own, server("a"), *PODS), asked()) == "a"
    assert goes_to(desk(there, own, server("a"), *PODS), asked()).startswith("404")
    assert goes_to(desk(there, own, server("a"), *PODS, takes_unbound=True), asked()) == "a"


@pytest.mark.parametrize(
    ("allowed", "labels", "fits"),
    [
        ({}, {}, False),
        ({"namespaces": {"from": "All"}}, {}, True),
        ({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}}, {"a": "b"}, True),
        ({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}}, {"a": "c"}, False),
        ({"namespaces": {"from": "All"}, "kinds": [{"kind": "GRPCRoute"}]}, {}, False),
    ],
)
def test_a_listener_says_which_namespaces_may_come(allowed: Any, labels: dict[str, str], fits: bool) -> None:
    space = msgspec.convert({"metadata": {"name": "ml", "labels": labels}}, Namespace)
    there = gateway("gw", listener(**allowed), namespace="edge")
    parents = [{"name": "gw", "namespace": "edge"}]
    made = desk(there, http_route("r", rule("a"), parents=parents), space, *POOLS, *PODS)
    assert (goes_to(made, asked()) == "a") is fits


def test_paths_go_before_one_another_as_the_gateway_api_has_it() -> None:
    made = desk(
        gateway("gw"),
        http_route("r", rule("a", path="/v1"), rule("b", path="/v1/chat"), rule("a", path="/v1/chat/x", kind="Exact")),
        http_route("s", rule("a", path="/v1/.*", kind="RegularExpression")),
        *POOLS,
        *PODS,
    )
    assert goes_to(made, asked("/v1/chat/completions")) == "b"
    assert goes_to(made, asked("/v1/chat/x")) == "a"
    assert goes_to(made, asked("/v1/chatter")) == "a"
    assert goes_to(made, asked("/v2")).startswith("404")


def test_hosts_go_before_paths() -> None:
    made = desk(
        gateway("gw", listener("wild", hostname="*.ai.example"), listener("one", hostname="chat.ai.example")),
        http_route(
            "r", rule("a", path="/v1/chat/completions", kind="Exact"), parents=[{"name": "gw", "sectionName": "wild"}]
        ),
        http_route("s", rule("b"), parents=[{"name": "gw", "sectionName": "one"}]),
        *POOLS,
        *PODS,
    )
    assert goes_to(made, asked(host="chat.ai.example:80")) == "b"
    assert goes_to(made, asked(host="deep.chat.ai.example")) == "a"
    assert goes_to(made, asked(host="AI.example")).startswith("404")


@pytest.mark.parametrize(
    ("query", "pool_name"),
    [
        ("", "a"),
        ("tier=gold", "b"),
        ("x=1&tier=gold", "b"),
        ("tier=tin&tier=gold", "a"),
        ("tier=", "a"),
        ("tier=gold&v=7", "c"),
    ],
)
def test_query_parameters_choose_among_matches_and_the_first_of_two_counts(query: str, pool_name: str) -> None:
    gold = {"name": "tier", "value": "gold"}
    numbered = {"name": "v", "value": "[0-9]", "type": "RegularExpression"}
    rules = rule("a"), rule("b", queryParams=[gold]), rule("c", queryParams=[gold, numbered])
    made = desk(gateway("gw"), http_route("r", *rules), *POOLS, pool("c"), *PODS, pod("c", {"app": "c"}))
    one = asked()
    one.query = query
    assert goes_to(made, one) == pool_name


def test_headers_are_looked_at() -> None:
    made = desk(
        gateway("gw"),
        http_route("r", rule("a"), rule("b", headers=[{"name": "X-Tier", "value": "gold"}])),
        *POOLS,
        *PODS,
    )
    assert goes_to(made, asked()) == "a"
    assert goes_to(made, asked(**{"x-tier": "gold"})) == "b"


def test_a_rewrite_changes_path_and_host() -> None:
    rewrite = {"hostname": "engine.local", "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1"}}
    filters = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    made = desk(gateway("gw"), http_route("r", rule("a", path="/team/", filters=filters)), *POOLS, *PODS)
    plan = made.plan(asked("/team/chat/completions"), 0.0)
    attempt = attempt_of(plan)  # type: ignore[arg-type]  # it is a plan
    assert attempt.path == "/v1/chat/completions"
    assert (b"host", b"engine.local") in attempt.headers
    ended: Plan = plan  # type: ignore[assignment]  # it is a plan
    ended.ended(None, 1.0)
    assert made.world.fleet.by_name["ml/a"].in_flight == 0


@pytest.mark.parametrize(
    ("match", "change", "path", "expected"),
    [
        ("/a", {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}, "/a/c", "/b/c"),
        ("/a", {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}, "/a/c", "/c"),
        ("/a", {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}, "/a", "/"),
        ("/", {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}, "/a", "/b/a"),
        ("/a", {"type": "ReplaceFullPath", "replaceFullPath": "/z"}, "/a/c", "/z"),
    ],
)
def test_prefixes_are_replaced_as_the_gateway_api_has_it(match: str, change: Any, path: str, expected: str) -> None:
    rewrites = [msgspec.convert({"path": change}, UrlRewrite)]
    assert rewritten(rewrites, PathMatch(type="PathPrefix", value=match), path) == (expected, "")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            rule("a", filters=[{"type": "RequestMirror"}]),
            '500 HTTPRoute "ml/r": filters of type RequestMirror are not served',
        ),
        ({"backendRefs": [{"name": "svc"}]}, '500 HTTPRoute "ml/r": backend "svc" is a Service, only InferencePools'),
        (
            {"backendRefs": [{**POOL, "name": "a", "namespace": "x"}]},
            'InferencePool "x/a" may not be referred to from namespace "ml"; make a ReferenceGrant in namespace "x"',
        ),
        ({"backendRefs": [{**POOL, "name": "a", "weight": 0}]}, "no backend of the rule has a weight"),
        (rule("gone"), "404 can't find inference pool: ml/gone"),
        (rule("idle"), "503 no available pods for inference pool: ml/idle"),
    ],
)
def test_what_cannot_be_carried_out_is_said(broken: dict[str, Any], said: str) -> None:
    made = desk(gateway("gw"), http_route("r", broken), pool("idle"), *POOLS, *PODS)
    assert said in goes_to(made, asked())


@pytest.mark.parametrize(
    ("from_", "to", "goes"),
    [
        ({}, {}, "p"),
        ({}, {"name": "p"}, "p"),
        ({}, {"name": "q"}, "500"),
        ({}, {"kind": "Service", "group": ""}, "500"),
        ({"kind": "Gateway"}, {}, "500"),
        ({"namespace": "x"}, {}, "500"),
    ],
)
def test_a_pool_of_another_namespace_is_gone_to_where_it_grants_that(from_: Any, to: Any, goes: str) -> None:
    beyond = msgspec.convert(
        {"metadata": {"name": "p", "namespace": "theirs"}, "spec": msgspec.to_builtins(pool("a").spec)}, InferencePool
    )
    gave = {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "ml", **from_}],
        "to": [{"group": POOL["group"], "kind": "InferencePool", **to}],
    }
    grant = msgspec.convert({"metadata": {"name": "g", "namespace": "theirs"}, "spec": gave}, ReferenceGrant)
    made = desk(
        gateway("gw"),
        http_route("r", {"backendRefs": [{**POOL, "name": "p", "namespace": "theirs"}]}),
        beyond,
        grant,
        pod("p", {"app": "a"}, namespace="theirs"),
    )
    assert goes_to(made, asked()).startswith(goes)
    made.world.note(grant, None)
    assert goes_to(made, asked()).startswith("500"), "a grant that is gone grants nothing"


def test_a_listener_for_https_is_never_answered_without_tls() -> None:
    secure = {**listener("tls"), "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "c"}]}}
    objects = gateway("gw", secure), http_route("r", rule("a")), *POOLS, *PODS
    assert goes_to(desk(*objects), asked()).startswith("404")
    assert goes_to(desk(*objects, is_tls=True), asked()) == "a"
    assert wanted_ports(world(*objects)) == {80: True}


def test_every_port_of_a_pool_is_an_engine() -> None:
    made = desk(gateway("gw"), http_route("r", rule("a")), pool("a", 8000, 8001), *PODS)
    engines = made.world.inference_pools["ml/a"].decode.members
    assert sorted((one.name, one.port) for one in engines) == [("a", 8000), ("a:8001", 8001)]


def test_the_text_of_a_request_to_a_pool_is_tokenized_once_where_a_tokenizer_is_named() -> None:
    made, asked_of = desk(gateway("gw"), http_route("r", rule("a")), *POOLS, *PODS), list[str]()

    def on_text(backend: Backend, one: Question) -> Held:
        one.was_tokenized = True
        asked_of.append(backend.traits.key)
        return Held()

    made.world.on_text = on_text
    assert goes_to(made, asked()) == "a"
    made.world.tokenizer = "engine"
    one = asked()
    assert isinstance(made.plan(one, 0.0), Held)
    assert goes_to(made, one) == "a"
    assert asked_of == ["ml/a"]


def test_gateways_of_another_class_are_not_ours() -> None:
    made = desk(gateway("gw", of="istio"), http_route("r", rule("a")), *POOLS, *PODS)
    assert goes_to(made, asked()).startswith("404")
    assert wanted_ports(made.world) == {}


def gateway_class(name: str, controller: str) -> GatewayClass:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"controllerName": controller}}, GatewayClass)


def test_a_class_is_whose_controller_it_names_whatever_it_is_called() -> None:
    """Ports were opened for Gateways of another controller's class that was called as ours is by default."""
    ours, theirs = "volcano.sh/kthena-router", "istio.io/gateway-controller"
    one, more = gateway("gw", of="inference"), (http_route("r", rule("a")), *POOLS, *PODS)
    made = desk(gateway_class("inference", ours), one, *more)
    assert goes_to(made, asked()) == "a"
    assert wanted_ports(made.world) == {80: False}
    made.world.note(gateway_class("inference", ours), gateway_class("inference", theirs))
    assert goes_to(made, asked()).startswith("404")
    assert wanted_ports(made.world) == {}
    made = desk(gateway_class("kthena-router", theirs), gateway("gw"), *more)
    assert goes_to(made, asked()).startswith("404")
    assert wanted_ports(made.world) == {}
    made.world.note(gateway_class("kthena-router", theirs), None)  # Kthena goes by its name
    assert goes_to(made, asked()) == "a"


def test_hostnames_fit_and_meet() -> None:
    assert host_fits("*.a.b", "x.y.a.b")
    assert not host_fits("*.a.b", "a.b")
    assert common_hosts("", []) == [""]
    assert common_hosts("*.a.b", ["x.a.b", "c.d"]) == ["x.a.b"]
    assert common_hosts("x.a.b", ["*.a.b"]) == ["x.a.b"]
    assert common_hosts("*.a.b", ["*.x.a.b"]) == ["*.x.a.b"]
    assert common_hosts("a.b", ["c.d"]) == []


def test_a_prefix_is_of_whole_segments() -> None:
    prefix = PathMatch(type="PathPrefix", value="/v1/")
    assert [path_fits(prefix, path) for path in ("/v1", "/v1/x", "/v1x")] == [True, True, False]
    assert not path_fits(PathMatch(type="RegularExpression", value="("), "(")
