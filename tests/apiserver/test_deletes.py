import asyncio
from typing import Any

from hekla.testing.api_server import STRATEGIC, ApiCaller

PODS = "/api/v1/namespaces/default/pods"
CMS = "/api/v1/namespaces/default/configmaps"


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}


async def running_pod(api: ApiCaller, name: str = "p") -> None:
    await api.post(PODS, pod(name, nodeName="n1"))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await api.patch(f"{PODS}/{name}/status", {"status": ready}, STRATEGIC)


def test_a_running_pod_is_given_its_grace_and_goes_when_its_node_says_so() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await running_pod(api)
            _, marked = await api.delete(f"{PODS}/p")
            assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
            assert (await api.get(f"{PODS}/p"))[0] == 200
            _, shorter = await api.delete(f"{PODS}/p?gracePeriodSeconds=5")
            assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
            _, longer = await api.delete(f"{PODS}/p?gracePeriodSeconds=60")
            assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
            await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
            assert (await api.get(f"{PODS}/p"))[0] == 404

    asyncio.run(play())


def test_a_pod_without_a_node_goes_at_once() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(PODS, pod())
            await api.delete(f"{PODS}/p")
            assert (await api.get(f"{PODS}/p"))[0] == 404

    asyncio.run(play())


def test_propagation_becomes_a_finalizer_that_the_collector_removes() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
                await api.post(CMS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
                _, held = await api.delete(f"{CMS}/a", {"propagationPolicy": policy})
                assert held["metadata"]["finalizers"] == [finalizer]
                await api.patch(f"{CMS}/a", {"metadata": {"finalizers": None}})
                assert (await api.get(f"{CMS}/a"))[0] == 404
            status, _ = await api.delete(f"{CMS}/a", {"propagationPolicy": "Sideways"})
            assert status == 422

    asyncio.run(play())


def test_a_job_deleted_without_a_policy_orphans_its_pods_and_says_so() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
            await api.post("/apis/batch/v1/namespaces/default/jobs", job)
            found = await api.response("DELETE", "/apis/batch/v1/namespaces/default/jobs/j")
            assert any("child pods are preserved" in value for name, value in found.headers if name == "warning")
            _, held = await api.get("/apis/batch/v1/namespaces/default/jobs/j")
            assert held["metadata"]["finalizers"] == ["orphan"]

    asyncio.run(play())


def test_a_collection_is_deleted_as_its_selector_says() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
                metadata = {"name": name, "labels": {"color": color}}
                await api.post(CMS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
            _, gone = await api.delete(f"{CMS}?labelSelector=color%3Dred")
            assert [one["metadata"]["name"] for one in gone["items"]] == ["a", "c"]
            assert [one["metadata"]["name"] for one in (await api.get(CMS))[1]["items"]] == ["b"]

    asyncio.run(play())


def test_a_namespace_waits_for_its_finalizer() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
            _, going = await api.delete("/api/v1/namespaces/n")
            assert going["status"]["phase"] == "Terminating"
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}
            assert (await api.post("/api/v1/namespaces/n/configmaps", body))[0] == 403
            going["spec"] = {"finalizers": []}
            assert (await api.put("/api/v1/namespaces/n/finalize", going))[0] == 200
            assert (await api.get("/api/v1/namespaces/n"))[0] == 404

    asyncio.run(play())


def budget(allowed: int) -> dict[str, Any]:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 2}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    return {**head, "spec": spec, "status": {**status, "observedGeneration": 1}}


def test_an_eviction_takes_from_the_budget_until_it_is_empty() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await running_pod(api, "p")
            await running_pod(api, "q")
            budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
            await api.post(budgets, budget(1))
            await api.patch(f"{budgets}/b/status", {"status": budget(1)["status"]})
            assert (await api.post(f"{PODS}/p/eviction", {"metadata": {"name": "p"}}))[0] == 201
            status, said = await api.post(f"{PODS}/q/eviction", {"metadata": {"name": "q"}})
            assert (status, said["reason"]) == (429, "TooManyRequests")
            assert "deletionTimestamp" not in (await api.get(f"{PODS}/q"))[1]["metadata"]

    asyncio.run(play())
