"""Whether routes and servers say what they come to: a route to nothing, weights of zero, cyclic adapters, no pairs."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hekla.api.core import Namespace, Pod
from hekla.api.foreign import Gateway
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.api.meta import Resource
from hekla.serving.route_status import reconcile_model_route_status, reconcile_model_server_status
from hekla.testing.world import FakeWorld
from serving.router.worldkit import pod, route, server, to

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)


def document(one: Resource) -> dict[str, Any]:
    info = type(one).kind_info
    found: dict[str, Any] = msgspec.to_builtins(one)
    found |= {"apiVersion": info.api_version, "kind": info.kind}
    found["metadata"] |= {"uid": f"{info.kind}/{one.metadata.name}", "generation": 1}
    if isinstance(one, Pod):
        found["spec"] = {"nodeName": "node"}
    else:
        del found["status"]
    return found


def world(*objects: Resource) -> FakeWorld:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}
    return FakeWorld(node, *map(document, objects))


def conditions(made: FakeWorld, name: str, now: datetime = NOW) -> dict[str, tuple[str, str]]:
    one = made.get(ModelRoute, "ml", name)
    assert one is not None
    made.execute(reconcile_model_route_status.decide(one, made, now))
    again = made.get(ModelRoute, "ml", name)
    assert again is not None
    assert not list(reconcile_model_route_status.decide(again, made, LATER)), "a second look changes nothing"
    return {said.type: (said.status, said.reason) for said in again.status.conditions}


def message(made: FakeWorld, kind: str, name: str = "r") -> str:
    one = made.get(ModelRoute, "ml", name)
    assert one is not None
    return next(said.message for said in one.status.conditions if said.type == kind)


def test_a_route_whose_servers_exist_is_all_right() -> None:
    assert conditions(world(route("r", to("a"), model="m"), server("a")), "r") == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
    }


def test_an_accepted_route_says_which_requests_it_does_not_take() -> None:
    rules = [{"targetModels": [to("a")]} for _ in range(3)]
    made = world(route("r", model="m", rules=rules[:2], parentRefs=[{"name": "gate"}]), server("a"))
    assert conditions(made, "r")["Accepted"] == ("True", "Accepted")
    assert message(made, "Accepted") == (
        "requests that come by Gateway ml/gate, and no others, are routed by this route; "
        "rule 1 is never asked, as rule 0 takes every request: put what has conditions first"
    )
    made = world(route("r", model="m", rules=rules), server("a"))
    conditions(made, "r")
    assert "rules 1 to 2 are never asked" in message(made, "Accepted")
    guarded = {**rules[0], "modelMatch": {"headers": {"x-tier": {"exact": "gold"}}}}
    made = world(route("r", model="m", rules=[guarded, rules[1]]), server("a"))
    conditions(made, "r")
    assert message(made, "Accepted") == "requests are routed by this route"


def test_a_route_to_nothing_says_so() -> None:
    made = world(route("r", to("gone"), model="m"))
    assert conditions(made, "r")["ResolvedRefs"] == ("False", "ModelServerNotFound")
    assert message(made, "ResolvedRefs") == (
        'rule 0 sends requests to ModelServer "ml/gone", which does not exist; create it or name another'
    )
    nobody = route("r", {"externalModelProviderName": "gone"}, model="m")
    assert conditions(world(nobody), "r")["ResolvedRefs"] == ("False", "ExternalModelProviderNotFound")


def test_what_a_canary_has_left_behind_at_weight_zero_takes_no_request_and_is_told_last() -> None:
    old, new, lost = (to(name, weight=weight) for name, weight in (("old", 0), ("new", 100), ("lost", 50)))
    made = world(route("r", old, new, model="m"), server("new"))
    assert conditions(made, "r")["ResolvedRefs"] == ("False", "ModelServerNotFound")
    assert message(made, "ResolvedRefs") == (
        'rule 0 names ModelServer "ml/old", which does not exist, with weight 0, so no request goes there; take it out of the rule'
    )
    made = world(route("r", old, lost, model="m"))
    conditions(made, "r")
    assert 'sends requests to ModelServer "ml/lost"' in message(made, "ResolvedRefs")


def gate(name: str = "gate", *, namespace: str = "ml", of_class: str = "kthena-router", **more: Any) -> Gateway:
    listener = {"name": "web", "port": 80, "protocol": "HTTP", **more}
    document = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": of_class, "listeners": [listener]},
    }
    return msgspec.convert(document, Gateway)


@pytest.mark.parametrize(
    ("gateway", "parent", "accepted", "resolved", "said"),
    [
        (gate(), {"name": "gate"}, "Accepted", "ResolvedRefs", ""),
        (gate(), {"name": "gaet"}, "Accepted", "GatewayNotFound", 'by Gateway "ml/gaet", which does not exist; create it or'),
        (
            gate(), {"name": "gate", "namespace": "web"}, "Accepted", "GatewayNotFound",
            'requests are to come by Gateway "web/gate", which does not exist',
        ),
        (
            gate(), {"name": "gate", "sectionName": "wbe"}, "NoMatchingParent", "ResolvedRefs",
            'Gateway "ml/gate" has no listener of the sectionName and port that the route names; it has web (port 80)',
        ),
        (gate(), {"name": "gate", "port": 81}, "NoMatchingParent", "ResolvedRefs", "it has web (port 80)"),
        (
            gate(of_class="nginx"), {"name": "gate"}, "NoMatchingParent", "ResolvedRefs",
            'Gateway "ml/gate" has the class "nginx", which the router does not serve',
        ),
        (
            gate(namespace="web"), {"name": "gate", "namespace": "web"}, "NotAllowedByListeners", "ResolvedRefs",
            'no listener of Gateway "web/gate" lets routes of namespace "ml" in; see its allowedRoutes',
        ),
        (
            gate(), {"name": "gate", "kind": "Service"}, "NoMatchingParent", "ResolvedRefs",
            'the route names Service "gate", and requests come by Gateways alone; name one, or none',
        ),
    ],
)  # fmt: skip
def test_a_route_that_no_gateway_brings_requests_says_so(
    gateway: Gateway, parent: dict[str, Any], accepted: str, resolved: str, said: str
) -> None:
    made = world(route("r", to("a"), model="m", parentRefs=[parent]), server("a"), gateway)
    told = conditions(made, "r")
    assert (told["Accepted"][1], told["ResolvedRefs"][1]) == (accepted, resolved)
    assert said in message(made, "Accepted") + message(made, "ResolvedRefs")
    beside = world(
        route("r", to("a"), model="m", parentRefs=[{"name": "open"}, parent]), server("a"), gateway, gate("open")
    )
    assert conditions(beside, "r")["Accepted"] == ("True", "Accepted"), "one that lets it in is enough"


def test_weights_that_sum_to_zero_and_no_rules_at_all_are_said() -> None:
    assert conditions(world(route("r", to("a", weight=0), model="m")), "r")["Accepted"] == ("False", "NoWeight")
    assert conditions(world(route("r", model="m", rules=[])), "r")["Accepted"] == ("False", "NoRules")


def test_a_route_in_the_shade_of_an_older_one_says_so() -> None:
    old = route("old", to("a"), model="m")
    young = route("r", to("a"), model="m", created="2026-02-01T00:00:00Z")
    made = world(old, young, server("a"))
    assert conditions(made, "r")["Accepted"] == ("False", "OlderRouteWins")
    assert 'route "ml/old" is older' in message(made, "Accepted")
    assert conditions(made, "old")["Accepted"] == ("True", "Accepted")
    made.remove(ModelRoute, "ml", "old")
    assert conditions(made, "r")["Accepted"] == ("True", "Accepted")


@pytest.mark.parametrize(
    ("older", "younger", "reason"),
    [
        ({}, {"parentRefs": [{"name": "gate"}]}, "OlderRouteWins"),
        ({}, {"parentRefs": [{"name": "gate", "namespace": "infra"}]}, "Accepted"),
        ({"parentRefs": [{"name": "gate"}]}, {"parentRefs": [{"name": "gate", "namespace": "ml"}]}, "OlderRouteWins"),
        ({"parentRefs": [{"name": "gate"}]}, {"parentRefs": [{"name": "gate"}, {"name": "other"}]}, "Accepted"),
        ({"parentRefs": [{"name": "gate"}]}, {}, "Accepted"),
    ],
)
def test_a_route_by_a_gateway_says_that_an_older_one_takes_what_comes_there(
    older: dict[str, Any], younger: dict[str, Any], reason: str
) -> None:
    young = route("r", to("a"), model="m", created="2026-02-01T00:00:00Z", **younger)
    made = world(route("old", to("a"), model="m", **older), young, server("a"))
    assert conditions(made, "r")["Accepted"][1] == reason


def test_an_adapter_of_an_older_route_elsewhere_is_said() -> None:
    old = route("old", to("a"), model="x", namespace="team", loraAdapters=["lora", "other"])
    young = route("r", to("a"), model="m", created="2026-02-01T00:00:00Z", loraAdapters=["sql", "lora"])
    made = world(old, young, server("a"))
    assert conditions(made, "r")["AdaptersResolved"] == ("False", "OlderRouteWins")
    assert message(made, "AdaptersResolved") == (
        'adapter "lora" is also one of the older route "team/old", which takes every request for it; rename one of them'
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (route("o", to("a"), model="lora", loraAdapters=["m"]), "CyclicAdapters"),
        (route("o", to("a"), model="lora"), "AdapterIsAModel"),
        (route("o", to("a"), model="x"), "AdaptersResolved"),
    ],
)
def test_adapters_that_are_models_elsewhere_are_said(other: ModelRoute, reason: str) -> None:
    made = world(route("r", to("a"), model="m", loraAdapters=["lora"]), other, server("a"))
    assert conditions(made, "r")["AdaptersResolved"][1] == reason


def test_an_adapter_called_like_its_own_model_is_a_cycle() -> None:
    made = world(route("r", to("a"), model="m", loraAdapters=["m"]), server("a"))
    assert conditions(made, "r")["AdaptersResolved"] == ("False", "CyclicAdapters")


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    made = world(route("r", to("gone"), model="m"))
    conditions(made, "r", NOW)
    made.change(ModelRoute, "ml", "r", {"metadata": {"generation": 2}})
    one = made.get(ModelRoute, "ml", "r")
    assert one is not None
    made.execute(reconcile_model_route_status.decide(one, made, LATER))
    again = made.get(ModelRoute, "ml", "r")
    assert again is not None
    assert {said.last_transition_time for said in again.status.conditions} == {"2026-01-02T00:00:00Z"}
    assert {said.observed_generation for said in again.status.conditions} == {2}


PD = {"groupKey": "g", "prefillLabels": {"r": "p"}, "decodeLabels": {"r": "d"}}


def ready(*pods: Pod, **spec: Any) -> tuple[int, int, str]:
    made = world(server("s", {"app": "s"}, **spec), *pods)
    one = made.get(ModelServer, "ml", "s")
    assert one is not None
    made.execute(reconcile_model_server_status.decide(one, made, NOW))
    again = made.get(ModelServer, "ml", "s")
    assert again is not None
    assert not list(reconcile_model_server_status.decide(again, made, LATER))
    return again.status.matched_replicas, again.status.ready_replicas, again.status.conditions[0].reason


def test_a_server_counts_its_engines() -> None:
    assert ready() == (0, 0, "NoPods")
    assert ready(pod("a", {"app": "s"}, ready=False)) == (1, 0, "NoReadyPods")
    assert ready(pod("a", {"app": "s"}), pod("b", {"app": "s"}, ready=False)) == (2, 1, "EnginesReady")


def test_a_server_of_pairs_needs_both_halves_of_one() -> None:
    spec = {"workloadSelector": {"matchLabels": {"app": "s"}, "pdGroup": PD}}
    prefill, decode = ({"app": "s", "r": role, "g": "0"} for role in "pd")
    assert ready(pod("p", prefill), pod("d", {**decode, "g": "1"}), **spec) == (2, 2, "NoPairs")
    assert ready(pod("p", prefill), pod("d", decode), **spec) == (2, 2, "EnginesReady")


def test_news_wake_the_routes_that_they_concern() -> None:
    made = world(route("r", to("a"), model="m"), route("s", to("b"), model="m"), server("a"), server("b"))
    finds = reconcile_model_route_status.finds
    server_a, first = made.get(ModelServer, "ml", "a"), made.get(ModelRoute, "ml", "r")
    assert list(finds[ModelServer](server_a, made)) == [("ml", "r")]
    assert list(finds[ModelRoute](first, made)) == [("ml", "r"), ("ml", "s")]
    bound = world(route("r", to("a"), model="m", parentRefs=[{"name": "gate"}]), route("s", to("a"), model="m"))
    assert list(finds[Gateway](gate(), bound)) == [("ml", "r")]
    assert list(reconcile_model_server_status.finds[Pod](pod("x", {"app": "a"}), made)) == [("ml", "a")]


def test_a_namespace_that_is_let_in_by_its_labels_wakes_its_routes() -> None:
    chosen = {"from": "Selector", "selector": {"matchLabels": {"may": "yes"}}}
    by_gate = route("r", to("a"), model="m", parentRefs=[{"name": "gate"}])
    made = world(by_gate, route("s", to("a"), model="n"), server("a"), gate(allowedRoutes={"namespaces": chosen}))
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    made.put(space)
    assert conditions(made, "r")["Accepted"] == ("False", "NotAllowedByListeners")
    space["metadata"] |= {"labels": {"may": "yes"}}
    made.put(space)
    namespace = made.get(Namespace, "", "ml")
    assert list(reconcile_model_route_status.finds[Namespace](namespace, made)) == [("ml", "r")]
    assert conditions(made, "r")["Accepted"] == ("True", "Accepted")


def annotations_read(*pods: Pod, **annotations: str) -> tuple[str, str, str]:
    told = {f"router.hekla.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    made = world(server("s", annotations=told), *pods)
    one = made.get(ModelServer, "ml", "s")
    made.execute(reconcile_model_server_status.decide(one, made, NOW))
    again = made.get(ModelServer, "ml", "s")
    assert again is not None
    assert not list(reconcile_model_server_status.decide(again, made, LATER)), "a second look changes nothing"
    found = [one for one in again.status.conditions if one.type == "AnnotationsRead"]
    return (found[0].status, found[0].reason, found[0].message) if found else ("", "", "")


def test_an_annotation_that_came_past_the_webhook_and_cannot_be_read_is_told() -> None:
    assert annotations_read() == ("", "", "")
    assert annotations_read(kv_events_port="5557")[:2] == ("True", "AnnotationsRead")
    status, reason, said = annotations_read(kv_events_port="many", data_parallel_ranks="1000")
    assert (status, reason) == ("False", "UnreadableAnnotation")
    assert said == (
        'annotation router.hekla.dev/kv-events-port says "many" and counts as absent: write a number from 0 to 65535 '
        "(and 1 more such)"
    )
    assert annotations_read(ranks="8")[:2] == ("False", "UnknownAnnotation")


def test_a_pods_annotation_that_cannot_be_read_is_told_by_its_server() -> None:
    wrong, stranger = pod("b", {"app": "s"}), pod("a", {"app": "s"})
    wrong.metadata.annotations["router.hekla.dev/data-parallel-ranks"] = "-2"
    stranger.metadata.annotations["router.hekla.dev/tokenizer"] = "engine"
    status, reason, said = annotations_read(wrong, stranger)
    assert (status, reason) == ("False", "UnreadableAnnotation")
    assert said.startswith(
        'annotation router.hekla.dev/data-parallel-ranks says "-2" and counts as absent: write a number from 0 to 256'
    )
    assert said.endswith('; it stands on pod "b" (and 1 more such)')


def test_a_route_is_told_that_annotations_for_the_router_stand_on_servers() -> None:
    one = route("r", to("a"), model="m")
    one.metadata.annotations["router.hekla.dev/tokenizer"] = "engine"
    made = world(one, server("a"))
    assert conditions(made, "r")["AnnotationsRead"] == ("False", "UnknownAnnotation")
    assert "a ModelServer has router.hekla.dev/" in message(made, "AnnotationsRead")
