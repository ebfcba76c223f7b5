"""`root` and the default queue are there, whatever becomes of their kind."""

import asyncio

import pytest

from hekla.api.crd import crd_document
from hekla.api.volcano.scheduling import Queue
from hekla.kube.errors import KubeError
from hekla.testing import virtual_time
from scheduler.schedulerkit import CRDS, until, world


async def queues(client):
    try:
        return {one.metadata.name for one in (await client.list(Queue)).items}
    except KubeError:
        return None


@pytest.mark.parametrize("name", ["root", "default"])
def test_a_first_queue_that_is_deleted_is_made_again(name):
    async def main():
        async with world() as (client, _):

            async def has_both():
                return await queues(client) == {"root", "default"}

            await until(has_both)
            before = (await client.get(Queue, name)).metadata.uid
            await client.delete(Queue, name)

            async def is_another():
                return await has_both() and (await client.get(Queue, name)).metadata.uid != before

            await until(is_another)

    virtual_time.run(main())


def test_a_kind_that_is_deleted_and_applied_anew_has_its_first_queues_again():
    """`kubectl delete -f crds.yaml; kubectl apply -f crds.yaml` under a scheduler that runs: no job could be made until it was started again."""

    async def main():
        async with world() as (client, scheduler):

            async def has_both():
                return await queues(client) == {"root", "default"}

            async def has_no_kind():
                return await queues(client) is None

            await until(has_both)
            definition = f"{Queue.kind_info.plural}.{Queue.kind_info.group}"
            await client.request("DELETE", f"{CRDS}/{definition}", {})
            await until(has_no_kind)
            await asyncio.sleep(30)
            await client.request("POST", CRDS, crd_document(Queue))
            await until(has_both)

            async def follows_both():
                return {"root", "default"} <= scheduler.cluster.queues.keys()

            await until(follows_both)

    virtual_time.run(main())
