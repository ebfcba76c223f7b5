"""Traces: a caller's trace goes on through the router to the engine, and a collector gets the router's span."""

import asyncio
import json
from pathlib import Path

import pytest

from hekla.serving.router.telemetry import Tracing
from hekla.wire.client import HttpClient
from serving.router import proxykit as kit
from serving.router.test_running import routed

pytestmark = pytest.mark.usefixtures("lane")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_callers_trace_goes_on_to_the_engine_and_to_the_collector(tmp_path: Path) -> None:
    async def story() -> None:
        got: asyncio.Queue[kit.Asked] = asyncio.Queue()

        async def collects(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            got.put_nowait(asked)
            writer.write(kit.whole(b"{}"))

        collector = kit.ScriptedEngine(collects, "collector")
        server = await collector.serve()
        async with routed(tmp_path, kit.whole(), traces_endpoint=f"http://127.0.0.1:{collector.port}") as it:
            await it.ask(kit.chat(headers=f"traceparent: {PARENT}\r\n"))
            asked = next(one for one in it.engines[0].asked if one.line.startswith("POST"))
            _, trace, span, flags = asked.headers["traceparent"].split("-")
            assert (trace, flags) == (PARENT.split("-")[1], "01")
            assert span != PARENT.split("-")[2]
            assert asked.head.lower().count(b"traceparent") == 1
            it.router.keep_books()
            posted = await got.get()
            assert posted.line == "POST /v1/traces HTTP/1.1"
            [found] = json.loads(posted.body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
            assert (found["traceId"], found["spanId"], found["parentSpanId"]) == (trace, span, PARENT.split("-")[2])
            attributes = {one["key"]: one["value"] for one in found["attributes"]}
            assert attributes["gen_ai.usage.input_tokens"] == {"intValue": "7"}
            assert attributes["hekla.pod"] == {"stringValue": "m-0-pod"}
            assert [one["name"] for one in found["events"]] == ["planned", "first byte"]
        server.close()

    kit.run(story())


def test_a_trace_that_makes_no_sense_is_begun_anew_and_one_that_is_not_sampled_is_not_told() -> None:
    async def story() -> None:
        async with HttpClient() as client:
            tracing = Tracing("http://127.0.0.1:1", "x", client, share=0.0)
            for wrong in (b"", b"traceparent: x\r\n", b"traceparent: 00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01\r\n"):
                begun = tracing.begin(wrong)
                assert (begun.parent, begun.is_sampled, len(begun.trace), len(begun.span)) == ("", False, 32, 16)
            quiet = tracing.begin(f"traceparent: {PARENT[:-2]}00\r\n".encode())
            assert not quiet.is_sampled
            assert quiet.header.endswith(b"-00")

    kit.run(story())
