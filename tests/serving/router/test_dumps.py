"""What `/debug/config_dump` shows of objects: Kthena's fields beside the objects. Kthena: DebugServer."""

from collections.abc import ItemsView
from typing import Any

from hekla.serving.router.dumps import dumped
from serving.router.worldkit import pod, route, server, to, world

PD = {"groupKey": "g", "prefillLabels": {"r": "p"}, "decodeLabels": {"r": "d"}}


def test_a_server_of_pairs_names_the_pods_of_each_half() -> None:
    pairs = server("s", workloadSelector={"matchLabels": {"app": "s"}, "pdGroup": PD})
    labels = {"app": "s", "g": "0"}
    pods = [pod("p", {**labels, "r": "p"}), pod("d", {**labels, "r": "d"}, ip="10.0.0.2"), pod("x", {"app": "s"})]
    made = world(pairs, *pods)
    [shown] = dumped([pairs], made)
    assert (shown["name"], shown["namespace"], shown["spec"]["inferenceEngine"]) == ("s", "ml", "vLLM")
    assert (shown["associatedPods"], shown["prefillPods"], shown["decodePods"]) == (
        ["ml/d", "ml/p"],
        ["ml/p"],
        ["ml/d"],
    )


def test_an_engine_is_told_with_what_was_read_of_it_and_what_was_not_is_null() -> None:
    engine = pod("a", {"app": "s"})
    made = world(server("s"), engine)
    made.fleet.by_name["ml/a"].kv_usage = 0.5
    [shown] = dumped([engine], made)
    assert (shown["engine"], shown["modelServers"], shown["models"]) == ("vLLM", ["ml/s"], [])
    assert (shown["metrics"]["gpuCacheUsage"], shown["metrics"]["tpot"]) == (0.5, None)
    assert shown["podInfo"]["podIP"] == "10.0.0.1"


def test_what_no_server_asks_for_is_told_as_it_is() -> None:
    stranger = pod("b", {"app": "other"})
    [shown] = dumped([stranger], world(server("s"), stranger))
    assert (shown["engine"], shown["modelServers"], shown["metrics"]["ttft"]) == ("", [], None)
    assert dumped([route("r", to("s"), model="m")], world())[0]["name"] == "r"


def test_many_pods_are_told_with_one_look_at_the_servers() -> None:
    class Watched(dict[str, Any]):
        looks = 0

        def items(self) -> ItemsView[str, Any]:
            self.looks += 1
            return super().items()

    pods = [pod(f"p{n}", {"app": "s"}, ip=f"10.0.0.{n}") for n in range(1, 21)]
    made = world(server("s"), server("t", {"app": "s"}), *pods)
    made.servers = watched = Watched(made.servers)
    assert all(one["modelServers"] == ["ml/s", "ml/t"] for one in dumped(pods, made))
    assert watched.looks == 1, "a look for each pod made the dump quadratic: 17 s for 10,000 pods of 1,000 servers"
