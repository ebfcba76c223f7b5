"""What was meant by a name, where the server is slow to say it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hekla.cli.names import hint, namespace_hint
from hekla.testing import virtual_time


def test_a_server_that_does_not_answer_holds_no_refusal_back_for_long() -> None:
    async def send(request: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        connection: Any = SimpleNamespace(transport=SimpleNamespace(send=send))
        async with asyncio.timeout(60):
            assert await hint(connection, "/api/v1/namespaces/default/pods", "p") == ""
            assert await namespace_hint(connection, "nowhere") == ""

    virtual_time.run(scenario())
