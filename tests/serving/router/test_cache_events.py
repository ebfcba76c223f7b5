"""A router's index of what engines hold, followed from a simulated engine's events over ZeroMQ."""

import asyncio
import json
from urllib.parse import urlsplit

from hekla.app.engine.process import serving
from hekla.app.engine.settings import EngineSettings, KvEvents
from hekla.serving.router.annotations import KV_EVENTS_PORT, KV_REPLAY_PORT
from hekla.serving.router.cache_events import CacheEvents
from hekla.wire.client import HttpClient
from serving.router.worldkit import pod, server, world

PATIENCE_S = 60.0
JSON = (("content-type", "application/json"),)
BY_ITSELF = KvEvents(
    enable_kv_cache_events=True, publisher="zmq", endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*"
)


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def complete(client, port, prompt):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
    answer = await client.request("POST", f"http://127.0.0.1:{port}/v1/completions", JSON, body)
    assert answer.status == 200, answer.body


def annotated(name, addresses):
    one = pod(name, {"app": "s"}, ip="127.0.0.1")
    ports = (urlsplit(address).port for address in (addresses.kv_events, addresses.kv_replays))
    one.metadata.annotations.update(zip((KV_EVENTS_PORT, KV_REPLAY_PORT), map(str, ports), strict=True))
    return one


def test_what_an_engine_holds_is_known_before_and_after_it_is_found_and_not_when_it_has_gone():
    async def story():
        settings = EngineSettings(
            model="m", host="127.0.0.1", port=0, time_scale=0.01, kv_events=BY_ITSELF, grace_s=0.0
        )
        async with serving(settings) as addresses, HttpClient() as client:
            early, late = list(range(1000, 1032)), list(range(2000, 2032))
            await complete(client, addresses.port, [*early, 1])
            found = annotated("engine", addresses)
            at = world(server("s"), found)
            [endpoint] = [one for pool in at.pools() for one in pool.members]
            events = CacheEvents(at)
            following = asyncio.create_task(events.run())
            try:
                known = at.fleet.precise.match
                await until(lambda: known(early, 1 << endpoint.slot) == [(1 << endpoint.slot, 32)])
                assert endpoint.has_events
                await complete(client, addresses.port, [*late, 1])
                await until(lambda: known(late, 1 << endpoint.slot) == [(1 << endpoint.slot, 32)])
                at.note(found, None)
                assert known(early, 1 << endpoint.slot) == []
                await until(lambda: not endpoint.has_events)
                assert events.feeds.feeds() == {}
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    asyncio.run(story())
