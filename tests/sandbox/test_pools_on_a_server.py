"""Whether pools, claims and sizes come out right on a real API server, in virtual time: three hundred claims at once, and a pool that learns."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hekla.api.agents import (
    AGENT_KINDS,
    CodeInterpreter,
    Sandbox,
    SandboxClaim,
    SandboxTemplate,
    SandboxWarmPool,
    names,
)
from hekla.api.agents.node_contract import EGRESS_SECRETS
from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.core import ResourceQuota
from hekla.api.crd import crd_document
from hekla.api.events import Event
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Operation, Reader
from hekla.apiserver.admission_rules.pod_defaults import RuntimeClassRule
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.apiserver.status import StatusError
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.runtime import Runtime
from hekla.node.runtimes import ContainerKey, ContainerSpec
from hekla.node.runtimes.sandbox.way_out import broker_for, no_secrets
from hekla.sandbox.observing import find
from hekla.sandbox.pools.sizer import PoolSizer
from hekla.sandbox.reconcilers import RECONCILERS
from hekla.sandbox.sessions.kube_stock import KubeStock
from hekla.sandbox.sessions.records import SessionKind
from hekla.sandbox.sessions.stock import Blueprint, Held, Order, StockError
from hekla.testing import virtual_time
from hekla.testing.server import api_server
from hekla.wire.messages import Handler, Request


@dataclass
class Cluster:
    """An API server, the reconcilers over it, and a node that the test plays."""

    client: ApiClient
    handle: Handler
    late: "LateNews"
    """Where the reconcilers hear of Sandboxes."""

    async def play_node(self) -> None:
        """Every pod runs, and what leaves is gone."""
        for number, pod in enumerate((await self.client.list(Pod, "default")).items):
            if pod.metadata.deletion_timestamp:
                await self.client.delete(Pod, pod.metadata.name, "default", grace_s=0)
            elif pod.status.phase != "Running":
                status = {
                    "phase": "Running",
                    "podIP": f"10.0.{number // 250}.{number % 250}",
                    "podIPs": [{"ip": f"10.0.{number // 250}.{number % 250}"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                }
                await self.client.patch(Pod, pod.metadata.name, {"status": status}, "default", subresource="status")

    async def eventually(self, holds: Callable[[], Awaitable[bool]], step_s: float = 1.0) -> None:
        """Let the node and the clock go on until something holds."""
        while not await holds():
            await self.play_node()
            await asyncio.sleep(step_s)

    async def pool(self, name: str = "pool") -> SandboxWarmPool:
        """A pool."""
        return await self.client.get(SandboxWarmPool, name, "default")

    async def claim(self, name: str) -> None:
        """Claim a Sandbox of the pool."""
        spec = {"warmPoolRef": {"name": "pool"}}
        await self.client.create(SandboxClaim, _document(SandboxClaim, name, spec), "default")

    async def claimed(self) -> list[str]:
        """The Sandboxes of all claims that are ready."""
        return [
            one.status.sandbox.name
            for one in (await self.client.list(SandboxClaim, "default")).items
            if any(condition.type == "Ready" and condition.status == "True" for condition in one.status.conditions)
        ]


def _document(kind: type, name: str, spec: Document, annotations: dict[str, str] | None = None) -> Document:
    info = kind.kind_info  # type: ignore[attr-defined]  # a kind of ours
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}


@asynccontextmanager
async def cluster(
    replicas: int, annotations: dict[str, str] | None = None, rules: Sequence[AdmissionRule] = (), *, late: bool = False
) -> AsyncIterator[Cluster]:
    """A cluster with a template and a pool of it."""
    async with api_server(rules=rules, kinds=AGENT_KINDS) as server:
        client = ApiClient(InProcessTransport(server.handle))
        template = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "python"}]}}}
        await client.create(SandboxTemplate, _document(SandboxTemplate, "python", template), "default")
        pool = {"replicas": replicas, "sandboxTemplateRef": {"name": "python"}}
        await client.create(SandboxWarmPool, _document(SandboxWarmPool, "pool", pool, annotations), "default")
        news = LateNews(server.handle, of="/sandboxes" if late else "")
        heard = ApiClient(news if late else InProcessTransport(server.handle))
        async with Informers(heard, dice=random.Random(1)) as informers:
            runtime = Runtime(informers, RECONCILERS, clock=LoopClock(), dice=random.Random(2))
            sizer = PoolSizer(informers, clock=LoopClock())
            tasks = [asyncio.create_task(runtime.run()), asyncio.create_task(sizer.run())]
            try:
                yield Cluster(client, server.handle, news)
            finally:
                runtime.stop()
                tasks[1].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


class LateNews(InProcessTransport):
    """Watches tell nothing until they are let; or those alone `of` whose path it is the end."""

    def __init__(self, handle: Handler, of: str = "") -> None:
        super().__init__(handle)
        self._of = of
        self.may_tell = asyncio.Event()
        self.may_tell.set()

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """As it comes, once it may."""
        async for piece in super().stream(request):
            if request.path.endswith(self._of):
                await self.may_tell.wait()
            yield piece


def test_an_order_whose_cache_shows_what_another_has_adopted_makes_its_own() -> None:
    """It tried that one for ever; as a refusal had not to be waited for, nothing else of the platform had a turn, news of the cache neither."""

    async def scenario() -> None:
        async with cluster(1) as on:

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == 1

            await on.eventually(is_full)
            late = LateNews(on.handle)
            async with Informers(ApiClient(late), dice=random.Random(3)) as informers:
                stock = KubeStock(informers)
                await stock.start()
                late.may_tell.clear()
                blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
                first = await stock.take(Order(session="a", blueprint=blueprint, owner="somebody"))
                taking = asyncio.create_task(stock.take(Order(session="b", blueprint=blueprint, owner="somebody")))

                async def makes_its_own() -> bool:
                    made = (await on.client.list(Sandbox, "default", label_selector=f"{names.SESSION_ID}=b")).items
                    return bool(made)

                await on.eventually(makes_its_own)
                late.may_tell.set()

                async def has_it() -> bool:
                    return taking.done()

                await on.eventually(has_it)
                assert (first.is_warm, taking.result().is_warm) == (True, False)
                assert first.uid != taking.result().uid

    virtual_time.run(scenario())


def test_whose_a_sandbox_is_said_to_be_is_read_from_its_annotation() -> None:
    async def scenario() -> None:
        async with cluster(0) as on:
            template = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "python"}]}}}
            for name, told in (("hers", {names.OWNER: "eve"}), ("anybodys", None)):
                await on.client.create(Sandbox, _document(Sandbox, name, template, told), "default")
            async with Informers(on.client, dice=random.Random(3)) as informers:
                stock = KubeStock(informers)
                await stock.start()
                held = [
                    Held(namespace="default", name=one, uid="", pod=one, session="")
                    for one in ("hers", "anybodys", "gone")
                ]
                assert [stock.owner(one) for one in held] == ["eve", "", ""]

    virtual_time.run(scenario())


def test_a_pool_that_shrinks_ends_none_that_was_just_taken() -> None:
    """Its cache showed a member that a session had by then: the delete was guarded by the uid alone, and the session ended."""

    async def scenario() -> None:
        async with cluster(3, late=True) as on:

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == 3

            await on.eventually(is_full)
            async with Informers(on.client, dice=random.Random(3)) as informers:
                stock = KubeStock(informers)
                await stock.start()
                on.late.may_tell.clear()
                blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
                taken = [await stock.take(Order(session=one, blueprint=blueprint, owner="a")) for one in "abc"]
                assert all(one.is_warm for one in taken)
                await on.client.patch(SandboxWarmPool, "pool", {"spec": {"replicas": 0}}, "default")

                async def has_tried() -> bool:
                    return loop.time() > shrunk_at + 5

                loop = asyncio.get_running_loop()
                shrunk_at = loop.time()
                await on.eventually(has_tried)
                on.late.may_tell.set()

                async def is_empty() -> bool:
                    return (await on.pool()).status.replicas == 0

                await on.eventually(is_empty)
                left = {one.metadata.uid for one in (await on.client.list(Sandbox, "default")).items}
                assert left == {one.uid for one in taken}

    virtual_time.run(scenario())


def test_a_sandbox_that_was_waited_for_in_vain_is_dropped_at_once() -> None:
    """Where a quota was full it stayed until a sweep, and took the room that was freed first."""

    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}}
            await on.client.create(ResourceQuota, quota, "default")
            stock = KubeStock(informers)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, node="n2")))
            await asyncio.sleep(5.0)
            [made] = (await on.client.list(Sandbox, "default")).items
            assert made.spec.pod_template.spec["nodeSelector"] == {"kubernetes.io/hostname": "n2"}
            taking.cancel()

            async def is_gone() -> bool:
                return not (await on.client.list(Sandbox, "default")).items

            await on.eventually(is_gone)

    virtual_time.run(scenario())


@pytest.mark.parametrize(("call", "waiting"), [("create_soon", 0), ("patch_soon", 1)])
def test_a_sandbox_whose_maker_left_while_the_api_server_made_or_gave_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch, call: str, waiting: int
) -> None:
    """Nobody knew of it: it stayed, running and as that of a session that is not there, until the next sweep."""

    async def scenario() -> None:
        async with cluster(waiting) as on, Informers(on.client, dice=random.Random(3)) as informers:

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == waiting

            await on.eventually(is_full)
            stock = KubeStock(informers)
            await stock.start()
            decided, ask = asyncio.Event(), getattr(on.client, call)

            async def answered_late(*asked: Any) -> Any:
                answer = await ask(*asked)
                decided.set()
                await asyncio.sleep(1.0)
                return answer

            monkeypatch.setattr(on.client, call, answered_late)
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, owner="somebody")))
            await decided.wait()
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            await stock.stop()
            assert (await on.client.list(Sandbox, "default", label_selector=names.SESSION_ID)).items == []

    virtual_time.run(scenario())


def test_a_sandbox_whose_maker_left_before_its_pod_was_made_is_dropped_before_the_gateway_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock = KubeStock(informers, makes_pods=True)
            await stock.start()
            created, create_soon = asyncio.Event(), on.client.create_soon

            async def slowly(kind: Any, document: Document, namespace: str) -> Any:
                if kind is Pod:
                    created.set()
                    await asyncio.sleep(60.0)
                return await create_soon(kind, document, namespace)

            monkeypatch.setattr(on.client, "create_soon", slowly)
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, owner="somebody")))
            await created.wait()
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            await stock.stop()
            assert (await on.client.list(Sandbox, "default")).items == []

    virtual_time.run(scenario())


def test_forty_claims_on_a_pool_of_thirty_get_forty_sandboxes() -> None:
    async def scenario() -> None:
        async with cluster(30) as on:

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == 30

            await on.eventually(is_full)
            await asyncio.gather(*(on.claim(f"c{number}") for number in range(40)))

            async def all_have() -> bool:
                return len(await on.claimed()) == 40

            await on.eventually(all_have)
            taken = await on.claimed()
            assert len(set(taken)) == 40
            sandboxes = {one.metadata.name: one for one in (await on.client.list(Sandbox, "default")).items}
            launched = [sandboxes[name].metadata.labels[names.LAUNCH_TYPE] for name in taken]
            assert launched.count("warm") >= 30
            await on.eventually(is_full)

    virtual_time.run(scenario())


def test_a_pool_grows_with_what_is_asked_of_it_and_shrinks_when_nobody_asks() -> None:
    async def scenario() -> None:
        bounds = {names.POOL_POLICY: "histogram", names.POOL_BOUNDS: "0-20"}
        async with cluster(0, bounds) as on:
            for number in range(12):
                await asyncio.gather(*(on.claim(f"c{number}-{one}") for one in range(3)))
                for _ in range(5):
                    await on.play_node()
                    await asyncio.sleep(2)
            launched = [
                one.metadata.labels[names.LAUNCH_TYPE]
                for one in sorted((await on.client.list(Sandbox, "default")).items, key=_age)
                if names.WARM_POOL not in one.metadata.labels
            ]
            assert launched[-18:].count("warm") >= 15

            async def is_empty() -> bool:
                return (await on.pool()).spec.replicas == 0

            await on.eventually(is_empty, step_s=60)

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("promised_ms", "waits"), [("50", True), ("60000", False)], ids=["warm starts", "cold ones do"]
)
def test_as_many_wait_as_the_promise_of_quick_starts_needs(promised_ms: str, waits: bool) -> None:
    """A cold start takes seconds here."""

    async def scenario() -> None:
        async with cluster(0, {names.POOL_POLICY: "histogram", names.POOL_P99_START: promised_ms}) as on:
            for number in range(30):
                await on.claim(f"c{number}")
                for _ in range(2):
                    await on.play_node()
                    await asyncio.sleep(4)
            assert ((await on.pool()).spec.replicas > 0) is waits

    virtual_time.run(scenario())


def test_claims_over_quota_are_told_so_and_served_when_there_is_room() -> None:
    async def scenario() -> None:
        async with cluster(0, rules=(ResourceQuotaRule(),)) as on:
            quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
            await on.client.create(ResourceQuota, quota, "default")
            await on.claim("first")

            async def one_is_served() -> bool:
                return len(await on.claimed()) == 1

            await on.eventually(one_is_served)
            await on.claim("second")

            async def is_told() -> bool:
                told = (await on.client.list(Event, "default")).items
                return any(
                    "exceeded quota: few" in one.note and one.regarding is not None and one.regarding.name == "second"
                    for one in told
                )

            await on.eventually(is_told)
            assert len((await on.client.list(Pod, "default")).items) == 1

            async def says_so_itself() -> bool:
                ready = find((await on.client.get(Sandbox, "second", "default")).status.conditions, "Ready")
                return ready is not None and (ready.status, ready.reason) == ("False", "ReconcilerError")

            await on.eventually(says_so_itself)
            ready = find((await on.client.get(Sandbox, "second", "default")).status.conditions, "Ready")
            assert ready is not None
            assert ready.message.startswith('Error seen: pods "second" is forbidden: exceeded quota: few')
            await on.client.delete(SandboxClaim, "first", "default")
            await on.client.delete(Sandbox, "first", "default")  # nobody collects garbage here
            await on.client.delete(Pod, "first", "default", grace_s=0)

            async def the_other_is_served() -> bool:
                return (await on.claimed()) == ["second"]

            await on.eventually(the_other_is_served)

    virtual_time.run(scenario())


class EverNewWords:
    """A webhook that breaks with another text each time, as one whose connection is reset on another port."""

    name = "breaks.example.com"
    asked = 0

    def wants(self, request: AdmissionRequest) -> bool:
        return request.kind.resource == "pods" and request.operation is Operation.CREATE

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        pass

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        self.asked += 1
        if self.asked < 200:  # enough to tell; for ever, without a back-off
            raise StatusError(500, "InternalError", f"read tcp 10.0.0.1:{40_000 + self.asked}: connection reset")


def test_a_refusal_that_is_worded_anew_each_time_backs_off_all_the_same() -> None:
    """What a Sandbox says of a refusal woke it: 500 pods were asked for in no time, where one wording asked for 18 in five minutes."""

    async def scenario() -> None:
        broken = EverNewWords()
        async with cluster(0, rules=(broken,)) as on:
            await on.claim("first")
            await asyncio.sleep(300)
            assert 10 < broken.asked < 30
            ready = find((await on.client.get(Sandbox, "first", "default")).status.conditions, "Ready")
            assert ready is not None
            assert ready.message.endswith(f"read tcp 10.0.0.1:{40_000 + broken.asked}: connection reset")
            # but whoever changes what is asked for has it tried at once
            asked = broken.asked
            spec = {"podTemplate": {"metadata": {"labels": {"another": "one"}}}}
            await on.client.patch(Sandbox, "first", {"spec": spec}, "default")
            await asyncio.sleep(1)
            assert broken.asked == asked + 1

    virtual_time.run(scenario())


def _age(one: Sandbox) -> tuple[str, str]:
    return one.metadata.creation_timestamp or "", one.metadata.name


def test_a_policy_that_makes_no_sense_is_told_once_and_changes_nothing() -> None:
    async def scenario() -> None:
        async with cluster(2, {names.POOL_POLICY: "magic"}) as on:
            for _ in range(10):
                await on.play_node()
                await asyncio.sleep(1)
            assert (await on.pool()).spec.replicas == 2
            told = [one for one in (await on.client.list(Event, "default")).items if one.reason == "InvalidPolicy"]
            assert len(told) == 1
            assert "say fixed, adaptive or histogram" in told[0].note

    virtual_time.run(scenario())


def _ready(pod: Pod) -> Document:
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "image": "",
                "imageID": "",
                "restartCount": 0,
                "ready": True,
                "containerID": pod.metadata.uid,
            }
        ],
    }


def test_a_sandbox_and_its_pod_that_are_made_together_are_those_that_the_reconciler_would_make() -> None:
    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            stocks = {"ahead": KubeStock(informers, makes_pods=True), "behind": KubeStock(informers)}
            pods: dict[str, Pod] = {}
            for session, stock in stocks.items():
                await stock.start()
                taking = asyncio.create_task(stock.take(Order(session=session, blueprint=blueprint, owner="somebody")))

                async def has_pod(session: str = session) -> bool:
                    found = (await on.client.list(Pod, "default", label_selector=f"{names.SESSION_ID}={session}")).items
                    if found:
                        pods[session] = found[0]
                    return bool(found)

                while not await has_pod():
                    await asyncio.sleep(0.1)
                pod = pods[session]
                await on.client.patch(Pod, pod.metadata.name, {"status": _ready(pod)}, "default", subresource="status")
                held = await taking
                assert (held.pod, held.container) == (pod.metadata.name, pod.metadata.uid)
            ahead, behind = pods["ahead"], pods["behind"]
            assert ahead.spec == behind.spec
            assert ahead.metadata.labels.keys() == behind.metadata.labels.keys()
            assert ahead.metadata.annotations == behind.metadata.annotations
            assert [one.kind for one in ahead.metadata.owner_references] == ["Sandbox"]
            assert len((await on.client.list(Pod, "default")).items) == 2

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("beside", "is_told"),
    [
        ({}, True),
        ({"containers": [{"name": "main", "image": "python"}, {"name": "helper", "image": "python"}]}, False),
        ({"initContainers": [{"name": "first", "image": "python", "restartPolicy": "Always"}]}, False),
    ],
)
def test_of_a_new_pod_its_node_hears_the_claim_early_only_where_it_has_one_container(
    beside: Document, is_told: bool
) -> None:
    """Its node goes by the pod alone: the first container that starts, a sidecar maybe, would be told whose the sandbox is."""

    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock, told = KubeStock(informers, makes_pods=True), list[str]()
            await stock.start()
            patch = {"spec": {"podTemplate": {"spec": beside}}}
            await on.client.patch(SandboxTemplate, "python", patch, "default")
            await asyncio.sleep(1.0)
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            order = Order(
                session="a", blueprint=blueprint, owner="somebody", tell_made=lambda made: told.append(made.pod_uid)
            )
            taking = asyncio.create_task(stock.take(order))
            while not (found := (await on.client.list(Pod, "default")).items):
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)
            taking.cancel()
            assert told == ([found[0].metadata.uid] if is_told else [])

    virtual_time.run(scenario())


def test_who_waits_for_a_sandbox_goes_on_when_its_node_says_so_and_does_not_wait_for_its_status() -> None:
    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock = KubeStock(informers, makes_pods=True)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, owner="somebody")))
            while not (found := (await on.client.list(Pod, "default")).items):
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)
            assert not taking.done()
            stock.is_ready_at_node("default", found[0].metadata.name, "its-container")
            assert (await taking).container == "its-container"
            pod = await on.client.get(Pod, found[0].metadata.name, "default")
            assert pod.status.phase == "Pending"

    virtual_time.run(scenario())


def test_the_pod_of_a_sandbox_that_is_adopted_follows_after_the_answer() -> None:
    async def scenario() -> None:
        async with cluster(1) as on, Informers(on.client, dice=random.Random(3)) as informers:
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            stock = KubeStock(informers, makes_pods=True)
            await stock.start()

            async def waits() -> bool:
                return (await on.pool()).status.ready_replicas == 1

            await on.eventually(waits)
            held = await stock.take(Order(session="a", blueprint=blueprint, owner="somebody"))
            await stock.settled(held)

            async def has_followed() -> bool:
                labels = (await on.client.get(Pod, held.pod, "default")).metadata.labels
                return labels.get(names.SESSION_ID) == "a" and names.WARM_POOL not in labels

            assert not await has_followed()
            await on.eventually(has_followed)

    virtual_time.run(scenario())


def test_a_container_that_is_started_anew_is_told_of_although_its_pod_does_not_follow_its_sandbox_yet() -> None:
    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock, told = KubeStock(informers, makes_pods=True), []
            stock.tell_restarts(lambda *one: told.append(one))
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, owner="somebody")))
            while not (found := (await on.client.list(Pod, "default")).items):
                await asyncio.sleep(0.1)
            pod = found[0]
            unlabelled = {"metadata": {"labels": {names.SESSION_ID: None}}}
            for container in ("first", "second"):
                status = _ready(pod)
                status["containerStatuses"][0]["containerID"] = container
                if container == "second":
                    ended = {
                        "reason": "OOMKilled",
                        "message": "it held 300 MiB of memory, its limit is 256 MiB",
                        "exitCode": 137,
                    }
                    status["containerStatuses"][0]["lastState"] = {"terminated": ended}
                await on.client.patch(Pod, pod.metadata.name, unlabelled, "default")
                await on.client.patch(Pod, pod.metadata.name, {"status": status}, "default", subresource="status")
            await taking
            await asyncio.sleep(0.1)
            assert told == [("a", "second", "it held 300 MiB of memory, its limit is 256 MiB")]

    virtual_time.run(scenario())


def test_what_sessions_are_made_from_is_read_anew_when_it_changes_and_forgotten_when_it_goes() -> None:
    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock = KubeStock(informers)
            await stock.start()

            def budget() -> str | None:
                found = stock.blueprint(SessionKind.TEMPLATE, "default", "python")
                return found.budget if found is not None else None

            assert budget() == ""
            assert stock.blueprint(SessionKind.TEMPLATE, "default", "python") is stock.blueprint(
                SessionKind.TEMPLATE, "default", "python"
            )
            changed = {"metadata": {"annotations": {names.BUDGET: "cpu=90s"}}}
            await on.client.patch(SandboxTemplate, "python", changed, "default")
            await asyncio.sleep(0.1)
            assert budget() == "cpu=90s"
            await on.client.delete(SandboxTemplate, "python", "default")
            await asyncio.sleep(0.1)
            assert budget() is None

    virtual_time.run(scenario())


def test_copies_are_made_of_what_waits_on_the_parents_node_and_of_new_ones_for_the_rest() -> None:
    """Each new one costs an object, a pod, a decision of the scheduler and a start; what waits, one patch."""

    async def scenario() -> None:
        async with cluster(4) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock = KubeStock(informers, makes_pods=True)
            await stock.start()
            while len(pods := (await on.client.list(Pod, "default")).items) < 4:
                await asyncio.sleep(0.1)
            for number, name in enumerate(sorted(one.metadata.name for one in pods)):
                await on.client.bind("default", name, "near" if number < 3 else "far")

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == 4

            await on.eventually(is_full)
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            parent = await stock.take(Order(session="a", blueprint=blueprint, owner="somebody"))
            orders = [
                Order(
                    session=name, blueprint=blueprint, owner="somebody", fork_of=parent.pod, lineage=("old", parent.uid)
                )
                for name in "bcd"
            ]
            forks = await stock.take_forks(orders)
            assert [one.session for one in forks] == ["b", "c", "d"]
            assert [one.is_warm for one in forks] == [True, True, False]
            for one in forks:
                await stock.settled(one)
                pod = await on.client.get(Pod, one.pod, "default")
                assert (one.pod_uid, pod.spec.node_name) == (pod.metadata.uid, "near" if one.is_warm else "")
                sandbox = await on.client.get(Sandbox, one.name, "default")
                assert sandbox.metadata.annotations[names.FORK_OF] == f"default/{parent.pod}"
                assert sandbox.metadata.annotations["hekla.dev/lineage"] == f"old,{parent.uid}"
                assert sandbox.metadata.labels[names.SESSION_ID] == one.session
            left = [one for one in (await on.client.list(Sandbox, "default")).items if one.status.node_name == "far"]
            assert [names.SESSION_ID in one.metadata.labels for one in left] == [False]
            elsewhere = Order(
                session="e",
                blueprint=blueprint,
                owner="somebody",
                fork_of=left[0].metadata.name,
                network={"allowOut": ["a.example"]},
            )
            assert [one.is_warm for one in await stock.take_forks([elsewhere])] == [
                False
            ]  # it may reach others than who waits

    virtual_time.run(scenario())


def test_what_waits_goes_on_waiting_where_the_copies_beside_it_cannot_be_made() -> None:
    async def scenario() -> None:
        async with cluster(2) as on, Informers(on.client, dice=random.Random(3)) as informers:
            stock = KubeStock(informers, makes_pods=True)
            await stock.start()
            while len(pods := (await on.client.list(Pod, "default")).items) < 2:
                await asyncio.sleep(0.1)
            for pod in pods:
                await on.client.bind("default", pod.metadata.name, "near")

            async def is_full() -> bool:
                return (await on.pool()).status.ready_replicas == 2

            await on.eventually(is_full)
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            parent = await stock.take(Order(session="a", blueprint=blueprint, owner="somebody"))
            await on.client.delete(SandboxTemplate, "python", "default")
            await asyncio.sleep(0.1)
            orders = [Order(session=name, blueprint=blueprint, owner="somebody", fork_of=parent.pod) for name in "bc"]
            with pytest.raises(StockError, match="not there yet"):
                await stock.take_forks(orders)
            assert (await stock.take(Order(session="d", blueprint=blueprint, owner="somebody"))).is_warm

    virtual_time.run(scenario())


@pytest.mark.parametrize("network", [{}, {"allowOut": ["%%%"], "denyOut": ["0.0.0.0/0"]}])
def test_a_sandbox_is_not_made_that_its_node_could_never_start(network: Document) -> None:
    """Its pod was started again and again for two minutes, and nobody was told why."""

    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            wrong = {names.EGRESS: "*" if network else "example.com:99999"}
            await on.client.patch(SandboxTemplate, "python", {"metadata": {"annotations": wrong}}, "default")
            stock = KubeStock(informers)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            with pytest.raises(
                StockError, match=r'egress rule "(%%%" names no host|example\.com:99999" has port)'
            ) as refused:
                await stock.take(Order(session="a", blueprint=blueprint, network=network))
            assert refused.value.status == 422
            assert not (await on.client.list(Sandbox, "default")).items

    virtual_time.run(scenario())


SECRETS = '[{"host": "pypi.org", "secret": "api", "key": "token"}]'


@pytest.mark.parametrize(
    ("egress", "secrets", "why"),
    [
        ("pypi.org", "api=token", "makes no sense"),
        ("example.com", SECRETS, "names pypi.org:443, which hekla.dev/egress does not allow"),
    ],
)
def test_secrets_for_the_way_out_that_make_no_sense_are_told_at_once(egress: str, secrets: str, why: str) -> None:
    """Its pod was started again and again, and the caller told of a time-out after two minutes."""

    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            wrong = {names.EGRESS: egress, EGRESS_SECRETS: secrets}
            await on.client.patch(SandboxTemplate, "python", {"metadata": {"annotations": wrong}}, "default")
            stock = KubeStock(informers)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            with pytest.raises(StockError, match=why) as refused:
                await stock.take(Order(session="a", blueprint=blueprint))
            assert refused.value.status == 422

    virtual_time.run(scenario())


def test_a_session_whose_owner_narrows_its_network_is_made_though_its_template_has_secrets_for_other_hosts() -> None:
    """Its node refused secrets for hosts that the narrowed rules do not allow: such a session never began."""

    async def scenario() -> None:
        async with cluster(0) as on, Informers(on.client, dice=random.Random(3)) as informers:
            given = {names.EGRESS: "pypi.org,example.com", EGRESS_SECRETS: SECRETS}
            await on.client.patch(SandboxTemplate, "python", {"metadata": {"annotations": given}}, "default")
            stock = KubeStock(informers)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            narrowed = {"allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"]}
            taking = asyncio.create_task(stock.take(Order(session="a", blueprint=blueprint, network=narrowed)))
            while not (found := (await on.client.list(Sandbox, "default")).items):
                await asyncio.sleep(0.1)
            told = found[0].metadata.annotations
            assert (told[names.EGRESS], told[EGRESS_SECRETS]) == ("example.com", SECRETS)
            box = ContainerSpec(key=ContainerKey("uid", "main", 0), argv=(), annotations=told)
            assert broker_for(box, no_secrets) is not None
            taking.cancel()

    virtual_time.run(scenario())


async def _kinds(client: ApiClient) -> None:
    for kind in AGENT_KINDS:
        await client.create(CustomResourceDefinition, crd_document(kind))


def test_an_interpreter_made_a_moment_ago_is_waited_for_until_its_template_is_there() -> None:
    """Who applied one and asked for a session at once was refused: "not there yet"."""

    async def scenario() -> None:
        async with api_server() as server:
            client = ApiClient(InProcessTransport(server.handle))
            await _kinds(client)
            await client.create(CodeInterpreter, _document(CodeInterpreter, "py", {"template": {}}), "default")
            async with Informers(client, dice=random.Random(3)) as informers:
                stock = KubeStock(informers)
                await stock.start()
                order = Order(
                    session="a", blueprint=Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="py")
                )
                taking = [asyncio.create_task(stock.take(order)) for _ in range(2)]
                await asyncio.sleep(2.0)
                assert not any(one.done() for one in taking)
                template = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "python"}]}}}
                await client.create(SandboxTemplate, _document(SandboxTemplate, "py", template), "default")
                await asyncio.sleep(0.1)
                assert len((await client.list(Sandbox, "default")).items) == 2
                for one in taking:
                    one.cancel()

    virtual_time.run(scenario())


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_an_interpreter_without_a_template_is_refused_in_the_end_and_at_once_where_its_conditions_say_why(
    is_looked_at: bool,
) -> None:
    async def scenario() -> None:
        async with api_server() as server:
            client = ApiClient(InProcessTransport(server.handle))
            await _kinds(client)
            await client.create(CodeInterpreter, _document(CodeInterpreter, "py", {"template": {}}), "default")
            if is_looked_at:
                told = {
                    "type": "Ready", "status": "False", "reason": "TemplateTaken", "message": "it is somebody else's",
                    "lastTransitionTime": "2026-11-28T12:00:00Z",
                }  # fmt: skip
                await client.patch(
                    CodeInterpreter, "py", {"status": {"conditions": [told]}}, "default", subresource="status"
                )
            async with Informers(client, dice=random.Random(3)) as informers:
                stock = KubeStock(informers)
                await stock.start()
                order = Order(
                    session="a", blueprint=Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="py")
                )
                began = asyncio.get_running_loop().time()
                with pytest.raises(StockError) as refused:
                    await stock.take(order)
                assert asyncio.get_running_loop().time() - began == pytest.approx(0.0 if is_looked_at else 5.0)
                why = (
                    ": it is somebody else's" if is_looked_at else " yet; look at the conditions of the CodeInterpreter"
                )
                assert str(refused.value) == f'template "py" is not there{why}'

    virtual_time.run(scenario())


@pytest.mark.parametrize("makes_pods", [False, True])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"containers": [{"name": "main", "image": "python", "ports": [{"containerPort": 70_000}]}]},
            r'^Pod "[^"]+" is invalid: .*containerPort.*70000',
        ),
        ({"runtimeClassName": "none"}, r'pod rejected: RuntimeClass "none" not found$'),
    ],
)
def test_a_session_whose_pod_can_never_be_is_told_so_at_once(makes_pods: bool, wrong: Document, said: str) -> None:
    """It waited for two minutes for what the API server had refused in the first moment."""

    async def scenario() -> None:
        async with (
            cluster(0, rules=[RuntimeClassRule()]) as on,
            Informers(on.client, dice=random.Random(3)) as informers,
        ):
            await on.client.patch(SandboxTemplate, "python", {"spec": {"podTemplate": {"spec": wrong}}}, "default")
            stock = KubeStock(informers, makes_pods=makes_pods)
            await stock.start()
            blueprint = Blueprint(kind=SessionKind.TEMPLATE, namespace="default", name="python")
            began = asyncio.get_running_loop().time()
            with pytest.raises(StockError, match=said) as refused:
                await stock.take(Order(session="a", blueprint=blueprint))
            assert refused.value.status == 422
            assert asyncio.get_running_loop().time() - began < 5.0
            await stock.stop()
            assert not (await on.client.list(Sandbox, "default")).items

    virtual_time.run(scenario())
