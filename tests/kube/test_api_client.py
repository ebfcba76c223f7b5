import asyncio
import gzip

import pytest
from structlog.testing import capture_logs

from hekla.api.core import ConfigMap
from hekla.api.pods import Pod
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import (
    ApiError,
    GoneError,
    NotFoundError,
    TooManyRequestsError,
    TransportError,
    hint_for_a_write,
    hint_of,
)
from hekla.kube.https import HttpsTransport
from hekla.kube.in_process import InProcessTransport
from hekla.kube.rate_limit import TokenBucket
from hekla.testing import virtual_time
from hekla.wire.messages import Response
from hekla.wire.server import Server

BUSY = b'{"kind":"Status","reason":"TooManyRequests","message":"busy","code":429}'
EMPTY = b'{"metadata":{"resourceVersion":"5"},"items":[]}'


class Script:
    """A handler that answers from a list and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.times = []

    def __call__(self, request):
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        return self.answers.pop(0)


def client_of(script, **settings):
    return ApiClient(InProcessTransport(script), **settings)


def test_a_server_that_asks_to_wait_is_waited_for():
    async def scenario():
        script = Script(Response(429, BUSY, headers=[("retry-after", "3")]), Response(200, EMPTY))
        assert (await client_of(script).list(ConfigMap)).resource_version == "5"
        assert script.times == [0, 3]

    virtual_time.run(scenario())


def test_a_refusal_without_a_status_names_what_was_asked():
    """The log said `command refused why="404 page not found"`: of which object, and what was wrong, nobody knew."""

    async def scenario():
        script = Script(Response(404, b"404 page not found\n", "text/plain"))
        with pytest.raises(NotFoundError) as refused:
            await client_of(script).get_document(ConfigMap.kind_info, "a", "ml")
        assert str(refused.value) == "GET /api/v1/namespaces/ml/configmaps/a: 404 page not found"
        assert "definitions" in hint_for_a_write(refused.value)
        assert hint_of(str(refused.value)) == ""  # who follows kinds knows better where one comes from
        assert hint_for_a_write(ApiError(403, "Forbidden", "pods is forbidden: exceeded quota")) == ""

    virtual_time.run(scenario())


def test_a_server_that_is_always_busy_is_given_up():
    async def scenario():
        script = Script(*[Response(429, BUSY, headers=[("retry-after", "1")])] * 50)
        with pytest.raises(TooManyRequestsError):
            await client_of(script).list(ConfigMap)
        assert len(script.requests) == 7

    virtual_time.run(scenario())


def test_an_eviction_that_a_budget_forbids_is_not_repeated():
    async def scenario():
        script = Script(Response(429, BUSY, headers=[("retry-after", "10")]))
        with pytest.raises(TooManyRequestsError):
            await client_of(script).evict("ns", "p")
        assert len(script.requests) == 1

    virtual_time.run(scenario())


def test_a_warning_is_logged_once():
    async def scenario():
        warning = [
            ("Warning", '299 - "spec.x is \\"old\\"", 299 - "another"'),
            ("Warning", '299 - "in a line of its own"'),
        ]
        client = client_of(Script(*[Response(200, EMPTY, headers=warning)] * 3))
        for _ in range(3):
            await client.list(ConfigMap)

    with capture_logs() as logged:
        virtual_time.run(scenario())
    assert [one["warning"] for one in logged] == ['spec.x is "old"', "another", "in a line of its own"]


def test_requests_are_held_to_the_rate():
    async def scenario():
        script = Script(*[Response(200, EMPTY)] * 4)
        client = client_of(script, rate_limit=TokenBucket(2, burst=1))
        for _ in range(4):
            await client.list(ConfigMap)
        assert script.times == [0, 0.5, 1.0, 1.5]

    virtual_time.run(scenario())


def test_pages_are_put_together_at_the_first_pages_revision():
    async def scenario():
        first = b'{"metadata":{"resourceVersion":"5","continue":"to ken"},"items":[{"metadata":{"name":"a"}}]}'
        second = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"b"}}]}'
        script = Script(Response(200, first), Response(200, second))
        page = await client_of(script).list(ConfigMap, "ns", label_selector="a in (b,c)")
        assert [item.metadata.name for item in page.items] == ["a", "b"]
        assert page.resource_version == "5"
        assert "continue=to+ken" in script.requests[1].target
        assert "labelSelector=a+in+%28b%2Cc%29" in script.requests[1].target

    virtual_time.run(scenario())


def test_an_object_that_does_not_decode_is_left_out_and_the_rest_kept():
    async def scenario():
        body = b'{"metadata":{},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":7}]}'
        page = await client_of(Script(Response(200, body))).list(Pod)
        assert [item.metadata.name for item in page.items] == ["a"]

    virtual_time.run(scenario())


def test_an_error_event_ends_a_watch_with_its_exception():
    async def scenario():
        status = b'{"kind":"Status","reason":"Expired","message":"too old","code":410}'
        frame = b'{"type":"ERROR","object":' + status + b"}\n"
        with pytest.raises(GoneError, match="too old"):
            await anext(client_of(Script(Response(200, frame))).watch(ConfigMap, resource_version="1"))

    virtual_time.run(scenario())


def test_an_answer_that_is_no_json_is_a_broken_connection():
    async def scenario():
        with pytest.raises(TransportError, match="no JSON object"):
            await client_of(Script(Response(200, b"hello"))).request("GET", "/version")

    virtual_time.run(scenario())


def test_a_zipped_answer_is_unpacked_and_a_broken_one_refused():
    async def scenario():
        packed = gzip.compress(EMPTY)
        encoding = [("content-encoding", "gzip")]
        script = Script(Response(200, packed, headers=encoding), Response(200, b"not gzip", headers=encoding))
        wire = Server()
        await wire.start(script)
        client = ApiClient(HttpsTransport(f"http://127.0.0.1:{wire.port}"))
        assert (await client.list(ConfigMap)).resource_version == "5"
        assert script.requests[0].headers["accept-encoding"] == "gzip"
        assert script.requests[0].headers["user-agent"].startswith("hekla/")
        with pytest.raises(TransportError, match="gzip answer is broken"):
            await client.list(ConfigMap)
        await client.close()
        await wire.stop(grace_s=1)

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_named():
    async def scenario():
        client = ApiClient(HttpsTransport("http://127.0.0.1:9"))
        with pytest.raises(TransportError, match=r"GET http://127.0.0.1:9"):
            await client.request("GET", "/version")
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "namespace"), [("..", "default"), (".", "default"), ("a", "..")])
def test_a_name_that_is_a_direction_in_a_path_is_sent_to_nobody(name, namespace):
    """Before a server stand proxies, to whom `pods/..` is the namespace: a deletion of the one would be that of the other."""

    async def scenario():
        script = Script()
        wire = Server()
        await wire.start(script)
        client = ApiClient(HttpsTransport(f"http://127.0.0.1:{wire.port}"))
        for asked in (
            client.get(Pod, name, namespace), client.delete(Pod, name, namespace),
            client.patch(Pod, name, {}, namespace), client.request("GET", Pod.kind_info.path(namespace, name)),
        ):  # fmt: skip
            with pytest.raises(NotFoundError, match=r'"\.\.?" not found: it is the name of nothing'):
                await asked
        await client.close()
        await wire.stop(grace_s=1)
        assert script.requests == []

    asyncio.run(scenario())
