"""Prefill and decode legs, gateways and providers' headers through the router's own sockets, to one engine that plays both parts."""

import asyncio
import json
import random
from typing import Any

import pytest

from hekla.serving.router.director import Director
from serving.router import proxykit as kit
from serving.router.worldkit import pod, route, server, to, world

pytestmark = pytest.mark.usefixtures("lane")

APP = {"app": "llama"}
PD = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}
PARAMS = {"do_remote_prefill": True, "remote_host": "10.0.0.7", "remote_block_ids": [1, 2]}
PREFILLED = json.dumps({"choices": [], "kv_transfer_params": PARAMS}).encode()


def desk_of(connector: str, **spec: Any) -> Any:
    def made(engines: Any) -> Director:
        selector = {"matchLabels": APP, "pdGroup": PD}
        ports = {"workloadPort": {"port": engines[0].port}}
        connectors = {"kvConnector": {"type": connector}} if connector else {}
        one = server("llama", workloadSelector=selector, **ports, **connectors, **spec)
        pods = [pod(role[0], {**APP, "role": role, "group": "g"}, ip="127.0.0.1") for role in ("prefill", "decode")]
        dice = random.Random(5).random
        return Director(world(route("r", to("llama"), model="m"), one, *pods, dice=dice), dice)

    return made


def is_prefill(asked: kit.Asked) -> bool:
    return asked.json().get("max_tokens") == 1


def both(prefill: bytes, decode: bytes) -> kit.Script:
    async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(prefill if is_prefill(asked) else decode)

    return script


def loads(desk: Any) -> set[tuple[int, int, int]]:
    found = desk.world.fleet.by_name.values()
    return {(one.in_flight, one.prefill_tokens, one.context_tokens) for one in found}


def test_nixls_parameters_come_from_prefill_and_go_to_decode_under_one_request_id() -> None:
    """Kthena ModelRoutePrefillDecodeDisaggregation, TestNIXLConnectorProxy."""

    async def story() -> None:
        script = both(kit.whole(PREFILLED), kit.stream(kit.event("a"), kit.event("b"), kit.USAGE_EVENT, kit.DONE))
        async with kit.plane(script, desk=desk_of("nixl")) as it:
            answer = await it.ask(kit.chat(stream=True, max_tokens=9))
            assert answer.status == 200
            assert answer.body == kit.event("a") + kit.event("b") + kit.DONE
            prefill, decode = it.engines[0].asked
            assert is_prefill(prefill)
            assert "stream" not in prefill.json()
            assert prefill.json()["kv_transfer_params"]["do_remote_decode"] is True
            assert decode.json()["kv_transfer_params"] == PARAMS
            assert (decode.json()["max_tokens"], decode.json()["stream"]) == (9, True)
            assert prefill.headers["x-request-id"] == decode.headers["x-request-id"]
            assert loads(it.desk) == {(0, 0, 0)}

    kit.run(story())


def test_a_refusal_of_the_prefill_engine_is_the_clients_to_read() -> None:
    async def story() -> None:
        too_long = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'
        async with kit.plane(both(kit.whole(too_long, 400), kit.whole()), desk=desk_of("nixl")) as it:
            answer = await it.ask(kit.chat())
            assert (answer.status, answer.body) == (400, too_long)
            assert len(it.engines[0].asked) == 1
            assert loads(it.desk) == {(0, 0, 0)}

    kit.run(story())


def test_sglangs_legs_go_at_once_and_meet_in_one_room() -> None:
    """Kthena ModelRouteSglangPrefillDecodeDisaggregation."""

    async def story() -> None:
        arrived = asyncio.Event()

        async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            if is_prefill(asked):
                arrived.set()
                writer.write(kit.whole(b"{}"))
            else:
                await arrived.wait()  # decode answers only when prefill was asked as well
                writer.write(kit.whole())

        async with kit.plane(script, desk=desk_of("", inferenceEngine="SGLang")) as it:
            answer = await it.ask(kit.chat())
            assert (answer.status, answer.body) == (200, kit.DOCUMENT)
            one, other = (asked.json() for asked in it.engines[0].asked)
            assert one["bootstrap_room"] == other["bootstrap_room"]
            assert {one["bootstrap_host"], other["bootstrap_host"]} == {"127.0.0.1"}
            assert loads(it.desk) == {(0, 0, 0)}

    kit.run(story())


def test_a_prefill_engine_that_fails_has_no_second_and_the_client_is_told() -> None:
    async def story() -> None:
        async with kit.plane(both(kit.whole(b"{}", 503), kit.whole()), desk=desk_of("nixl")) as it:
            answer = await it.ask(kit.chat())
            assert (answer.status, answer.error["message"]) == (500, "all prefill/decode attempts failed")
            assert it.desk.world.fleet.by_name["ml/p"].faults == 1
            assert it.desk.world.fleet.by_name["ml/d"].faults == 0
            assert loads(it.desk) == {(0, 0, 0)}

    kit.run(story())


def test_vllms_own_mooncake_is_introduced_by_the_bootstrap_server() -> None:
    async def story() -> None:
        async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            is_query = asked.line.startswith("GET /query ")
            writer.write(kit.whole(b'{"0":{"engine_id":"e0"}}') if is_query else kit.whole())

        def desk(engines: Any) -> Director:
            made = desk_of("mooncake", annotations={"router.hekla.dev/mooncake-bootstrap-port": str(engines[0].port)})
            return made(engines)

        async with kit.plane(script, desk=desk) as it:
            for _ in range(2):
                assert (await it.ask(kit.chat())).status == 200
            assert sum(asked.line.startswith("GET /query ") for asked in it.engines[0].asked) == 1
            legs = [asked.json()["kv_transfer_params"] for asked in it.engines[0].asked if asked.body]
            assert len({one["transfer_id"] for one in legs}) == 2
            assert {one.get("remote_engine_id") for one in legs} == {None, "e0"}

    kit.run(story())
