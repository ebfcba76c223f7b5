import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.feed import ClusterFeed
from hekla.kube.client import PatchType
from hekla.kube.commands import Event
from hekla.kube.errors import ApiError, ConflictError, KubeError, NotFoundError, TransportError
from hekla.placement.cluster import Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.model import Task, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.statement import Evict, Nominate, Statement
from hekla.scheduler.evictor import AT_ONCE, Evictor
from hekla.testing import virtual_time
from hekla.testing.cluster import check

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden")
BUSY = ApiError(503, "ServiceUnavailable", "come back later")


class Server:
    """Answers deletions and patches from a script; when it is at its end, they succeed."""

    def __init__(self, *deletions: KubeError | None, patches: tuple[KubeError | None, ...] = ()) -> None:
        self.answers = {"delete": list(deletions), "patch": list(patches)}
        self.told: list[tuple[str, str, Any]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gone = False

    async def _ask(self, what: str, name: str, said: Any) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        answer = self.answers[what].pop(0) if self.answers[what] else None
        if answer is not None:
            raise answer
        self.told.append((what, name, said))

    async def patch(self, kind: type[Pod], name: str, patch: Any, namespace: str, **how: Any) -> None:
        assert how == {"patch_type": PatchType.STRATEGIC, "subresource": "status"}
        await self._ask("patch", name, patch)

    async def delete(self, kind: type[Pod], name: str, namespace: str, *, uid: str) -> None:
        await self._ask("delete", name, uid)

    async def get(self, kind: type[Pod], name: str, namespace: str) -> Pod:
        if self.gone:
            raise NotFoundError(404, "NotFound", "no such pod")
        return make_pod(name, on="n1")

    def of(self, what: str) -> list[str]:
        return [name for told, name, _ in self.told if told == what]


def make_pod(name: str, *, on: str = "", group: str = "", **status: Any) -> Pod:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running" if on else "Pending", **status},
    }
    if group:
        document["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}  # type: ignore[index]  # a document
    return msgspec.convert(document, Pod)


class Stage:
    """One node that is full of `victims`, and one pod that wants the room of the first."""

    def __init__(self, server: Server, victims: int = 1) -> None:
        self.server = server
        self.cluster = Cluster()
        self.cluster.put_queue(Queue(name="default"))
        self.cluster.put_node(NodeSpec(name="n1", allocatable={"cpu": victims * 1000, "pods": 200}))
        self.feed = ClusterFeed(self.cluster, scheduler_names=("",))
        group = {"metadata": {"name": "low", "namespace": "default", "uid": "uid-low"}, "spec": {"minMember": 1}}
        self.feed.on_pod_group(None, msgspec.convert(group, PodGroup))
        for number in range(victims):
            self.feed.on_pod(None, make_pod(f"v{number}", on="n1", group="low"))
        self.feed.on_pod(None, make_pod("high"))
        self.events: list[Event] = []
        self.woken = 0
        self.settled: list[tuple[str, str]] = []
        self.evictor = Evictor(
            server,  # type: ignore[arg-type]  # three calls of a client
            self.feed, self, wake=self.wake, now=lambda: NOW,
            on_settled=lambda evict, outcome: self.settled.append((evict.task.spec.name, outcome)),
        )  # fmt: skip

    def record(self, event: Event, component: str = "") -> None:
        self.events.append(event)

    def wake(self) -> None:
        self.woken += 1

    def task(self, name: str) -> Task:
        return self.cluster.tasks[f"uid-{name}"]

    def make_room(self, victims: int = 1) -> tuple[list[Evict], list[Nominate]]:
        """Evict victims for the pod that waits, as an action would."""
        waiting = self.task("high")
        with Statement(self.cluster, Policy(self.cluster, [[]]).placer) as statement:
            for number in range(victims):
                reason = "priority 10 goes before priority 1"
                statement.evict(self.task(f"v{number}"), reason, waiting.job, "preempt")
            statement.pipeline(waiting, 0, evicted=True)
            decisions = list(statement.commit())
        return [d for d in decisions if isinstance(d, Evict)], [d for d in decisions if isinstance(d, Nominate)]

    async def settle(self) -> None:
        while not self.evictor.is_idle:
            await asyncio.sleep(0.01)

    def events_of(self, reason: str) -> list[tuple[str, str, str]]:
        return [(e.target.name, e.type, e.message) for e in self.events if e.reason == reason]


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual_time.run(story())


def test_the_waiting_pod_is_nominated_before_its_victim_is_told_and_deleted() -> None:
    async def story() -> None:
        stage = Stage(Server())
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        told = stage.server.told
        assert [(what, name) for what, name, _ in told] == [("patch", "high"), ("patch", "v0"), ("delete", "v0")]
        assert told[0][2] == {"metadata": {"uid": "uid-high"}, "status": {"nominatedNodeName": "n1"}}
        (condition,) = told[1][2]["status"]["conditions"]
        assert condition == {
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "evicted from n1 by preempt for default/high: priority 10 goes before priority 1",
            "lastTransitionTime": "2026-11-21T00:00:00Z",
        }  # fmt: skip
        assert told[2][2] == "uid-v0"
        assert stage.settled == [("v0", "done")]
        assert stage.task("v0").status is TaskStatus.RELEASING
        assert stage.task("high").status is TaskStatus.PIPELINED
        check(stage.cluster)

    play(story)


def test_events_tell_it_to_the_victim_its_group_and_the_one_who_waits() -> None:
    async def story() -> None:
        stage = Stage(Server())
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        group_and_pod = [("v0", "Warning", "Pod is evicted, because of preempt"), ("low", "Normal", "preempt")]
        assert stage.events_of("Evict") == group_and_pod
        assert stage.events_of("Preempted") == [
            ("v0", "Normal", "evicted from n1 by preempt for default/high: priority 10 goes before priority 1")
        ]
        assert stage.events_of("Nominated") == [
            ("high", "Normal", "waits for room on n1, where pods are being evicted for it")
        ]

    play(story)


def test_an_eviction_under_way_is_not_begun_twice() -> None:
    async def story() -> None:
        stage = Stage(Server())
        evictions, nominations = stage.make_room()
        stage.evictor.submit(evictions, nominations)
        stage.evictor.submit(evictions, nominations)
        await stage.settle()
        assert stage.server.of("delete") == ["v0"]
        assert stage.settled == [("v0", "done")]

    play(story)


def test_many_are_under_way_together_but_never_more_than_allowed() -> None:
    async def story() -> None:
        stage = Stage(Server(), victims=100)
        stage.evictor.submit(*stage.make_room(victims=100))
        await stage.settle()
        assert len(stage.server.of("delete")) == 100
        assert stage.server.most_at_once == AT_ONCE

    play(story)


@pytest.mark.parametrize("error", [FORBIDDEN, ApiError(422, "Invalid", "no")])
def test_a_refused_eviction_is_undone_and_the_job_asks_later(error: KubeError) -> None:
    async def story() -> None:
        stage = Stage(Server(error, error))
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        job = stage.task("high").job
        assert job is not None
        assert stage.task("v0").status is TaskStatus.RUNNING
        assert stage.task("high").status is TaskStatus.PENDING
        assert stage.task("high").row == -1
        assert stage.settled == [("v0", "refused")]
        assert job.is_held
        check(stage.cluster)
        ((_, kind, message),) = stage.events_of("EvictionFailed")
        assert kind == "Warning"
        assert message.startswith("was to make room on n1 for default/high, but cannot be deleted: ")
        await asyncio.sleep(1.01)
        assert not job.is_held
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        await asyncio.sleep(1.01)
        assert job.is_held, "the second time it waits longer"
        await asyncio.sleep(1.0)
        assert not job.is_held
        assert stage.woken == 4

    play(story)


def test_a_victim_that_cannot_be_told_why_is_not_deleted() -> None:
    async def story() -> None:
        stage = Stage(Server(patches=(None, FORBIDDEN)))
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        assert stage.server.of("delete") == []
        assert stage.task("v0").status is TaskStatus.RUNNING

    play(story)


@pytest.mark.parametrize("error", [NotFoundError(404, "NotFound", "gone"), ConflictError(409, "Conflict", "uid")])
def test_a_victim_that_is_gone_already_is_no_failure(error: KubeError) -> None:
    async def story() -> None:
        stage = Stage(Server(error))
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        assert stage.settled == [("v0", "gone")]
        assert stage.task("high").status is TaskStatus.PIPELINED
        assert stage.events_of("Evict") == []

    play(story)


def test_a_victim_that_ends_by_itself_is_left_alone() -> None:
    async def story() -> None:
        stage = Stage(Server())
        evictions, _ = stage.make_room()
        stage.feed.on_pod(stage.feed.pods["uid-v0"], None)
        stage.evictor.submit(evictions, [])
        await stage.settle()
        assert stage.server.told == []
        assert stage.settled == [("v0", "gone")]
        check(stage.cluster)

    play(story)


def test_a_busy_server_is_asked_again() -> None:
    async def story() -> None:
        stage = Stage(Server(BUSY, BUSY, TransportError("cut")))
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        assert stage.settled == [("v0", "done")]

    play(story)


def test_of_a_lost_answer_the_pod_itself_tells_what_became() -> None:
    async def story(gone: bool) -> Stage:
        stage = Stage(Server(*[TransportError("cut")] * 5))
        stage.server.gone = gone
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        return stage

    async def both() -> None:
        assert (await story(gone=True)).settled == [("v0", "done")]
        assert (await story(gone=False)).settled == [("v0", "refused")]

    play(both)


def test_of_nominations_the_newest_counts_and_one_that_is_off_is_taken_back() -> None:
    async def story() -> None:
        stage = Stage(Server())
        waiting = stage.task("high")
        stage.evictor.submit([], [Nominate(waiting, 0, "n1")])
        stage.evictor.submit([], [Nominate(waiting, -1, "")])
        await stage.settle()
        assert stage.server.told == [], "it was never written, and need not be"
        before = stage.feed.pods["uid-high"]
        stage.feed.on_pod(before, make_pod("high", nominatedNodeName="n1"))
        stage.evictor.submit([], [Nominate(stage.task("high"), -1, "")])
        await stage.settle()
        assert stage.server.told == [
            ("patch", "high", {"metadata": {"uid": "uid-high"}, "status": {"nominatedNodeName": None}})
        ]

    play(story)


def test_a_nomination_that_cannot_be_written_does_not_stop_the_eviction() -> None:
    async def story() -> None:
        stage = Stage(Server(patches=(FORBIDDEN,)))
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        assert stage.settled == [("v0", "done")]
        assert stage.task("high").status is TaskStatus.PIPELINED

    play(story)


def test_a_victim_counts_as_leaving_until_its_pod_is_gone() -> None:
    async def story() -> None:
        stage = Stage(Server())
        stage.evictor.submit(*stage.make_room())
        await stage.settle()
        before = stage.feed.pods["uid-v0"]
        told = make_pod("v0", on="n1", group="low", message="a word from the node that has not heard yet")
        stage.feed.on_pod(before, told)
        assert stage.task("v0").status is TaskStatus.RELEASING
        leaving = msgspec.structs.replace(
            told, metadata=msgspec.structs.replace(told.metadata, deletion_timestamp="2026-11-21T00:00:00Z")
        )
        stage.feed.on_pod(told, leaving)
        assert stage.task("v0").status is TaskStatus.RELEASING
        assert stage.cluster.nodes.idle[0, 0] == 0
        stage.feed.on_pod(leaving, None)
        assert "uid-v0" not in stage.cluster.tasks
        check(stage.cluster)

    play(story)
