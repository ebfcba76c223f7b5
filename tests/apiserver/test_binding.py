import asyncio
from typing import Any

from hekla.testing.api_server import STRATEGIC, ApiCaller

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}


def binding(node: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", **metadata},
        "target": {"kind": "Node", "name": node},
    }


def test_the_spliced_bytes_are_the_object_that_a_decoder_would_have_made() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            _, before = await api.post(PODS, pod())
            condition = {"type": "Custom", "status": "True"}
            await api.patch(f"{PODS}/p/status", {"status": {"conditions": [condition]}}, STRATEGIC)
            _, before = await api.get(f"{PODS}/p")
            assert (await api.post(f"{PODS}/p/binding", binding("n1")))[0] == 201
            _, after = await api.get(f"{PODS}/p")
            assert after["spec"] == {**before["spec"], "nodeName": "n1"}
            assert [one["type"] for one in after["status"]["conditions"]] == ["Custom", "PodScheduled"]
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
            _, found = await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
            assert len(found["items"]) == 1

    asyncio.run(play())


def test_a_binding_replaces_what_said_that_the_pod_could_not_be_scheduled() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(PODS, pod())
            waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            await api.patch(f"{PODS}/p/status", {"status": {"conditions": [waiting]}}, STRATEGIC)
            await api.post(f"{PODS}/p/binding", binding("n1"))
            _, after = await api.get(f"{PODS}/p")
            assert [(c["type"], c["status"]) for c in after["status"]["conditions"]] == [("PodScheduled", "True")]

    asyncio.run(play())


def test_a_binding_brings_its_annotations_along() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(PODS, pod())
            await api.post(f"{PODS}/p/binding", binding("n1", annotations={"gpu": "0,1"}))
            assert (await api.get(f"{PODS}/p"))[1]["metadata"]["annotations"] == {"gpu": "0,1"}

    asyncio.run(play())


def test_of_two_schedulers_one_binds() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(PODS, pod())
            answers = await asyncio.gather(*(api.post(f"{PODS}/p/binding", binding(f"n{n}")) for n in range(5)))
            assert sorted(status for status, _ in answers) == [201, 409, 409, 409, 409]

    asyncio.run(play())


def test_a_pod_that_is_another_or_going_is_not_bound() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(PODS, pod())
            status, _ = await api.post(f"{PODS}/p/binding", binding("n1", uid="00000000-0000-0000-0000-000000000000"))
            assert status == 409
            assert (await api.post("/api/v1/namespaces/default/pods/none/binding", binding("n1", name="none")))[
                0
            ] == 404
            assert (await api.post(f"{PODS}/p/binding", {"target": {}}))[0] == 400
            assert (await api.post("/api/v1/namespaces/default/bindings", binding("n1")))[0] == 201

    asyncio.run(play())
