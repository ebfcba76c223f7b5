import asyncio
import json
import resource

import pytest

from hekla.testing.platform import running_platform
from hekla.wire.client import HttpClient
from hekla.wire.limits import ClientLimits

MEGABYTE = 1 << 20
SECRETS = "/api/v1/namespaces/default/secrets"


async def open_watches(platform, client, count):
    """Watches that wait for what never comes; returns them open."""
    opened, gate = [], asyncio.Semaphore(64)

    async def watch(number):
        async with gate:
            stream = client.stream("GET", f"{platform.url}{SECRETS}?watch=true&fieldSelector=metadata.name%3Dn{number}")
            streamed = await stream.__aenter__()
            assert streamed.status == 200
            opened.append((stream, streamed))

    await asyncio.gather(*(watch(number) for number in range(count)))
    return opened


async def idle(platform, count, most_kb):
    limits = ClientLimits(connections_per_origin=count + 10, connect_timeout_s=60)
    before = platform.resident_bytes
    async with HttpClient(ssl_context=platform.tls(), limits=limits) as client:
        opened = await open_watches(platform, client, count)
        grown = (platform.resident_bytes - before) / count / 1024
        assert grown < most_kb, f"{grown:.0f} kB a watch"
        body = json.dumps({"metadata": {"name": "n7"}}).encode()
        answer = await client.request("POST", platform.url + SECRETS, (("content-type", "application/json"),), body)
        assert answer.status == 201
        # exactly the one that waits for it is told
        told = [asyncio.create_task(anext(aiter(streamed))) for _, streamed in opened]
        done, waiting = await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        assert [json.loads(task.result())["object"]["metadata"]["name"] for task in done] == ["n7"]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def test_five_hundred_idle_watches_cost_little_and_wake_nobody_else():
    with running_platform() as platform:
        asyncio.run(idle(platform, 500, most_kb=160))
        assert platform.ask("GET", "/readyz").status == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_idle_watches_cost_little_and_wake_nobody_else():
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < 12_000:
        pytest.skip(f"this shell may open {soft} files only")
    with running_platform() as platform:
        asyncio.run(idle(platform, 10_000, most_kb=160))
        assert platform.ask("GET", "/readyz").status == 200
