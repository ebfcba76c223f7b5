"""The autoscaler on an API server with the controller of ModelServings, in virtual time; the test plays node and engines."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hekla.api.core import Pod
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.kthena import AutoscalingPolicy, ModelServing, labels
from hekla.api.meta import Document
from hekla.apiserver import status
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Reader
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.runtime import Runtime
from hekla.serving.autoscaler.scaler import Autoscaler
from hekla.serving.reconcilers import RECONCILERS
from hekla.testing import virtual_time
from hekla.testing.server import api_server
from hekla.testing.serving_world import role, serving
from hekla.wire.errors import TimedOutError
from hekla.wire.messages import Response


class Engines:
    """Answers for every pod; the load is shared by all that are ready."""

    def __init__(self) -> None:
        self.load = 0.0
        self.pods = 1
        self.is_silent = False
        self.takes_s = 0.0
        self.asked: list[str] = []

    async def request(self, method: str, url: str, **_: Any) -> Response:
        self.asked.append(url)
        await asyncio.sleep(self.takes_s)
        if self.is_silent:
            raise TimedOutError("no answer")
        return Response(200, body=f"load {self.load / max(1, self.pods)}\n".encode())

    async def close(self) -> None: ...


class Cluster:
    def __init__(self, client: ApiClient, engines: Engines) -> None:
        self.client, self.engines = client, engines

    async def replicas(self, name: str = "llama") -> int | None:
        return (await self.client.get(ModelServing, name, "default")).spec.replicas

    async def policy(self) -> AutoscalingPolicy:
        return await self.client.get(AutoscalingPolicy, "p", "default")

    async def play_node(self) -> None:
        """Every pod runs and is ready."""
        number = 0
        for pod in (await self.client.list(Pod, "default")).items:
            number += 1
            if pod.metadata.deletion_timestamp:
                await self.client.delete(Pod, pod.metadata.name, "default", grace_s=0)
            elif pod.status.phase != "Running":
                status = {
                    "phase": "Running",
                    "podIP": f"10.0.0.{number}",
                    "conditions": [{"type": "Ready", "status": "True"}],
                }
                await self.client.patch(Pod, pod.metadata.name, {"status": status}, "default", subresource="status")
        self.engines.pods = number

    async def eventually(self, holds: Callable[[], Any]) -> None:
        while not await holds():
            await self.play_node()
            await asyncio.sleep(1)


@asynccontextmanager
async def cluster(
    target: Document, *, replicas: int, roles: list[Document] | None = None, rules: Sequence[AdmissionRule] = ()
) -> AsyncIterator[Cluster]:
    async with api_server(rules=rules, kinds=CUSTOM_KINDS) as server:
        client = ApiClient(InProcessTransport(server.handle))
        await client.create(ModelServing, serving(replicas=replicas, roles=roles), "default")
        quick = {"instances": 100, "percent": 1000, "period": "15s", "stabilizationWindow": "0s"}
        behavior = {"scaleUp": {"stablePolicy": quick}, "scaleDown": {**quick, "stabilizationWindow": "1m"}}
        metrics = [{"name": "load", "targetValue": "2"}]
        spec = {"tolerancePercent": 10, "metrics": metrics, "behavior": behavior, **target}
        document = {"apiVersion": AutoscalingPolicy.kind_info.api_version, "kind": "AutoscalingPolicy"}
        await client.create(AutoscalingPolicy, {**document, "metadata": {"name": "p"}, "spec": spec}, "default")
        engines = Engines()
        async with Informers(ApiClient(InProcessTransport(server.handle)), dice=random.Random(1)) as informers:
            runtime = Runtime(informers, RECONCILERS, clock=LoopClock(), dice=random.Random(2))
            scaler = Autoscaler(informers, clock=LoopClock(), http=engines)  # type: ignore[arg-type]  # all that it calls
            tasks = [asyncio.create_task(runtime.run()), asyncio.create_task(scaler.run())]
            try:
                yield Cluster(client, engines)
            finally:
                runtime.stop()
                tasks[1].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


SOURCES = {"load": {"pod": {"port": 8000}}}


def whole(least: int = 1, most: int = 8) -> Document:
    target = {"targetRef": {"kind": "ModelServing", "name": "llama"}, "metricSources": SOURCES}
    return {"homogeneousTarget": {"target": target, "minReplicas": least, "maxReplicas": most}}


def test_replicas_follow_the_load_up_and_down_again() -> None:
    """Kthena: AutoscalingPolicyLifecycle."""

    async def scenario() -> None:
        async with cluster(whole(), replicas=1) as on:
            on.engines.load = 10

            async def is_at(count: int) -> bool:
                return await on.replicas() == count

            await on.eventually(lambda: is_at(5))
            policy = await on.policy()
            assert policy.status.homogeneous_status is not None
            assert policy.status.homogeneous_status.desired_replicas == 5
            on.engines.load = 3
            await on.eventually(lambda: is_at(2))
            pods = (await on.client.list(Pod, "default")).items
            assert {pod.metadata.labels[labels.GROUP_NAME] for pod in pods} >= {"llama-0", "llama-1"}

    virtual_time.run(scenario())


def test_roles_are_scaled_by_themselves() -> None:
    async def scenario() -> None:
        roles = {
            "prefill": {"minReplicas": 1, "maxReplicas": 1},
            "decode": {"minReplicas": 1, "maxReplicas": 6, "metricSources": SOURCES},
        }
        target = {"disaggregatedTarget": {"targetRef": {"name": "llama"}, "roles": roles}}
        async with cluster(target, replicas=1, roles=[role("prefill"), role("decode")]) as on:
            on.engines.load = 12

            async def has_grown() -> bool:
                found = await on.client.get(ModelServing, "llama", "default")
                return {one.name: one.replicas for one in found.spec.template.roles} == {"prefill": 1, "decode": 5}

            await on.eventually(has_grown)
            assert (
                len((await on.client.get(ModelServing, "llama", "default")).spec.template.roles[1].entry_template.spec)
                > 0
            )

    virtual_time.run(scenario())


def test_engines_that_do_not_answer_leave_replicas_as_they_are() -> None:
    async def scenario() -> None:
        async with cluster(whole(), replicas=3) as on:
            on.engines.is_silent = True

            async def was_told() -> bool:
                conditions = (await on.policy()).status.conditions
                return any(one.reason == "MetricsUnavailable" for one in conditions)

            await on.eventually(was_told)
            assert await on.replicas() == 3

    virtual_time.run(scenario())


def test_a_metric_that_the_engines_do_not_show_is_told_with_the_name_that_they_have() -> None:
    async def scenario() -> None:
        sources = {"load": {"pod": {"port": 8000, "name": "laod"}}}
        target = {"targetRef": {"name": "llama"}, "metricSources": sources}
        wrong = {"homogeneousTarget": {"target": target, "minReplicas": 1, "maxReplicas": 8}}
        async with cluster(wrong, replicas=1) as on:
            said = ":8000/metrics shows no laod; did you mean load?"

            async def was_told() -> bool:
                return any(one.message.endswith(said) for one in (await on.policy()).status.conditions)

            await on.eventually(was_told)

    virtual_time.run(scenario())


def test_a_younger_policy_for_the_same_replicas_does_nothing_until_the_older_is_gone() -> None:
    async def scenario() -> None:
        async with cluster(whole(), replicas=1) as on:
            younger = await on.client.get_document(AutoscalingPolicy.kind_info, "p", "default")
            younger = {
                **younger,
                "metadata": {"name": "q"},
                "status": {},
            }  # of the same second the first by name is older
            younger["spec"]["metrics"][0]["targetValue"] = "1"
            await on.client.create(AutoscalingPolicy, younger, "default")
            on.engines.load = 4

            async def is_at(count: int) -> bool:
                return await on.replicas() == count

            await on.eventually(lambda: is_at(2))
            await asyncio.sleep(60)
            assert await on.replicas() == 2
            conditions = (await on.client.get(AutoscalingPolicy, "q", "default")).status.conditions
            assert [one.reason for one in conditions if one.type == "Ready"] == ["TargetTaken"]
            await on.client.delete(AutoscalingPolicy, "p", "default")
            await on.eventually(lambda: is_at(4))

    virtual_time.run(scenario())


def test_a_model_without_replicas_wakes_at_once_when_a_request_waits() -> None:
    async def scenario() -> None:
        async with cluster(whole(least=0), replicas=0) as on:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(20)
            assert await on.replicas() == 0
            begun = loop.time()
            stamp = LoopClock().now().strftime("%Y-%m-%dT%H:%M:%SZ")
            patch = {"metadata": {"annotations": {labels.WANTED_AT: stamp}}}
            await on.client.patch(ModelServing, "llama", patch, "default")
            while await on.replicas() != 1:
                await asyncio.sleep(0.1)
            assert loop.time() - begun < 1  # of virtual time

    virtual_time.run(scenario())


def test_a_policy_that_is_written_is_looked_at_at_once() -> None:
    async def scenario() -> None:
        async with cluster(whole(), replicas=1) as on:
            await asyncio.sleep(20)
            target = {"targetRef": {"kind": "ModelServing", "name": "ghost"}}
            patch = {"spec": {"homogeneousTarget": {"target": target}}}
            begun = asyncio.get_running_loop().time()
            await on.client.patch(AutoscalingPolicy, "p", patch, "default")
            while not any(one.reason == "TargetNotFound" for one in (await on.policy()).status.conditions):
                await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - begun < 1  # of virtual time

    virtual_time.run(scenario())


def test_a_policy_that_is_written_while_another_look_waits_for_slow_engines_is_looked_at_next() -> None:
    async def scenario() -> None:
        async with cluster(whole(), replicas=1) as on:

            async def is_asked() -> bool:
                return bool(on.engines.asked)

            await on.eventually(is_asked)
            on.engines.takes_s = 2.5
            on.engines.asked.clear()
            await on.eventually(is_asked)
            begun = asyncio.get_running_loop().time()
            patch = {
                "spec": {"homogeneousTarget": {"target": {"targetRef": {"kind": "ModelServing", "name": "ghost"}}}}
            }
            await on.client.patch(AutoscalingPolicy, "p", patch, "default")
            while not any(one.reason == "TargetNotFound" for one in (await on.policy()).status.conditions):
                await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - begun < 4  # of virtual time; a look begins every 15 s

    virtual_time.run(scenario())


class Frozen:
    """Says no to every change of one ModelServing."""

    name = "frozen"

    def wants(self, request: AdmissionRequest) -> bool:
        return request.operation == "UPDATE" and (request.name, request.subresource) == ("large", "")

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None: ...

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        raise status.forbidden(
            "modelservings", "workload.serving.volcano.sh", "large", "the change freeze lasts until Monday"
        )


def test_a_scaling_that_is_refused_keeps_neither_the_others_nor_the_status_from_being_written() -> None:
    async def scenario() -> None:
        kinds = [
            {"cost": cost, "minReplicas": least, "maxReplicas": 2, "target": {"targetRef": {"name": name}, "metricSources": SOURCES}}
            for name, cost, least in (("large", 1, 1), ("llama", 4, 1))
        ]  # fmt: skip
        target = {"heterogeneousTarget": {"params": kinds, "costExpansionRatePercent": 100}}
        async with cluster(target, replicas=1, rules=[Frozen()]) as on:
            await on.client.create(ModelServing, serving(name="large", replicas=1), "default")
            on.engines.load = 8

            async def is_told() -> bool:
                return any(one.reason == "ScalingFailed" for one in (await on.policy()).status.conditions)

            await on.eventually(is_told)
            assert (await on.replicas("large"), await on.replicas()) == (1, 2)
            policy = await on.policy()
            [ready] = [one for one in policy.status.conditions if one.type == "Ready"]
            assert ready.status == "False"
            assert ready.message.startswith("large stays at 1: 2 are wanted, but ")
            assert "the change freeze lasts until Monday" in ready.message
            large, llama = policy.status.heterogeneous_status
            assert (large.last_scale_time, llama.last_scale_time is not None) == (None, True)

    virtual_time.run(scenario())
