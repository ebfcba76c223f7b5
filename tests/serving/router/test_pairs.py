"""Whether prefill and decode are paired within group and domain, retried with fresh bodies, counted and given back."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from hekla.api.kthena import labels
from hekla.serving.router.annotations import SKIP_PREFILL, TOPOLOGY_KEY
from hekla.serving.router.choosing import Chain, Look
from hekla.serving.router.director import Director
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.plan import Fault, Refusal, Usage
from serving.router.worldkit import attempt_of, director, plan_of, pod, question, refusal_of, route, sent, server, to

APP = {"app": "llama"}
PD = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}


def desk(
    *pods: Any,
    connector: str = "nixl",
    engine: str = "vLLM",
    annotations: Any = None,
    dice: Callable[[], float] = lambda: 0.0,
) -> Director:
    spec: dict[str, Any] = {"workloadSelector": {"matchLabels": APP, "pdGroup": PD}, "inferenceEngine": engine}
    if connector:
        spec["kvConnector"] = {"type": connector}
    one = server("llama", annotations=annotations, model="org/llama", **spec)
    return director(route("r", to("llama"), model="m"), one, *pods, dice=dice)


def part(name: str, role: str, group: str = "g0", ip: str = "10.0.0.1", **more: str) -> Any:
    return pod(name, {**APP, "role": role, "group": group, **more}, ip=ip)


P, D = part("p", "prefill", ip="10.0.0.7"), part("d", "decode", ip="10.0.0.8")


def loads(made: Director) -> dict[str, tuple[int, int, int]]:
    found = made.world.fleet.by_name.values()
    return {one.name: (one.in_flight, one.prefill_tokens, one.context_tokens) for one in found}


def test_prefill_then_decode_of_one_pair() -> None:
    """Kthena ModelRoutePrefillDecodeDisaggregation: both legs called once, pairing inside the group."""
    made = desk(P, D)
    plan = plan_of(made, question("m"))
    first = attempt_of(plan)
    assert (first.target.name, sent(first)["model"], sent(first)["max_tokens"]) == ("p", "org/llama", 1)
    assert first.on_answer is not None
    first.on_answer(b'{"kv_transfer_params":{"remote_host":"10.0.0.7"}}', 1.0)
    second = attempt_of(plan, 1.0)
    assert second.target.name == "d"
    assert second.on_answer is None
    assert sent(second)["kv_transfer_params"] == {"remote_host": "10.0.0.7"}
    assert sent(second)["messages"] == [{"role": "user", "content": "hello"}]
    assert loads(made)["p"] == (0, 0, 0)
    plan.first_byte(2.0)
    assert loads(made)["d"][0] == 1
    plan.ended(Usage(5, 7), 3.0)
    assert loads(made) == {"p": (0, 0, 0), "d": (0, 0, 0)}


def test_engines_of_different_groups_are_no_pair() -> None:
    made = desk(part("p0", "prefill", "g0"), part("d1", "decode", "g1"))
    refused = refusal_of(made, question("m"))
    assert (refused.status, refused.reason) == (503, "scheduling")
    assert "of one group" in refused.message


def test_engines_of_different_zones_are_no_pair_where_a_topology_key_is_said() -> None:
    zone = "topology.kubernetes.io/zone"
    pods = [
        part("p", "prefill", **{zone: "a"}),
        part("far", "decode", **{zone: "b"}),
        part("near", "decode", **{zone: "a"}),
    ]
    made = desk(*pods, annotations={TOPOLOGY_KEY: zone}, dice=random.Random(1).random)
    for _ in range(8):
        plan = plan_of(made, question("m"))
        first = attempt_of(plan)
        assert first.on_answer is not None
        first.on_answer(b"{}", 0.0)
        assert attempt_of(plan).target.name == "near"
        plan.ended(None, 0.0)


def test_the_same_revision_is_preferred_and_not_demanded() -> None:
    old, new = {labels.REVISION: "1"}, {labels.REVISION: "2"}
    made = desk(part("p", "prefill", **new), part("a", "decode", **old), part("b", "decode", **new))
    assert _decode_of(made) == "b"
    assert _decode_of(desk(part("p", "prefill", **new), part("a", "decode", **old))) == "a"


def _decode_of(made: Director) -> str:
    plan = plan_of(made, question("m"))
    first = attempt_of(plan)
    assert first.on_answer is not None
    first.on_answer(b"{}", 0.0)
    return attempt_of(plan).target.name


def test_decode_goes_where_the_cache_has_room() -> None:
    made = desk(P, part("full", "decode"), part("roomy", "decode"))
    for name, held in (("full", 900), ("roomy", 1000)):
        endpoint = made.world.fleet.by_name[f"ml/{name}"]
        endpoint.context_tokens, endpoint.cache_tokens = held, 1000 if name == "full" else 100_000
    assert _decode_of(made) == "roomy"


def test_a_failed_prefill_takes_another_pair_and_every_attempt_has_its_own_body() -> None:
    """Kthena TestNIXLConnectorRetryBodyNotDrained: the second attempt has the full body."""
    made = desk(part("p0", "prefill"), part("p1", "prefill"), D)
    asked = question("m")
    before = bytes(asked.body)
    plan = plan_of(made, asked)
    first = attempt_of(plan)
    plan.failed(first, Fault.CONNECT, 0.0)
    second = attempt_of(plan)
    assert {first.target.name, second.target.name} == {"p0", "p1"}
    assert sent(second) == sent(first)
    assert asked.body == before
    assert made.world.fleet.by_name[f"ml/{first.target.name}"].faults == 1
    plan.failed(second, Fault.CONNECT, 0.0)
    last = plan.next(0.0)
    assert isinstance(last, Refusal)
    assert (last.status, last.message) == (500, "all prefill/decode attempts failed")
    assert loads(made) == {"p0": (0, 0, 0), "p1": (0, 0, 0), "d": (0, 0, 0)}


def test_a_failed_decode_is_not_asked_again() -> None:
    made = desk(P, part("p2", "prefill"), part("d0", "decode"), part("d1", "decode"))
    plan = plan_of(made, question("m"))
    first = attempt_of(plan)
    assert first.on_answer is not None
    first.on_answer(b"{}", 0.0)
    decode = attempt_of(plan)
    plan.failed(decode, Fault.CLOSED, 0.0)
    again = attempt_of(plan)
    assert again.on_answer is not None
    again.on_answer(b"{}", 0.0)
    assert attempt_of(plan).target.name != decode.target.name


def test_sglang_sends_both_legs_at_once_and_draws_a_new_room_for_every_attempt() -> None:
    """Kthena TestSGLangConnectorRetryIsolation; ModelRouteSglangPrefillDecodeDisaggregation."""
    made = desk(
        P, part("p2", "prefill"), D, part("d2", "decode"), connector="", engine="SGLang", dice=random.Random(7).random
    )
    plan = plan_of(made, question("m"))
    first = attempt_of(plan)
    assert first.beside is not None
    assert first.on_answer is None
    assert sent(first)["bootstrap_room"] == sent(first.beside)["bootstrap_room"]
    assert sent(first)["bootstrap_host"] == first.beside.target.host
    plan.failed(first.beside, Fault.CLOSED, 0.0)
    assert made.world.fleet.by_name[f"ml/{first.beside.target.name}"].faults == 1
    assert made.world.fleet.by_name[f"ml/{first.target.name}"].faults == 0
    second = attempt_of(plan)
    assert sent(second)["bootstrap_room"] != sent(first)["bootstrap_room"]
    assert 0 <= sent(second)["bootstrap_room"] < 2**63


def test_vllms_own_mooncake_asks_the_bootstrap_server_once() -> None:
    notes = {"router.hekla.dev/mooncake-bootstrap-port": "8998"}
    made = desk(P, D, connector="mooncake", annotations=notes, dice=random.Random(3).random)
    plan = plan_of(made, question("m"))
    asked = attempt_of(plan)
    assert (asked.method, asked.path, asked.body, asked.target.port) == (b"GET", "/query", b"", 8998)
    assert asked.on_answer is not None
    asked.on_answer(b'{"0":{"engine_id":"e0"}}', 0.0)
    legs = attempt_of(plan)
    assert legs.beside is not None
    assert legs.beside.headers == ((b"X-data-parallel-rank", b"0"),)
    assert sent(legs)["kv_transfer_params"]["remote_engine_id"] == "e0"
    transfer = sent(legs)["kv_transfer_params"]["transfer_id"]
    assert sent(legs.beside)["kv_transfer_params"]["transfer_id"] == transfer
    plan.ended(None, 0.0)
    again = attempt_of(plan_of(made, question("m")))
    assert again.beside is not None
    assert sent(again)["kv_transfer_params"]["transfer_id"] != transfer


def test_a_bootstrap_server_that_answers_garbage_has_failed() -> None:
    notes = {"router.hekla.dev/mooncake-bootstrap-port": "8998"}
    made = desk(P, D, connector="mooncake", annotations=notes)
    plan = plan_of(made, question("m"))
    asked = attempt_of(plan)
    assert asked.on_answer is not None
    asked.on_answer(b"what?", 0.0)
    assert isinstance(plan.next(0.0), Refusal)
    assert made.world.fleet.by_name["ml/p"].faults == 1
    assert loads(made) == {"p": (0, 0, 0), "d": (0, 0, 0)}


@pytest.mark.parametrize(("prompt", "goes_to"), [("short", "d"), ("long " * 400, "p")])
def test_a_short_prompt_is_not_worth_a_transfer(prompt: str, goes_to: str) -> None:
    made = desk(P, D, annotations={SKIP_PREFILL: "100"})
    plan = plan_of(made, question("m", prompt))
    assert attempt_of(plan).target.name == goes_to
    plan.first_byte(1.0)
    plan.ended(None, 1.0)
    assert loads(made) == {"p": (0, 0, 0), "d": (0, 0, 0)}


def test_a_filter_of_kthenas_takes_out_decode_engines_too() -> None:
    """Kthena TestPDSchedulerFiltersOverloadedDecodePod, TestSchedulePDGroup."""

    class FewWaiting:
        name = "least-request"
        wants_prefix = False

        def keep(self, look: Look, candidates: Any) -> Any:
            return [one for one in candidates if (one.waiting or 0) < 10]

        def reason(self, look: Look, endpoint: Endpoint) -> str:
            return "too many wait"

    made = desk(P, part("busy", "decode"), part("idle", "decode"))
    made.world.servers["ml/llama"].decode.policy = Chain(filters=[FewWaiting()], scorers=[])
    made.world.fleet.by_name["ml/busy"].waiting = 50
    assert _decode_of(made) == "idle"
    made.world.fleet.by_name["ml/idle"].waiting = 50
    assert refusal_of(made, question("m")).reason == "scheduling"


def test_a_client_that_leaves_gives_everything_back() -> None:
    made = desk(P, D)
    plan = plan_of(made, question("m"))
    attempt_of(plan)
    assert loads(made)["p"][0] == 1
    plan.ended(None, 0.5)
    assert loads(made) == {"p": (0, 0, 0), "d": (0, 0, 0)}
