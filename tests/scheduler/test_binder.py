import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.selectors import ObjectReference
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volumes import Volume
from hekla.dialects.feed import ClusterFeed
from hekla.kube.errors import ApiError, ConflictError, NotFoundError, TransportError
from hekla.kube.events import SilentRecorder
from hekla.placement.cluster import Cluster
from hekla.placement.columns import CPU, NodeSpec
from hekla.placement.model import Task, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.registry import action_named, build_plugin
from hekla.placement.session import Session
from hekla.scheduler.binder import Binder


class Server:
    """Answers binds from a script; when it is at its end, binds succeed."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.bound: list[tuple[str, str]] = []
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.arrived_at = ""
        self.binds_in_bulk = False

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "", annotations: Any = None) -> None:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.bound.append((pod, node))

    async def get(self, kind: type[Pod], name: str, namespace: str = "") -> Pod:
        if not self.arrived_at:
            raise NotFoundError(404, "NotFound", "no such pod")
        return make_pod(name, node=self.arrived_at)


class BulkServer(Server):
    """Binds in bulk; pods named in `refused` only one by one."""

    def __init__(self, *answers: Exception | None, refused: set[str] | None = None) -> None:
        super().__init__(*answers)
        self.binds_in_bulk = True
        self.refused = refused or set()
        self.calls: list[int] = []

    async def bind_many(self, bindings: list[tuple[str, str, str, str]]) -> list[ApiError | None]:
        self.calls.append(len(bindings))
        await asyncio.sleep(0)
        if self.answers and isinstance(self.answers[0], TransportError):
            raise self.answers.pop(0)  # type: ignore[misc]  # it is one
        self.bound += [(pod, node) for _, pod, _, node in bindings if pod not in self.refused]
        busy = ApiError(503, "ServiceUnavailable", "busy")
        return [busy if pod in self.refused else None for _, pod, _, _ in bindings]


def make_pod(name: str, node: str = "") -> Pod:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(document, Pod)


def place(server: Server, pods: int, check: Callable[[ClusterFeed, Binder, Server], None], at_once: int = 64) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.put_queue(Queue(name="default"))
        cluster.put_node(NodeSpec(name="n1", allocatable={"cpu": 100_000, "pods": 200}))
        feed = ClusterFeed(cluster, scheduler_names=("",))
        for number in range(pods):
            feed.on_pod(None, make_pod(f"p{number}"))
        woken = asyncio.Event()
        binder = Binder(server, feed, SilentRecorder(), wake=woken.set, at_once=at_once)  # type: ignore[arg-type]  # two calls of a client
        session = Session(Policy(cluster, [[build_plugin("gang")]]))
        for bind in action_named("allocate")(session):
            binder.submit(bind)
        while not binder.is_idle:
            await asyncio.sleep(0)
        check(feed, binder, server)
        await binder.close()

    asyncio.run(story())


def test_many_binds_are_under_way_together_but_never_more_than_allowed() -> None:
    def check(_: ClusterFeed, binder: Binder, server: Server) -> None:
        assert binder.bound == 100
        assert server.most_at_once == 8

    place(Server(), 100, check, at_once=8)


def test_a_refused_bind_is_undone_and_the_job_sits_out_for_a_while() -> None:
    def check(feed: ClusterFeed, binder: Binder, _: Server) -> None:
        (task,) = feed.cluster.tasks.values()
        assert task.status is TaskStatus.PENDING
        assert task.row == -1
        assert not feed.cluster.nodes.used.any()
        assert task.job is not None
        assert task.job.is_held
        assert binder.bound == 0

    place(Server(ApiError(403, "Forbidden", "no")), 1, check)


def test_a_mistake_of_ours_with_one_pod_gives_its_room_back_and_the_others_are_bound() -> None:
    def check(feed: ClusterFeed, binder: Binder, _: Server) -> None:
        assert binder.bound == 2
        assert sum(task.row == -1 for task in feed.cluster.tasks.values()) == 1
        assert int(feed.cluster.nodes.used[CPU].max()) == 2_000

    place(Server(ValueError("a bug")), 3, check, at_once=1)


def test_a_bind_without_an_answer_is_asked_again() -> None:
    def check(feed: ClusterFeed, binder: Binder, server: Server) -> None:
        assert server.asked == 2
        assert binder.bound == 1

    place(Server(TransportError("broken")), 1, check)


def test_a_bind_that_arrived_without_its_answer_counts_as_done() -> None:
    server = Server(TransportError("broken"), ConflictError(409, "Conflict", "already bound"))
    server.arrived_at = "n1"

    def check(feed: ClusterFeed, binder: Binder, server: Server) -> None:
        assert binder.bound == 1
        (task,) = feed.cluster.tasks.values()
        assert task.row == 0

    place(server, 1, check)


def test_a_pod_deleted_before_its_bind_is_not_bound() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.put_queue(Queue(name="default"))
        cluster.put_node(NodeSpec(name="n1", allocatable={"cpu": 4000, "pods": 10}))
        feed = ClusterFeed(cluster, scheduler_names=("",))
        pod = make_pod("p")
        feed.on_pod(None, pod)
        server = Server()
        binder = Binder(server, feed, SilentRecorder(), wake=lambda: None)  # type: ignore[arg-type]  # two calls of a client
        session = Session(Policy(cluster, [[build_plugin("gang")]]))
        (bind,) = action_named("allocate")(session)
        feed.on_pod(pod, None)
        binder.submit(bind)
        while not binder.is_idle:
            await asyncio.sleep(0)
        assert server.asked == 0
        assert not cluster.nodes.used.any()
        await binder.close()

    asyncio.run(story())


class OneCommit(BulkServer):
    """Answers all calls that are under way at once, as a commit does."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def bind_many(self, bindings: list[tuple[str, str, str, str]]) -> list[ApiError | None]:
        self.calls.append(len(bindings))
        await self.durable
        self.bound += [(pod, node) for _, pod, _, node in bindings]
        return [None] * len(bindings)


def test_a_bind_that_comes_as_one_commit_ends_all_calls_does_not_wait_for_the_next_one() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.put_queue(Queue(name="default"))
        cluster.put_node(NodeSpec(name="n1", allocatable={"cpu": 100_000, "pods": 200}))
        feed = ClusterFeed(cluster, scheduler_names=("",))
        for number in range(3):
            feed.on_pod(None, make_pod(f"p{number}"))
        server, loop = OneCommit(), asyncio.get_running_loop()
        binds = list(action_named("allocate")(Session(Policy(cluster, [[build_plugin("gang")]]))))
        late = [binds.pop()]

        def on_settled(_task: Task, _is_bound: bool) -> None:
            while late:  # before the loop has told anybody that the calls are over
                loop.call_soon(binder.submit, late.pop())

        binder = Binder(server, feed, SilentRecorder(), wake=lambda: None, on_settled=on_settled)  # type: ignore[arg-type]  # two calls of a client
        for number, bind in enumerate(binds, 1):
            binder.submit(bind)
            while len(server.calls) < number:
                await asyncio.sleep(0)
        server.durable.set_result(None)
        for _ in range(20):  # turns of the loop, of which four are needed
            await asyncio.sleep(0)
        assert sorted(pod for pod, _ in server.bound) == ["p0", "p1", "p2"]
        await binder.close()

    asyncio.run(story())


def test_many_pods_are_bound_in_few_calls_where_the_server_can() -> None:
    server = BulkServer()

    def check(_: ClusterFeed, binder: Binder, __: Server) -> None:
        assert binder.bound == 100
        assert server.calls == [100]
        assert server.asked == 0

    place(server, 100, check)


def test_who_is_refused_among_many_is_asked_for_alone() -> None:
    server = BulkServer(refused={"p3"})

    def check(_: ClusterFeed, binder: Binder, __: Server) -> None:
        assert binder.bound == 5
        assert server.asked == 1
        assert server.bound[-1] == ("p3", "n1")

    place(server, 5, check)


def test_a_call_for_many_without_an_answer_is_made_for_each() -> None:
    server = BulkServer(TransportError("broken"))

    def check(_: ClusterFeed, binder: Binder, __: Server) -> None:
        assert binder.bound == 5
        assert server.asked == 5

    place(server, 5, check)


class VolumeServer(Server):
    """Writes down what is patched, and binds claims as a volume controller does, once a volume is theirs."""

    def __init__(self, feed: list[ClusterFeed]) -> None:
        super().__init__()
        self.feed = feed
        self.owners: dict[str, str] = {}

    async def patch(self, kind: type, name: str, patch: Document, namespace: str = "") -> None:
        assert kind is PersistentVolume, "nobody but a provisioner reads which node was chosen"
        assert patch["metadata"]["resourceVersion"] == "7", (
            "a volume that somebody else has taken is not taken from them"
        )
        claim = patch["spec"]["claimRef"]["name"]
        self.owners[name] = claim
        volume = self.feed[0].volume(name)
        assert volume is not None
        reference = msgspec.convert(patch["spec"]["claimRef"], ObjectReference)
        self.feed[0].on_volume(volume, replace(volume, spec=replace(volume.spec, claim_ref=reference)))
        await asyncio.sleep(0)
        before = self.feed[0].claim("default", claim)
        assert before is not None
        after = replace(before, spec=replace(before.spec, volume_name=name))
        self.feed[0].on_claim(before, after)
        self.feed[0].binder.on_claim(before, after)  # type: ignore[attr-defined]  # put there below


def test_free_volumes_without_a_provisioner_are_handed_out_by_the_scheduler_each_to_one_claim() -> None:
    async def story() -> VolumeServer:
        feed = ClusterFeed(Cluster(), scheduler_names=("",))
        feed.cluster.put_queue(Queue(name="default"))
        feed.cluster.put_node(NodeSpec(name="n1", allocatable={"cpu": 8000, "pods": 20}))
        local = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        feed.on_storage_class(None, msgspec.convert({"metadata": {"name": "local"}, **local}, StorageClass))
        for name, size in {"v1": "10Gi", "v2": "50Gi", "v3": "5Gi"}.items():
            spec = {"capacity": {"storage": size}, "storageClassName": "local"}
            document = {"metadata": {"name": name, "resourceVersion": "7"}, "spec": spec}
            feed.on_volume(None, msgspec.convert(document, PersistentVolume))
        for name, size in {"p0": "6Gi", "p1": "3Gi", "p2": "6Gi"}.items():
            spec = {"storageClassName": "local", "resources": {"requests": {"storage": size}}}
            document = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
            feed.on_claim(None, msgspec.convert(document, PersistentVolumeClaim))
        for number in range(3):
            pod = make_pod(f"p{number}")
            volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": f"p{number}"}}]
            feed.on_pod(None, replace(pod, spec=replace(pod.spec, volumes=msgspec.convert(volumes, list[Volume]))))
        server = VolumeServer([feed])
        binder = Binder(server, feed, SilentRecorder(), wake=lambda: None, at_once=1)  # type: ignore[arg-type]  # two calls of a client
        feed.binder = binder  # type: ignore[attr-defined]
        session = Session(Policy(feed.cluster, [[build_plugin("gang"), build_plugin("predicates")]]))
        for bind in action_named("allocate")(session):
            binder.submit(bind)
        while not binder.is_idle:
            await asyncio.sleep(0)
        await binder.close()
        return server

    server = asyncio.run(story())
    assert server.owners == {"v1": "p0", "v2": "p2", "v3": "p1"}
    assert sorted(server.bound) == [("p0", "n1"), ("p1", "n1"), ("p2", "n1")]
