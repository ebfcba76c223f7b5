"""`hekla engine` answers as vLLM 0.32.0 answered: `vllm_answers.json` holds requests, right and wrong, and what came back.

They were put to a real server (CPU, a tiny model, `--enable-lora`, `VLLM_SERVER_DEV_MODE=1`) one after the other; here they
are put to the simulated engine in the same order. Of what is served the shape is compared, as numbers and texts differ; of
what is refused every word, unless pydantic goes through all kinds of a chat's messages: then all but the words.
"""

import asyncio
import contextlib
import json
from pathlib import Path

import openai

from hekla.app.engine.process import serving
from hekla.app.engine.settings import EngineSettings
from hekla.wire.client import HttpClient

RECORDED = json.loads((Path(__file__).parent / "vllm_answers.json").read_text())
LONG = "hello there " * 2000
SETTINGS = EngineSettings(
    model="/models/model", served_model_names=("tiny",), host="127.0.0.1", port=0, max_model_len=2048, block_size=32,
    num_blocks=1024, max_num_seqs=16, enable_lora=True, max_loras=2, time_scale=0.01, grace_s=0.0,
    enable_prefix_caching=False,
)  # fmt: skip


def shape(found, key=""):
    """What stands where; numbers are numbers, and lists are as their first."""
    if key in ("top_logprobs", "bytes") and isinstance(found, list | dict):
        return type(found).__name__
    if isinstance(found, dict):
        return {name: shape(value, name) for name, value in found.items()}
    if isinstance(found, list):
        return [shape(found[0])] if found else []
    return {"int": "number", "float": "number", "NoneType": None}.get(type(found).__name__, type(found).__name__)


def told(status, content_type, text):
    kind = content_type.partition(";")[0]
    if kind == "text/event-stream":
        return list(frames(text))
    if kind == "application/json" and text:
        document = json.loads(text)
        return document if status != 200 else shape(document)
    return text if not kind or status != 200 else None


def frames(text):
    """Each kind of frame once, where several of it follow one another."""
    last = None
    for frame in filter(None, text.split("\n\n")):
        lines = frame.split("\n")
        data = "".join(line[6:] for line in lines if line.startswith("data: "))
        one = [line[7:] for line in lines if line.startswith("event: ")]
        one.append(data if data == "[DONE]" else shape(json.loads(data)))
        if one != last:
            yield one
        last = one


def body_of(row):
    body = row["ask"][2]
    if isinstance(body, str):
        kind, _, text = body.partition(":")
        return text.encode("latin-1" if kind == "latin-1" else "utf-8")
    return b"" if body is None else json.dumps(body).replace("<LONG>", LONG).encode()


def headers_of(row):
    given = {} if row["ask"][2] is None else {"content-type": "application/json"}
    return tuple((name, value) for name, value in (given | row.get("headers", {})).items() if value is not None)


def differs(row, status, content_type, text):
    answer = told(status, content_type, text)
    wanted = row["answer"]
    if isinstance(wanted, dict) and isinstance(answer, dict) and "message" not in wanted.get("error", "message"):
        answer["error"].pop("message", None)
    if (status, content_type, answer) == (row["status"], row["type"] or "", wanted):
        return ""
    if row["ask"][1].startswith("/metrics") and status == row["status"]:
        return ""
    return f"{row['name']}\n  vLLM  {row['status']} {row['type']} {wanted}\n  hekla {status} {content_type} {answer}"


def test_what_vllm_answered_is_answered():
    async def story():
        async with serving(SETTINGS) as addresses:
            http, found = HttpClient(), []
            try:
                for row in RECORDED:
                    method, path, _ = row["ask"]
                    url = f"http://127.0.0.1:{addresses.port}{path}"
                    answer = await http.request(method, url, headers_of(row), body_of(row))
                    found.append(differs(row, answer.status, answer.content_type, answer.body.decode()))
            finally:
                await http.close()
            wrong = [one for one in found if one]
            assert not wrong, "\n".join(wrong)

    asyncio.run(story())


@contextlib.asynccontextmanager
async def client():
    async with serving(SETTINGS) as addresses:
        url = f"http://127.0.0.1:{addresses.port}/v1"
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as made:
            yield made


def test_an_answer_ends_at_the_first_stop_whole_and_as_a_stream():
    async def story():
        async with client() as one:
            asked = {"model": "tiny", "prompt": "the lava fields", "max_tokens": 40, "extra_body": {"ignore_eos": True}}
            free = (await one.completions.create(**asked)).choices[0].text
            stop = free[21:26]
            for stopped in (await one.completions.create(**asked, stop=[stop, "nowhere"]),):
                assert stopped.choices[0].text == free[: free.index(stop)]
                assert stopped.choices[0].finish_reason == "stop"
                assert stopped.choices[0].model_extra["stop_reason"] == stop
                assert stopped.usage.completion_tokens == (free.index(stop) + len(stop) + 3) // 4
            chunks = [chunk async for chunk in await one.completions.create(**asked, stop=stop, stream=True)]
            assert "".join(chunk.choices[0].text for chunk in chunks) == free[: free.index(stop)]
            assert chunks[-1].choices[0].finish_reason == "stop"
            token = await one.completions.create(
                **asked | {"extra_body": {"return_token_ids": True, "ignore_eos": True}}
            )
            third = token.choices[0].model_extra["token_ids"][2]
            by_token = await one.completions.create(**asked | {"extra_body": {"stop_token_ids": [third]}})
            assert by_token.choices[0].model_extra["stop_reason"] == third
            assert free.startswith(by_token.choices[0].text)

    asyncio.run(story())


def test_a_prompt_is_echoed_and_tokens_have_likelihoods():
    async def story():
        async with client() as one:
            echoed = await one.completions.create(model="tiny", prompt="lava", echo=True, max_tokens=2)
            assert echoed.choices[0].text.startswith("lava ")
            alone = await one.completions.create(model="tiny", prompt="lava", echo=True, max_tokens=0)
            assert alone.choices[0].text == "lava"
            row = (await one.completions.create(model="tiny", prompt="lava", logprobs=2, max_tokens=3)).choices[0]
            assert "".join(row.logprobs.tokens) == row.text
            assert [len(top) for top in row.logprobs.top_logprobs] == [2] * len(row.logprobs.tokens)
            chat = await one.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "lava"}],
                logprobs=True,
                top_logprobs=3,
                max_tokens=3,
            )
            told = chat.choices[0].logprobs.content
            assert "".join(entry.token for entry in told) == chat.choices[0].message.content
            assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token for entry in told)

    asyncio.run(story())


BEYOND = "1" + "0" * 400


def test_a_number_beyond_all_floats_and_half_a_surrogate_pair_are_the_clients_fault():
    bodies = [f'"{name}": {sign}{BEYOND}' for name in ("presence_penalty", "top_p") for sign in ("", "-")]
    bodies += [f'"{name}": "\\ud800"' for name in ("model", "user")]
    paths = {
        "/v1/completions": '"prompt": "hi"',
        "/v1/chat/completions": '"messages": [{"role": "user", "content": "hi"}]',
    }

    async def scenario():
        async with serving(SETTINGS) as server, HttpClient() as client:
            for path, rest in paths.items():
                for one in bodies:
                    body = f'{{"model": "tiny", {rest}, {one}}}'.encode()
                    url = f"http://127.0.0.1:{server.port}{path}"
                    found = await client.request(
                        "POST", url, headers=(("content-type", "application/json"),), body=body
                    )
                    assert found.status == 400, (path, one[:40], found.status)

    asyncio.run(scenario())
