"""What was meant by a name, where the server is slow to say it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hekla.cli.names import hint, namespace_hint, queue_hint, queue_meant
from hekla.testing import virtual_time
from hekla.wire.messages import Request, Response


def test_a_server_that_does_not_answer_holds_no_refusal_back_for_long() -> None:
    async def send(request: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        connection: Any = SimpleNamespace(transport=SimpleNamespace(send=send))
        async with asyncio.timeout(60):
            assert await hint(connection, "/api/v1/namespaces/default/pods", "p") == ""
            assert await namespace_hint(connection, "nowhere") == ""

    virtual_time.run(scenario())


QUEUES_SEEN = b'{"items": [{"metadata": {"name": "research"}}, {"metadata": {"name": "default"}}]}'


def test_a_job_that_is_refused_for_its_queue_is_told_the_nearest() -> None:
    async def send(request: Request) -> Response:
        assert request.path == "/apis/scheduling.volcano.sh/v1beta1/queues"
        return Response(200, QUEUES_SEEN)

    connection: Any = SimpleNamespace(transport=SimpleNamespace(send=send))
    refused = 'denied the request: unable to find job queue: queue.scheduling.volcano.sh "reserch" not found;'
    assert asyncio.run(queue_meant(connection, refused)) == refused[:-1] + '; did you mean "research"?'
    assert asyncio.run(queue_meant(connection, "denied the request;")) == "denied the request;"
    assert asyncio.run(queue_hint(connection, "default")) == ""
