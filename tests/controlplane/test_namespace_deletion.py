import asyncio

from hekla.api.core import ConfigMap, Namespace, ServiceAccount
from hekla.controlplane.views import Deployment
from hekla.kube.clock import LoopClock
from hekla.kube.errors import NotFoundError
from hekla.testing import virtual_time
from hekla.testing.embedded import embedded_cluster


def run(scenario):
    async def main():
        async with embedded_cluster(clock=LoopClock()) as cluster:
            await asyncio.sleep(1)
            await cluster.client.create(Namespace, {"metadata": {"name": "ml"}})
            await asyncio.sleep(1)
            await scenario(cluster.client)

    virtual_time.run(main())


async def gone(client, name):
    try:
        await client.get(Namespace, name)
    except NotFoundError:
        return True
    return False


def test_a_new_namespace_has_a_default_account_that_comes_back():
    async def scenario(client):
        await client.get(ServiceAccount, "default", "ml")
        await client.delete(ServiceAccount, "default", "ml")
        await asyncio.sleep(1)
        await client.get(ServiceAccount, "default", "ml")

    run(scenario)


def test_everything_in_a_namespace_goes_with_it():
    async def scenario(client):
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        spec = {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        await client.create(Deployment, {"metadata": {"name": "web"}, "spec": spec}, "ml")
        await asyncio.sleep(5)
        assert len((await client.request("GET", "/api/v1/namespaces/ml/pods"))["items"]) == 3
        await client.delete(Namespace, "ml")
        await asyncio.sleep(30)
        assert await gone(client, "ml")
        assert (await client.request("GET", "/api/v1/namespaces/ml/pods"))["items"] == []
        await client.create(Namespace, {"metadata": {"name": "ml"}})

    run(scenario)


def test_what_holds_a_namespace_is_said_in_its_conditions():
    async def scenario(client):
        await client.create(ConfigMap, {"metadata": {"name": "held", "finalizers": ["example.com/wait"]}}, "ml")
        await client.delete(Namespace, "ml")
        await asyncio.sleep(20)
        assert not await gone(client, "ml")
        conditions = {one.type: one.message for one in (await client.get(Namespace, "ml")).status.conditions}
        assert "configmaps has 1 resource instances" in conditions["NamespaceContentRemaining"]
        assert "example.com/wait in 1 resource instances" in conditions["NamespaceFinalizersRemaining"]
        await client.patch(ConfigMap, "held", {"metadata": {"finalizers": None}}, "ml")
        await asyncio.sleep(30)
        assert await gone(client, "ml")

    run(scenario)
