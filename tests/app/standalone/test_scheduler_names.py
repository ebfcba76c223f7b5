"""What `hekla run --scheduler-name team-a --default-queue shared` is told reaches each of its components."""

import asyncio
import json

import pytest

from app.standalone.test_office import office_of
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.pods import Pod
from hekla.api.volcano import PodGroup, Queue
from hekla.app.standalone.components import run_controllers, run_scheduler
from hekla.app.standalone.settings import StandaloneSettings, StandaloneSettingsError
from hekla.app.standalone.webhooks import Snapshot, WebhookDesk
from hekla.testing.server import api_server, in_process_client
from hekla.wire.messages import Request
from scheduler.schedulerkit import served, until

TOLD = {"scheduler_names": ("team-a",), "default_queue": "shared", "leader_elect": False}
LABELS = {"spark-role": "driver", "spark-app-selector": "s1"}
SPEC = {"schedulerName": "team-a", "containers": [{"name": "c", "image": "i"}]}


def told(run, check):
    """Run a component by these settings in front of a server that has our kinds, until a check is done."""

    async def main():
        async with api_server(kinds=CUSTOM_KINDS) as server, in_process_client(server) as client:
            for kind in CUSTOM_KINDS:
                await until(lambda kind=kind: served(client, kind))
            office, _ = office_of(server, **TOLD)
            working = asyncio.create_task(run(office))
            try:
                await check(client)
            finally:
                office.stopping.set()
                await asyncio.gather(working)

    asyncio.run(main())


def test_controllers_give_a_spark_driver_of_their_scheduler_its_group():
    async def check(client):
        for scheduler in ("volcano", "team-a"):  # the stranger first, so that it would have been seen by then
            labels = {**LABELS, "spark-app-selector": scheduler}
            metadata = {"name": f"driver-{scheduler}", "labels": labels}
            await client.create(Pod, {"metadata": metadata, "spec": {**SPEC, "schedulerName": scheduler}}, "default")

        async def has_group():
            return (await client.list(PodGroup)).items

        await until(has_group)
        assert [(one.metadata.name, one.spec.queue) for one in await has_group()] == [
            ("podgroup-spark-team-a", "shared")
        ]

    told(run_controllers, check)


def test_the_scheduler_makes_the_default_queue():
    async def check(client):
        async def queues():
            return {one.metadata.name for one in (await client.list(Queue)).items}

        async def has_both():
            return await queues() >= {"root", "shared"}

        await until(has_both)
        assert "default" not in await queues()

    told(run_scheduler, check)


class NoCluster(Snapshot):
    is_complete = True


def test_webhooks_mark_a_spark_driver_of_their_scheduler():
    settings = StandaloneSettings(components=("webhooks",), **TOLD)
    desk = WebhookDesk(NoCluster({}), None, settings)
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver", "labels": LABELS}, "spec": SPEC}
    asked = {
        "uid": "u1", "operation": "CREATE", "namespace": "default", "name": "driver", "object": document,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
    }  # fmt: skip
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()
    request = Request("POST", "/pods/mutate", headers={"content-type": "application/json"}, body=body)
    answer = json.loads(asyncio.run(desk.answer(request)).body)["response"]
    assert answer["allowed"]
    assert "patch" in answer


@pytest.mark.parametrize("name", ["", "root"])
def test_a_default_queue_that_takes_no_work_is_refused(name):
    with pytest.raises(StandaloneSettingsError, match=f'--default-queue is "{name}"; name a queue that takes work'):
        StandaloneSettings(components=("scheduler",), default_queue=name)
