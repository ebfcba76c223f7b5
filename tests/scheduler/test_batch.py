import asyncio

from hekla.api.core import Event
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volcano.scheduling import Queue
from hekla.kube.api_client import ApiClient
from hekla.kube.informer import Informers
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from scheduler.schedulerkit import (
    add_group,
    add_node,
    add_pod,
    group_condition,
    is_bound,
    is_phase,
    is_unschedulable,
    nodes_of,
    scheduled_condition,
    until,
    world,
)


def test_a_gang_that_fits_is_bound_and_its_group_runs() -> None:
    async def story() -> None:
        async with world() as (client, _):
            await add_group(client, "train", 4)
            for number in range(4):
                await add_pod(client, f"train-{number}", gpus=4, group="train")
            await until(lambda: is_phase(client, "train", "Running"))
            placed = await nodes_of(client)
            assert sorted(placed.values()) == ["n0", "n0", "n1", "n1"]
            assert (await group_condition(client, "train"))[:2] == (
                "Scheduled",
                "tasks in gang are ready to be scheduled",
            )

    asyncio.run(story())


def test_a_gang_that_does_not_fit_waits_whole_and_says_why_then_starts() -> None:
    async def story() -> None:
        async with world() as (client, _):
            await add_pod(client, "before", gpus=8)
            await until(lambda: is_bound(client, "before"))
            await add_group(client, "late", 2)
            for number in range(2):
                await add_pod(client, f"late-{number}", gpus=8, group="late")

            async def is_told() -> bool:
                return (await group_condition(client, "late"))[0] == "Unschedulable" and (
                    await scheduled_condition(client, "late-1")
                )[1] == "Unschedulable"

            await until(is_told)
            kind, reason, message = await group_condition(client, "late")
            assert (kind, reason) == ("Unschedulable", "NotEnoughResources")
            assert message.startswith(
                "1/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
            )
            assert await scheduled_condition(client, "late-1") == (
                "False",
                "Unschedulable",
                "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            )
            placed = await nodes_of(client)
            assert (placed["late-0"], placed["late-1"]) == ("", "")
            await client.delete(Pod, "before", "default", grace_s=0)
            await until(lambda: is_phase(client, "late", "Running"))
            assert all((await nodes_of(client)).values())

    asyncio.run(story())


def test_a_pod_that_waits_has_an_event_and_is_told_once() -> None:
    async def story() -> None:
        async with world() as (client, scheduler):
            await add_pod(client, "picky", nodeSelector={"disk": "ssd"})

            async def events() -> list[Event]:
                everything = (await client.list(Event, "default")).items
                return [event for event in everything if event.reason == "FailedScheduling"]

            async def is_told() -> bool:
                return bool(await events())

            await until(is_told)
            for number in range(5):
                await add_pod(client, f"other-{number}")
                await until(lambda number=number: is_bound(client, f"other-{number}"))
            await scheduler.idle()
            (event,) = await events()
            assert event.message == "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
            assert event.count == 1
            await client.patch(Node, "n1", {"metadata": {"labels": {"disk": "ssd"}}})
            await until(lambda: is_bound(client, "picky"))
            assert (await nodes_of(client))["picky"] == "n1"

    asyncio.run(story())


def test_a_pod_waits_behind_its_gate_until_its_queue_has_room_for_it() -> None:
    gate = "scheduling.volcano.sh/queue-allocation-gate"

    async def gated_pod(client: ApiClient, name: str) -> None:
        annotations = {gate: "true", "scheduling.volcano.sh/queue-name": "small"}
        resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
        spec = {
            "containers": [{"name": "main", "image": "i", "resources": resources}],
            "schedulingGates": [{"name": gate}],
        }
        document = {"metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": spec}
        await client.create(Pod, document, "default")

    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            await client.create(Queue, {"metadata": {"name": "small"}, "spec": {"capability": {"cpu": "1"}}})
            await gated_pod(client, "a")
            await until(lambda: is_bound(client, "a"))
            await gated_pod(client, "b")
            await until(lambda: is_followed(scheduler, "b"))
            await scheduler.idle()
            waiting = await client.get(Pod, "b", "default")
            assert [one.name for one in waiting.spec.scheduling_gates] == [gate]
            await client.delete(Pod, "a", "default", grace_s=0)
            await until(lambda: is_bound(client, "b"))

    asyncio.run(story())


async def is_followed(scheduler: BatchScheduler, name: str) -> bool:
    return any(task.spec.name == name for task in scheduler.cluster.tasks.values())


def test_pods_of_other_schedulers_count_but_are_left_alone() -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            await add_pod(client, "foreign", gpus=5, schedulerName="other")
            await client.bind("default", "foreign", "n0")
            await add_pod(client, "unasked", schedulerName="other")
            await add_pod(client, "ours", gpus=4)
            await until(lambda: is_unschedulable(client, "ours"))
            await scheduler.idle()
            assert await nodes_of(client) == {"foreign": "n0", "unasked": "", "ours": ""}

    asyncio.run(story())


def test_a_claim_that_waits_for_its_consumer_hears_which_node_was_chosen() -> None:
    async def story() -> None:
        async with world() as (client, _):
            await client.create(
                StorageClass,
                {
                    "metadata": {"name": "local"},
                    "provisioner": "hekla.dev/local",
                    "volumeBindingMode": "WaitForFirstConsumer",
                },
            )
            spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
            claim = {"metadata": {"name": "data"}, "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}}}
            await client.create(PersistentVolumeClaim, claim, "default")
            volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
            await add_pod(client, "writer", volumes=volumes)

            async def is_chosen() -> bool:
                current = await client.get(PersistentVolumeClaim, "data", "default")
                return "volume.kubernetes.io/selected-node" in current.metadata.annotations

            await until(is_chosen)
            assert not await is_bound(client, "writer")
            await provision(client, "data")
            await until(lambda: is_bound(client, "writer"))
            assert (await nodes_of(client))["writer"] == "n0"
            await add_pod(client, "reader", volumes=volumes)
            await until(lambda: is_bound(client, "reader"))
            assert (await nodes_of(client))["reader"] == "n0"

    asyncio.run(story())


async def provision(client: ApiClient, name: str) -> None:
    claim = await client.get(PersistentVolumeClaim, name, "default")
    node = claim.metadata.annotations["volume.kubernetes.io/selected-node"]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    await client.create(
        PersistentVolume,
        {
            "metadata": {"name": f"pv-{name}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/tmp/pv"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "claimRef": {"namespace": "default", "name": name},
            },
        },
    )
    await client.patch(PersistentVolumeClaim, name, {"spec": {"volumeName": f"pv-{name}"}}, "default")
    await client.patch(PersistentVolumeClaim, name, {"status": {"phase": "Bound"}}, "default", subresource="status")


def test_a_missing_claim_is_named() -> None:
    async def story() -> None:
        async with world() as (client, _):
            volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
            await add_pod(client, "writer", volumes=volumes)
            await until(lambda: is_unschedulable(client, "writer"))
            told = (await scheduled_condition(client, "writer"))[2]
            assert told == '0/2 nodes are available: persistentvolumeclaim "nowhere" not found.'

    asyncio.run(story())


def test_a_gang_in_a_queue_that_does_not_exist_is_told_so() -> None:
    async def story() -> None:
        async with world() as (client, _):
            await add_group(client, "lost", 1, queue="nowhere")
            await add_pod(client, "lost-0", group="lost")

            async def is_told() -> bool:
                return bool((await group_condition(client, "lost"))[0])

            await until(is_told)
            assert await group_condition(client, "lost") == (
                "Unschedulable",
                "QueueNotFound",
                'queue "nowhere" does not exist; create it, or name another in spec.queue',
            )
            await client.create(Queue, {"metadata": {"name": "nowhere"}, "spec": {"weight": 1}})
            await until(lambda: is_bound(client, "lost-0"))

    asyncio.run(story())


def test_a_scheduler_that_starts_late_finds_everything_in_its_place() -> None:
    async def story() -> None:
        async with world(nodes=0) as (client, scheduler):
            await add_group(client, "train", 2)
            for number in range(2):
                await add_pod(client, f"train-{number}", gpus=8, group="train")
            await add_node(client, "n0")
            await add_node(client, "n1")
            await until(lambda: is_phase(client, "train", "Running"))
            await scheduler.idle()
            async with Informers(client) as informers:
                second = BatchScheduler(informers, SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES))
                running = asyncio.create_task(second.run())
                await second.idle()
                late, early = second.cluster.nodes, scheduler.cluster.nodes
                assert late.resources.keys() == early.resources.keys()
                for name in late.resources:
                    assert (late.used[late.resources[name]] == early.used[early.resources[name]]).all(), name
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())
