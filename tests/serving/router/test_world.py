"""Whether the world follows its objects: pods join and leave, counts stay, and any order of news ends in the same table."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.api.core import Secret
from hekla.api.kthena import labels
from hekla.api.kthena.provider import ExternalModelProviderStatus
from hekla.api.kthena.server import ModelServerStatus
from hekla.api.meta import ObjectMeta
from hekla.serving.router.backends import bounded_by, traits_of_server
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.world import World
from serving.router.worldkit import pod, provider, server, world

APP = {"app": "llama"}
PD = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}


def names(made: World, key: str = "ml/llama") -> list[str]:
    return sorted(one.name for one in made.servers[key].decode.members)


def test_ready_pods_with_the_labels_serve_and_no_others() -> None:
    made = world(
        server("llama"),
        pod("a", APP),
        pod("b", {"app": "other"}),
        pod("c", APP, ready=False),
        pod("d", APP, namespace="elsewhere"),
        pod("e", APP, ip=""),
    )
    assert names(made) == ["a"]
    assert made.servers["ml/llama"].matched == {"ml/a", "ml/c", "ml/e"}


def test_order_of_news_does_not_matter() -> None:
    news = [server("llama"), pod("a", APP), pod("b", APP), server("other", {"app": "other"})]
    for seed in range(6):
        random.Random(seed).shuffle(news)
        made = world(*news)
        assert names(made) == ["a", "b"]
        assert names(made, "ml/other") == []


def test_a_server_that_comes_after_its_pods_takes_them_as_they_are_by_then() -> None:
    made = world(pod("a", APP, ready=False), pod("b", APP), pod("c", {"app": "other"}))
    made.note(pod("a", APP, ready=False), pod("a", APP))
    made.note(pod("b", APP), pod("b", APP, ready=False))
    made.note(pod("c", {"app": "other"}), pod("c", APP))
    made.note(None, server("llama"))
    assert names(made) == ["a", "c"]
    assert made.servers["ml/llama"].matched == {"ml/a", "ml/b", "ml/c"}


def test_a_pod_that_stops_being_ready_leaves_and_comes_back_with_another_record() -> None:
    made = world(server("llama"), pod("a", APP))
    made.note(pod("a", APP), pod("a", APP, ready=False))
    assert names(made) == []
    assert made.fleet.by_name == {}
    made.note(None, pod("a", APP))
    assert names(made) == ["a"]
    made.note(pod("a", APP), None)
    assert names(made) == []


def test_what_was_counted_on_a_pod_stays_when_the_pod_changes() -> None:
    """Kthena TestAddOrUpdatePod_MetricsPreservedOnUpdate."""
    made = world(server("llama"), pod("a", APP))
    endpoint = made.servers["ml/llama"].decode.members[0]
    endpoint.in_flight, endpoint.kv_usage = 3, 0.5
    made.note(pod("a", APP), pod("a", {**APP, "new": "label"}, restarts=1))
    after = made.servers["ml/llama"].decode.members[0]
    assert after is endpoint
    assert (after.in_flight, after.kv_usage, after.incarnation) == (3, 0.5, "a/1")


def test_labels_that_change_move_a_pod_between_servers() -> None:
    made = world(server("llama"), server("other", {"app": "other"}), pod("a", APP))
    made.note(pod("a", APP), pod("a", {"app": "other"}))
    assert (names(made), names(made, "ml/other")) == ([], ["a"])


def test_a_selector_that_changes_moves_the_pods() -> None:
    made = world(server("llama"), pod("a", APP), pod("b", {"app": "other"}))
    made.note(server("llama"), server("llama", {"app": "other"}))
    assert names(made) == ["b"]
    made.note(server("llama", {"app": "other"}), None)
    assert made.servers == {}
    assert made.fleet.by_name == {}


def test_a_pod_may_serve_for_several_servers_on_one_port_or_on_two() -> None:
    made = world(
        server("one", APP), server("two", APP), server("three", APP, workloadPort={"port": 9000}), pod("a", APP)
    )
    one, two, three = (made.servers[f"ml/{name}"].decode.members[0] for name in ("one", "two", "three"))
    assert one is two
    assert (one.name, one.port, three.name, three.port) == ("a", 8000, "a:9000", 9000)
    made.note(server("one", APP), None)
    assert made.fleet.by_name["ml/a"] is two
    made.note(server("two", APP), None)
    assert sorted(made.fleet.by_name) == ["ml/a:9000"]


def test_prefill_and_decode_are_told_apart_and_grouped() -> None:
    selector = {"matchLabels": APP, "pdGroup": PD}
    made = world(
        server("llama", workloadSelector=selector),
        pod("p", {**APP, "role": "prefill", "group": "g0", labels.REVISION: "r1"}),
        pod("d", {**APP, "role": "decode", "group": "g0"}),
        pod("x", {**APP, "role": "other", "group": "g0"}),
        pod("y", {**APP, "role": "decode"}),
    )
    backend = made.servers["ml/llama"]
    assert [(one.name, one.role, one.group, one.revision) for one in backend.prefill.members] == [
        ("p", "prefill", "g0", "r1")
    ]
    assert [one.name for one in backend.decode.members] == ["d"]
    made.note(None, pod("x", {**APP, "role": "prefill", "group": "g0"}))
    assert sorted(one.name for one in backend.prefill.members) == ["p", "x"]


def test_whoever_reads_metrics_is_told_of_engines_that_come_and_go() -> None:
    made, heard = world(), list[tuple[str, str]]()
    made.on_join = lambda backend, endpoint: heard.append(("joins", endpoint.name))
    made.on_leave = lambda backend, endpoint: heard.append(("leaves", endpoint.name))
    made.note(None, server("llama"))
    made.note(None, pod("a", APP))
    made.note(pod("a", APP), pod("a", {**APP, "x": "y"}))
    made.note(pod("a", APP), None)
    assert heard == [("joins", "a"), ("leaves", "a")]


def test_a_provider_gets_its_secret_whenever_it_comes() -> None:
    made = world(provider("openai", auth={"secretRef": {"name": "key", "key": "token"}}))
    assert made.providers["ml/openai"].trouble == "CredentialNotFound"
    usable = {labels.PROVIDER_CREDENTIAL: "true"}
    secret = Secret(metadata=ObjectMeta(name="key", namespace="ml", labels=usable), data={"token": "c2VjcmV0"})
    made.note(None, secret)
    assert dict(made.providers["ml/openai"].headers)[b"authorization"] == b"Bearer secret"
    made.note(secret, None)
    assert made.providers["ml/openai"].trouble == "CredentialNotFound"


NEWS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from("abc"), st.sampled_from("xy"), st.booleans(), st.booleans()),
        st.tuples(st.just("server"), st.sampled_from("st"), st.sampled_from("xy"), st.booleans(), st.booleans()),
    ),
    max_size=40,
)


@given(NEWS)
def test_any_news_leave_the_world_that_the_last_objects_make(news: list[Any]) -> None:
    """Kthena TestStore_RandomOperations."""
    made, last = world(), dict[tuple[str, str], Any]()
    for kind, name, app, flag, is_there in news:
        one = pod(name, {"app": app}, ready=flag) if kind == "pod" else server(name, {"app": app})
        before = last.get((kind, name))
        if is_there:
            made.note(before, one)
            last[kind, name] = one
        elif before is not None:
            made.note(before, None)
            del last[kind, name]
    fresh = world(*last.values())
    assert {key: names(made, key) for key in made.servers} == {key: names(fresh, key) for key in fresh.servers}
    assert made.fleet.by_name.keys() == fresh.fleet.by_name.keys()
    assert {key: one.matched for key, one in made.servers.items()} == {
        key: one.matched for key, one in fresh.servers.items()
    }


def test_a_servers_bounds_of_connections_stand_for_the_routers() -> None:
    def bounds(**said: Any) -> Bounds:
        traits = traits_of_server(server("s", trafficPolicy={"connectionPool": said}))
        assert traits.connections is not None
        return bounded_by(Bounds(), traits.connections)

    assert bounds() == Bounds()
    assert bounds(maxConnectionsPerHost=0) == Bounds()
    own = bounds(maxIdleConnections=10, maxIdleConnectionsPerHost=64, maxConnectionsPerHost=5, idleTimeout="90s")
    assert (own.engine_idle_connections, own.engine_connections, own.engine_idle_s) == (10, 5, 90.0)


def test_a_status_that_is_written_makes_nothing_stale() -> None:
    before, far = server("llama"), provider("far")
    made = world(before, far, pod("a", APP))
    version = made.version
    told = replace(before, status=ModelServerStatus(ready_replicas=1))
    made.note(before, told)
    seen = replace(far, status=ExternalModelProviderStatus(observed_generation=3))
    made.note(far, seen)
    assert made.version == version
    assert made.providers["ml/far"].source is seen
    made.note(told, server("llama", annotations={"router.hekla.dev/topology-key": "zone"}))
    assert made.version == version + 1
    assert made.servers["ml/llama"].traits.topology_key == "zone"
