"""`hekla engine` over HTTP, by the official client where it has a word for it: what vLLM answers, it answers."""

import asyncio
import contextlib
import json

import msgspec
import openai
import pytest
import zmq
import zmq.asyncio
from openai import DefaultAsyncHttpxClient

from hekla.app.engine.process import serving
from hekla.app.engine.settings import EngineSettings, EngineSettingsError, KvEvents, SpeculativeConfig
from hekla.app.engine.worker import LATE_S, Worker
from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.happenings import Ending
from hekla.simulation.engine.sequence import Ask
from hekla.testing import virtual_time

PATIENCE_S = 60.0
HELLO = [{"role": "user", "content": "tell me of the lava fields of the north, and of the sheep that cross them " * 4}]


def settings(**more):
    return EngineSettings(**{"model": "m", "host": "127.0.0.1", "port": 0, "time_scale": 0.05, "grace_s": 0.0, **more})


@contextlib.asynccontextmanager
async def engine(**more):
    async with serving(settings(**more)) as addresses:
        url = f"http://127.0.0.1:{addresses.port}"
        async with (
            DefaultAsyncHttpxClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S,
                               http_client=DefaultAsyncHttpxClient(trust_env=False)) as client,
        ):  # fmt: skip
            yield client, http, addresses


def run(story):
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_S))


def test_a_request_that_comes_while_the_end_of_a_step_goes_unnoticed_is_served_as_well():
    async def story():
        loop, ended = asyncio.get_running_loop(), []
        worker = Worker(Engine(settings().shape()), lambda: None)
        worker.submit(Ask(id="first", prompt_tokens=8, output_tokens=1), ended.append)
        loop.virtual_s += LATE_S / 2  # the step is over, and others had the processor meanwhile
        worker.submit(Ask(id="second", prompt_tokens=8, output_tokens=1), ended.append)
        await asyncio.sleep(1.0)
        assert [one.request for one in ended if isinstance(one, Ending)] == ["first", "second"]

    virtual_time.run(story())


async def figure(http, name):
    text = (await http.get("/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0)


def test_a_chat_is_answered_whole_and_as_a_stream_with_the_same_text():
    async def story():
        async with engine() as (client, _, _):
            whole = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=20)
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert whole.choices[0].finish_reason in ("length", "stop")
            assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
            assert chunks[0].choices[0].delta.role == "assistant"
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == whole.choices[0].message.content
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
            assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
            assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "the second time it is in the cache"

    run(story())


def test_completions_take_text_and_tokens_one_or_many():
    async def story():
        async with engine() as (client, _, _):
            for prompt, count in (("lava", 1), (["lava", "ice"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)):
                answer = await client.completions.create(model="m", prompt=prompt, max_tokens=3, extra_body={"ignore_eos": True})  # fmt: skip
                assert [choice.index for choice in answer.choices] == list(range(count))
                assert answer.usage.completion_tokens == 3 * count
            assert len((await client.completions.create(model="m", prompt="lava", n=3, max_tokens=1)).choices) == 3

    run(story())


def test_figures_have_the_names_of_vllm():
    async def story():
        async with engine(enable_lora=True, speculative=SpeculativeConfig(num_speculative_tokens=2)) as (
            client,
            http,
            _,
        ):
            for _ in range(2):
                await client.chat.completions.create(model="m", messages=HELLO, max_tokens=8)
            text = (await http.get("/metrics")).text
            from prometheus_client.parser import text_string_to_metric_families

            found = {family.name for family in text_string_to_metric_families(text)}
            assert {
                "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                "vllm:cache_config_info", "vllm:lora_requests_info", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
                "vllm:num_preemptions", "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success",
                "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
                "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
                "vllm:spec_decode_num_accepted_tokens",
            } <= found  # fmt: skip
            assert await figure(http, "vllm:prefix_cache_hits_total") > 0
            assert await figure(http, "vllm:request_success_total") == 2
            assert await figure(http, "vllm:time_to_first_token_seconds_count") == 2

    run(story())


def test_adapters_come_and_go_with_the_words_of_vllm():
    async def story():
        async with engine(enable_lora=True) as (client, http, _):
            added = await http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "/x"})
            assert (added.status_code, added.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
            again = await http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "/x"})
            assert again.status_code == 400
            assert again.json()["error"]["message"].startswith("The lora adapter 'sql' has already been loaded.")
            models = {one.id: one for one in (await client.models.list()).data}
            assert models["sql"].parent == "m"
            assert (await client.chat.completions.create(model="sql", messages=HELLO, max_tokens=2)).model == "sql"
            await http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="sql", messages=HELLO, max_tokens=2)

    run(story())


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "Expecting property name"),
        ("/v1/chat/completions", b'{"model": "m"}', 400, "'loc': 'body.messages', 'msg': 'Field required'"),
        ("/v1/chat/completions", b'{"model": "x", "messages": [{"role": "user", "content": "a"}]}', 404, "The model `x` does not exist. Valid aliases: m."),
        ("/v1/completions", b'{"model": "m", "prompt": ""}', 400, "Either prompt or prompt_embeds must be provided"),
        ("/v1/completions", b'{"model": "m", "prompt": "a", "max_tokens": 0}', 400, "max_tokens must be at least 1"),
        ("/v1/completions", b'{"model": "m", "prompt": "a", "max_tokens": 99999}', 400, "max_tokens=99999 cannot be greater than max_model_len=32768. Please request fewer output tokens."),
        ("/v1/completions", b'{"model": "m", "prompt": "LONG"}', 400, "contains at least 32769 input tokens, which exceeds this limit"),
        ("/v1/completions", b'{"model": "m", "prompt": "a", "n": 99999}', 400, "n must be at most 16384, got 99999."),
        ("/v1/load_lora_adapter", b'{"lora_name": "a", "lora_path": "b"}', 400, "--enable-lora"),
        ("/tokenize", b"{}", 400, "'loc': 'body.prompt', 'msg': 'Field required'"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_openais_shape(path, body, status, words):
    async def story():
        async with engine() as (_, http, _):
            answer = await http.post(
                path, content=body.replace(b"LONG", b"a" * 140_000), headers={"content-type": "application/json"}
            )
            assert answer.status_code == answer.json()["error"]["code"] == status
            assert words in answer.json()["error"]["message"]

    run(story())


def test_a_client_that_leaves_ends_its_request():
    async def story():
        async with engine(time_scale=1.0) as (client, http, _):
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, max_tokens=30_000, stream=True, extra_body={"ignore_eos": True}
            )
            await anext(stream)
            assert await figure(http, "vllm:num_requests_running") == 1
            await stream.close()

            async def is_over():
                return await figure(http, "vllm:num_requests_running") == 0

            await until(is_over)
            assert (
                await figure(http, 'vllm:request_success_total{model_name="m",engine="0",finished_reason="abort"}') == 1
            )
            assert await figure(http, "vllm:kv_cache_usage_perc") == 0
            assert (await http.get("/load")).json() == {"server_load": 0}

    run(story())


def test_an_engine_that_is_told_to_stop_finishes_its_streams():
    async def story():
        running = serving(settings(grace_s=PATIENCE_S))
        url = f"http://127.0.0.1:{(await running.__aenter__()).port}/v1"
        http = DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
            stream = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=200, stream=True)
            first = await anext(stream)
            stopping = asyncio.create_task(running.__aexit__(None, None, None))
            chunks = [first, *[chunk async for chunk in stream]]
            assert chunks[-1].choices[0].finish_reason in ("length", "stop")
            await stopping

    run(story())


def test_texts_and_tokens_turn_into_one_another():
    async def story():
        async with engine() as (_, http, _):
            told = (await http.post("/tokenize", json={"prompt": "über die Lava"})).json()
            assert told["count"] == len(told["tokens"])
            back = await http.post("/detokenize", json={"tokens": told["tokens"]})
            assert back.json() == {"prompt": "über die Lava"}
            chat = (await http.post("/tokenize", json={"messages": HELLO})).json()
            assert chat["count"] > 0

    run(story())


def test_embeddings_are_the_same_for_the_same_text():
    async def story():
        async with engine() as (client, _, _):
            answer = await client.embeddings.create(model="m", input=["lava", "ice", "lava"])
            one, other, again = (data.embedding for data in answer.data)
            assert one == again != other
            assert answer.usage.prompt_tokens == 3

    run(story())


def test_a_response_is_answered_whole_and_as_a_stream_with_the_same_text():
    async def story():
        async with engine() as (client, _, _):
            asked = {"model": "m", "input": HELLO, "instructions": "be brief", "max_output_tokens": 20}
            whole = await client.responses.create(**asked)
            events = [event async for event in await client.responses.create(**asked, stream=True)]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert (events[0].type, events[-1].response.output_text) == ("response.created", whole.output_text)
            assert whole.output_text == "".join(e.delta for e in events if e.type == "response.output_text.delta")
            last = events[-1].response
            assert events[-1].type == "response.completed", "of an answer that is cut, too: so does vLLM"
            assert last.usage.output_tokens == whole.usage.output_tokens > 0
            assert last.usage.input_tokens_details.cached_tokens > 0, "the same prompt again"
            chat = await client.chat.completions.create(
                model="m", messages=[{"role": "system", "content": "be brief"}, *HELLO], max_tokens=20
            )
            assert chat.choices[0].message.content == whole.output_text
            with pytest.raises(openai.NotFoundError, match="not found"):
                await client.responses.create(**asked, previous_response_id="resp_1")

    run(story())


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_document_that_answers_comes_first(path):
    async def story():
        async with engine() as (_, http, _):
            documents = ["sheep are white", {"text": "lava is red and hot"}, "nothing"]
            body = {"model": "m", "query": "is lava hot", "documents": documents, "top_n": 2}
            told = (await http.post(path, json=body)).json()
            assert len(told["results"]) == 2
            assert told["results"][0]["document"]["text"] == "lava is red and hot"
            assert 1 >= told["results"][0]["relevance_score"] > told["results"][1]["relevance_score"] >= 0
            assert told["usage"]["total_tokens"] > 0
            refused = await http.post(path, json={"query": "x", "documents": []})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")

    run(story())


def test_texts_are_scored_against_one_another():
    async def story():
        async with engine() as (_, http, _):
            body = {"model": "m", "text_1": "red lava", "text_2": ["red lava", "green grass"]}
            told = (await http.post("/score", json=body)).json()
            assert [one["score"] for one in told["data"]] == [1.0, 0.0]
            wrong = await http.post("/v1/score", json={"queries": ["a", "b"], "documents": ["c", "d", "e"]})
            assert "1:N" in wrong.json()["error"]["message"]

    run(story())


def test_an_engine_that_sleeps_says_so_and_wakes():
    async def story():
        async with engine() as (client, http, _):
            await http.post("/sleep")
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            with pytest.raises(openai.InternalServerError, match="sleeping"):
                await client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)
            await http.post("/wake_up")
            await client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)

    run(story())


def test_prefill_here_and_decode_there():
    """The flow of NIXL: blocks are kept until the other engine has fetched them, then they are free."""

    async def story():
        async with engine() as (prefill, at_prefill, _), engine() as (decode, _, _):
            first = await prefill.chat.completions.create(
                model="m", messages=HELLO, max_tokens=1,
                extra_body={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
            )  # fmt: skip
            params = first.kv_transfer_params
            assert params["do_remote_prefill"] is True
            assert await figure(at_prefill, "vllm:kv_cache_usage_perc") > 0
            answer = await decode.chat.completions.create(
                model="m", messages=HELLO, max_tokens=5, extra_body={"kv_transfer_params": params}
            )
            assert answer.usage.completion_tokens == 5

            async def is_free():
                return await figure(at_prefill, "vllm:kv_cache_usage_perc") == 0

            await until(is_free)

    run(story())


def test_blocks_are_told_over_zeromq_and_again_to_who_missed_them():
    """The replay endpoint is asked, so that nothing hangs on whether a subscription was there in time."""

    async def story():
        events = KvEvents(enable_kv_cache_events=True, publisher="zmq", endpoint="tcp://127.0.0.1:*",
                          replay_endpoint="tcp://127.0.0.1:*", topic="kv@pod@m")  # fmt: skip
        async with engine(kv_events=events) as (client, http, addresses):
            await client.chat.completions.create(model="m", messages=HELLO, max_tokens=40)
            tokens = (await http.post("/tokenize", json={"messages": HELLO})).json()["tokens"]
            context = zmq.asyncio.Context()
            try:
                socket = context.socket(zmq.DEALER)
                socket.connect(addresses.kv_replays)
                await socket.send_multipart([b"", (0).to_bytes(8, "big")])
                batches = []
                while (frames := await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S))[3]:
                    assert frames[:2] == [b"", b"kv@pod@m"]
                    assert int.from_bytes(frames[2], "big") == len(batches)
                    batches.append(msgspec.msgpack.decode(frames[3]))
                assert frames[2] == b"\xff" * 8
            finally:
                context.destroy(linger=0)
        stored = [event for _, events, rank in batches for event in events if rank == 0]
        assert {event["type"] for event in stored} == {"BlockStored"}
        first = stored[0]
        assert first["parent_block_hash"] is None
        assert first["token_ids"] == tokens[: 16 * len(first["block_hashes"])]
        assert stored[1]["parent_block_hash"] == first["block_hashes"][-1], "the answer's blocks go on"

    run(story())


def test_a_subscriber_hears_every_batch_after_its_first():
    async def story():
        events = KvEvents(enable_kv_cache_events=True, publisher="zmq", endpoint="tcp://127.0.0.1:*", topic="kv")
        async with engine(kv_events=events) as (client, _, addresses):
            context = zmq.asyncio.Context()
            try:
                socket = context.socket(zmq.SUB)
                socket.subscribe(b"")
                socket.connect(addresses.kv_events)
                heard, number = asyncio.ensure_future(socket.recv_multipart()), 0
                async with asyncio.timeout(PATIENCE_S):
                    while not heard.done():  # whether a subscription is there shows by the first batch that comes
                        number += 1
                        await client.completions.create(model="m", prompt=f"{number} " + "lava " * 20, max_tokens=1)
                topic, sequence, _ = await heard
                assert topic == b"kv"
                await client.completions.create(model="m", prompt="the next one " + "ice " * 20, max_tokens=1)
                following = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S)
                assert int.from_bytes(following[1], "big") == int.from_bytes(sequence, "big") + 1
            finally:
                context.destroy(linger=0)

    run(story())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"block_size": 0}, "--block-size is 0; it must be 1 or more"),
        ({"time_scale": 0.0}, "--time-scale is 0; it must be more than 0"),
        ({"lora_modules": (("a", "b"),)}, "--lora-modules needs --enable-lora"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong, words):
    with pytest.raises(EngineSettingsError, match=words):
        settings(**wrong)


def test_a_port_that_is_taken_is_named():
    async def story():
        async with engine() as (_, _, addresses):
            with pytest.raises(EngineSettingsError, match=f"--port {addresses.port} cannot be listened on"):
                async with serving(settings(port=addresses.port)):
                    pass

    run(story())


def test_the_command_takes_the_words_of_vllm_serve():
    from hekla.cli.commands import engine as command

    assert command._model_of(["Qwen/Qwen3", "--tensor-parallel-size", "2"], "simulated") == "Qwen/Qwen3"
    assert command._model_of(["--enforce-eager"], "given") == "given"
    assert command._adapter("sql=/x") == command._adapter(json.dumps({"name": "sql", "path": "/x"})) == ("sql", "/x")
    with pytest.raises(EngineSettingsError, match="--kv-events-config is not JSON"):
        command._kv_events("{")
