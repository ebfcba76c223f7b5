import asyncio
from types import SimpleNamespace
from typing import Any

from hekla.app.standalone import webhooks
from hekla.app.standalone.health import Health
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import StandaloneSettings
from hekla.wire.client import HttpClient
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server


def test_a_replica_that_is_told_to_end_answers_on_and_is_ready_no_more(monkeypatch: Any) -> None:
    """While a Deployment of webhooks was restarted, Jobs were refused: the API server still asked those that had gone."""
    servers: list[Server] = []

    class Noted(Server):
        def __init__(self) -> None:
            super().__init__()
            servers.append(self)

    async def answer(request: Request) -> Response:
        return Response(200, b"{}")

    async def main() -> None:
        settings = StandaloneSettings(components=("webhooks",), webhook_address="127.0.0.1:0")
        office, keeper = Office(settings, Any, Health()), SimpleNamespace(context=None)
        serving = asyncio.create_task(webhooks._answer(office, keeper, SimpleNamespace(answer=answer)))
        client = HttpClient()
        while not servers or not servers[0].port:
            await asyncio.sleep(0)
        url = f"http://127.0.0.1:{servers[0].port}/jobs/validate"
        assert (await client.request("POST", url, [], b"{}")).status == 200
        office.stopping.set()
        while not office.health.complaints():
            await asyncio.sleep(0)
        assert office.health.answer(Request("GET", "/readyz")).status == 503
        for _ in range(2):
            assert (await client.request("POST", url, [], b"{}")).header("connection") == "close"
        assert not serving.done()
        await client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    monkeypatch.setattr(webhooks, "Server", Noted)
    monkeypatch.setattr(webhooks, "LEAVE_S", 3600.0)
    asyncio.run(main())
