"""The router in front of two real vLLM servers, by the official client. `make test-engines` runs this.

Tests share the engines and run in this order: the last one kills an engine.
"""

import asyncio
import json

import openai
import pytest
from httpx2 import ReadError, RemoteProtocolError

from hekla.serving.router.annotations import ENGINE_TOKENIZES
from serving.engines.enginekit import ADAPTER, BLOCK_TOKENS, MODEL, PATIENCE_S, figure, house, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

BROKEN = (openai.APIError, RemoteProtocolError, ReadError)
"""What the client says of a stream that is cut: its HTTP library's own errors come through."""
STORY = "the sheep come down from the lava fields before the first snow and the farmers count them at the gate "


def run(story):
    asyncio.run(asyncio.wait_for(story, 3 * PATIENCE_S))


def said(text, *more):
    return [{"role": "user", "content": text}, *more]


async def figures(engines, name):
    return [await figure(engine, name) for engine in engines]


def test_engines_are_discovered_and_share_what_comes(engines):
    async def story():
        async with house(engines) as at:
            assert [model.id for model in (await at.client.models.list()).data] == [MODEL]
            before = await figures(engines, "vllm:prompt_tokens_total")
            await asyncio.gather(
                *(at.client.completions.create(model=MODEL, prompt=f"{n} {STORY}", max_tokens=4) for n in range(12))
            )
            after = await figures(engines, "vllm:prompt_tokens_total")
            assert all(now > then for now, then in zip(after, before, strict=True)), "both engines were sent some"

    run(story())


def test_a_chat_is_streamed_as_it_is_answered_whole(engines):
    async def story():
        async with house(engines) as at:
            asked = {"model": MODEL, "messages": said(STORY), "max_tokens": 24, "temperature": 0.0}
            whole = await at.client.chat.completions.create(**asked)
            stream = await at.client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == whole.choices[0].message.content
            assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
            assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"

    run(story())


def test_completions_count_their_tokens(engines):
    async def story():
        async with house(engines) as at:
            answer = await at.client.completions.create(
                model=MODEL, prompt=[5, 6, 7, 8], max_tokens=7, n=2, temperature=1.0, extra_body={"ignore_eos": True}
            )
            assert len(answer.choices) == 2
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 14)

    run(story())


def test_what_the_engine_refuses_the_client_is_told_in_the_engines_words(engines):
    async def story():
        async with house(engines) as at:
            with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len=2048"):
                await at.client.completions.create(model=MODEL, prompt=STORY, max_tokens=5000)
            with pytest.raises(openai.NotFoundError):
                await at.client.completions.create(model="unknown", prompt=STORY, max_tokens=5)

    run(story())


def test_a_client_that_leaves_ends_its_request_in_the_engine(engines):
    async def left(at):
        """How many tokens are generated after a client has left its stream."""
        stream = await at.client.completions.create(
            model=MODEL, prompt=STORY, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(stream)
        generated = sum(await figures(engines, "vllm:generation_tokens_total"))
        await stream.close()
        await until(lambda: not any(at.served_by(engine.name) for engine in engines))
        async with asyncio.timeout(PATIENCE_S):
            while sum(await figures(engines, "vllm:num_requests_running")):
                await asyncio.sleep(0.05)
        return sum(await figures(engines, "vllm:generation_tokens_total")) - generated

    async def story():
        async with house(engines) as at:
            # vLLM looks whether somebody has left when its loop has time: once of many runs here it had said all in two seconds by then
            tries = [await left(at) for _ in range(3)]
            assert min(tries) < 1800, tries

    run(story())


def test_a_conversation_stays_where_its_cache_is(engines):
    """Seen in vLLM's own metrics: hits rise on one engine, and the other is not even asked."""

    async def story():
        async with house(engines) as at:
            queries = await figures(engines, "vllm:prefix_cache_queries_total")
            hits = await figures(engines, "vllm:prefix_cache_hits_total")
            messages = said(f"a story of its own: {STORY * 6}")
            prompt_tokens = []
            for turn in range(4):
                answer = await at.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=16)
                prompt_tokens.append(answer.usage.prompt_tokens)
                messages += [
                    {"role": "assistant", "content": answer.choices[0].message.content},
                    {"role": "user", "content": f"turn {turn}: and then?"},
                ]
            asked = [now - then for now, then in zip(await figures(engines, "vllm:prefix_cache_queries_total"), queries, strict=True)]  # fmt: skip
            found = [now - then for now, then in zip(await figures(engines, "vllm:prefix_cache_hits_total"), hits, strict=True)]  # fmt: skip
            assert sorted(asked) == [0, sum(prompt_tokens)], "one engine was asked for all turns"
            least = sum(tokens // BLOCK_TOKENS * BLOCK_TOKENS for tokens in prompt_tokens[:-1])
            assert max(found) >= 0.9 * least, "each turn found the one before it"

    run(story())


def test_an_adapter_is_loaded_and_its_requests_go_where_it_is(engines):
    async def story():
        first = engines[0]
        path = str(first.directory / "lora")
        status, text = await asyncio.to_thread(
            first.ask, "POST", "/v1/load_lora_adapter", {"lora_name": ADAPTER, "lora_path": path}
        )
        assert (status, text) == (200, f"Success: LoRA adapter '{ADAPTER}' added successfully.")
        async with house(engines, adapters=(ADAPTER,)) as at:
            pods = {one.name: one for pool in at.router.world.pools() for one in pool.members}
            await until(lambda: ADAPTER in pods[first.name].adapters)
            before = await figures(engines, "vllm:prompt_tokens_total")
            asked = {"prompt": STORY, "max_tokens": 8, "temperature": 0.0}
            answers = [await at.client.completions.create(model=ADAPTER, **asked) for _ in range(4)]
            after = await figures(engines, "vllm:prompt_tokens_total")
            assert after[0] > before[0]
            assert after[1] == before[1], "the engine without it was not asked"
            assert {answer.model for answer in answers} == {ADAPTER}, "the engine was asked for it by its name"
        await asyncio.to_thread(first.ask, "POST", "/v1/unload_lora_adapter", {"lora_name": ADAPTER})

    run(story())


def test_what_an_engine_caches_is_known_from_its_events(engines):
    """Also what it cached before anybody subscribed, which the replay tells; and requests go where their blocks are."""

    async def story():
        prompts = [[100 + number] * 32 + list(range(200, 232)) for number in range(2)]

        async def cache(engine, prompt):
            body = {"model": MODEL, "prompt": [*prompt, 7], "max_tokens": 1}
            assert (await asyncio.to_thread(engine.ask, "POST", "/v1/completions", body))[0] == 200

        await cache(engines[0], prompts[0])
        async with house(engines) as at:
            [pool] = [pool for pool in at.router.world.pools() if pool.members]
            slots = {one.name: 1 << one.slot for one in pool.members}
            everyone = sum(slots.values())

            def holders(prompt):
                return at.router.fleet.precise.match(prompt, everyone)

            await until(lambda: holders(prompts[0]) == [(slots["engine-0"], 64)])
            await cache(engines[1], prompts[1])  # past the router
            await until(lambda: holders(prompts[1]) == [(slots["engine-1"], 64)])
            feeds = at.router.cache_events.feeds.feeds()
            assert [feeds[engine.name].faults for engine in engines] == [0, 0], "every message could be read"
            hits = await figures(engines, "vllm:prefix_cache_hits_total")
            for prompt in prompts:
                await at.client.completions.create(model=MODEL, prompt=[*prompt, 8], max_tokens=1)
            found = await figures(engines, "vllm:prefix_cache_hits_total")
            assert [now - then for now, then in zip(found, hits, strict=True)] == [64, 64]
            assert (await asyncio.to_thread(engines[1].ask, "POST", "/reset_prefix_cache"))[0] == 200
            await cache(engines[1], list(range(300, 364)))  # vLLM tells with its next step
            await until(lambda: holders(prompts[1]) == [])
            assert holders(prompts[0]) != []

    run(story())


def test_what_an_engine_caches_decides_for_a_chat_that_came_there_past_the_router(engines):
    """The router knows the chat's tokens from the engine's own `/tokenize`, which renders it with the model's template."""

    async def story():
        chats = [said(f"{number} and a half {STORY * 8}") for number in range(2)]
        async with house(engines) as at:
            at.router.world.tokenizer = ENGINE_TOKENIZES
            at.router.tokenizing._wait_s = PATIENCE_S  # a busy machine takes its time
            [pool] = [pool for pool in at.router.world.pools() if pool.members]
            await until(lambda: all(one.events_port for one in pool.members) and at.router.cache_events.feeds)
            for number, engine in enumerate(engines):
                slot = 1 << next(one.slot for one in pool.members if one.name == engine.name)
                body = {"model": MODEL, "messages": chats[number], "max_tokens": 1}
                told = {"model": MODEL, "messages": chats[number]}
                assert (await asyncio.to_thread(engine.ask, "POST", "/v1/chat/completions", body))[0] == 200
                tokens = json.loads((await asyncio.to_thread(engine.ask, "POST", "/tokenize", told))[1])["tokens"]
                await until(lambda ids=tokens, bit=slot: dict(at.router.fleet.precise.match(ids, bit)).get(bit, 0) > 32)
            hits = await figures(engines, "vllm:prefix_cache_hits_total")
            for messages in chats:
                await at.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
            found = await figures(engines, "vllm:prefix_cache_hits_total")
            assert all(now - then >= 32 for now, then in zip(found, hits, strict=True)), (
                "each went where its blocks are"
            )
            assert at.router.tokenizing.outcomes["asked"] == 2

    run(story())


async def reading(stream, begun, may_go_on):
    """To the stream's end; how many tokens it counted there, as several may come in one piece."""
    tokens = None
    async for chunk in stream:
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        begun.set()
        await may_go_on.wait()
    return tokens


async def long_answer(at, prompt, tokens, may_go_on=None):
    """A stream of so many tokens that has begun, as a task that reads it; its first piece alone until it may go on."""
    begun = asyncio.Event()
    if may_go_on is None:
        may_go_on = asyncio.Event()
        may_go_on.set()
    stream = await at.client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=tokens, stream=True, stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    answer = asyncio.create_task(reading(stream, begun, may_go_on))
    await asyncio.wait((answer, asyncio.create_task(begun.wait())), return_when=asyncio.FIRST_COMPLETED)
    return answer


def test_a_router_that_goes_finishes_what_it_began(engines):
    async def story():
        async with house(engines) as at:
            answer = await long_answer(at, STORY, 200)
            at.router.stop()
            assert await answer == 200
            await at.running
            with pytest.raises(openai.APIConnectionError):
                await at.client.models.list()

    run(story())


def test_an_engine_killed_in_the_middle_of_a_stream_takes_nobody_along(engines):
    """The stream that it was writing breaks and is not begun again; everybody else is answered, and the drain is whole."""

    async def story():
        async with house(engines) as at:
            may_go_on = asyncio.Event()
            answer = await long_answer(at, STORY * 8, 1700, may_go_on)
            for engine in engines:
                engine.halt()
            [victim] = [engine for engine in engines if at.served_by(engine.name)]
            [survivor] = [engine for engine in engines if engine is not victim]
            survivor.halt(is_halted=False)
            before = await figure(survivor, "vllm:request_success_total")
            await asyncio.to_thread(victim.kill)
            may_go_on.set()
            with pytest.raises(BROKEN):
                await answer
            for number in range(6):
                whole = await at.client.completions.create(model=MODEL, prompt=f"{number} {STORY}", max_tokens=4)
                assert whole.usage.completion_tokens > 0
            async with asyncio.timeout(PATIENCE_S):  # its metrics follow its answers
                while await figure(survivor, "vllm:request_success_total") < before + 6:
                    await asyncio.sleep(0.05)
            assert await figure(survivor, "vllm:num_requests_running") == 0, "the broken one was not begun again"
            assert not at.running.done(), "the router goes on"
            last = await long_answer(at, STORY, 100)
            at.router.stop()
            assert await last == 100
            await at.running

    run(story())
