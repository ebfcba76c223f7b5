import asyncio
from typing import Any

import pytest

from hekla.apiserver.auth.attributes import Attributes, Decision
from hekla.apiserver.memory_store import MemoryStore
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError
from hekla.kube.in_process import InProcessTransport
from hekla.testing.api_server import ApiCaller, api_server
from hekla.wire.messages import Peer, Request

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class NotPrivate:
    """Lets everybody do everything but bind the pod that is called private."""

    def decide(self, attributes: Attributes) -> Decision:
        return Decision(is_allowed=attributes.name != "private")


def test_each_pod_is_answered_for_itself_and_the_bound_ones_are_as_if_bound_alone() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            uids = {}
            for name in ("a", "b", "c"):
                uids[name] = (await api.post(PODS, pod(name)))[1]["metadata"]["uid"]
            client = ApiClient(InProcessTransport(api.server.handle))
            assert client.binds_in_bulk
            refusals = await client.bind_many([
                ("default", "a", uids["a"], "n1"),
                ("default", "b", "another", "n1"),
                ("default", "gone", "", "n1"),
                ("nowhere", "a", "", "n1"),
                ("default", "a", uids["a"], "n2"),
                ("default", "c", "", "n3"),
            ])  # fmt: skip
            assert [refusal and refusal.code for refusal in refusals] == [None, 409, 404, 404, 409, None]
            _, listed = await api.get(PODS)
            assert {p["metadata"]["name"]: p["spec"].get("nodeName") for p in listed["items"]} == {
                "a": "n1", "b": None, "c": "n3",
            }  # fmt: skip
            assert [c["type"] for c in listed["items"][0]["status"]["conditions"]] == ["PodScheduled"]

    asyncio.run(play())


def test_who_may_not_bind_a_pod_may_not_do_so_among_others() -> None:
    async def play() -> None:
        server = api_server()
        async with ApiCaller(server) as api:
            for name in ("private", "open"):
                await api.post(PODS, pod(name))
            server.backend.authorizer = NotPrivate()
            client = ApiClient(InProcessTransport(server.handle))
            refusals = await client.bind_many([("default", "private", "", "n1"), ("default", "open", "", "n1")])
            assert [refusal and refusal.code for refusal in refusals] == [403, None]

    asyncio.run(play())


def test_nobody_outside_this_process_is_offered_the_call() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            request = Request("POST", "/hekla/bindings", {}, b"[]", Peer(host="127.0.0.1"))
            answer: Any = api.server.handle(request)
            assert answer.status == 404

    asyncio.run(play())


def test_pods_that_could_not_be_made_durable_are_said_to_be_unbound() -> None:
    async def play() -> None:
        store = MemoryStore()
        async with ApiCaller(api_server(store)) as api:
            await api.post(PODS, pod("a"))
            client = ApiClient(InProcessTransport(api.server.handle))
            await store.close()
            (refusal,) = await client.bind_many([("default", "a", "", "n1")])
            assert isinstance(refusal, ApiError)
            assert refusal.code == 503

    asyncio.run(play())


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_client_says_whether_its_server_binds_in_bulk(is_bulk: bool) -> None:
    class Transport:
        binds_in_bulk = is_bulk

    assert ApiClient(Transport()).binds_in_bulk is is_bulk  # type: ignore[arg-type]  # asked nothing else
