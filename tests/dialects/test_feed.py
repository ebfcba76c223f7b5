from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest

from hekla.api.core import Namespace
from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.scheduling import PriorityClass
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volcano import scheduling
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.volcano import lone_pod
from hekla.placement.bookkeeping.tallies import Attached
from hekla.placement.cluster import Cluster
from hekla.placement.model import JobPhase, TaskStatus
from hekla.testing.cluster import check


def new_feed() -> ClusterFeed:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    feed.on_queue(None, msgspec.convert({"metadata": {"name": "default"}}, scheduling.Queue))
    return feed


def node(name: str, **status: Any) -> Node:
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    document = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": allocatable, **status},
    }
    return msgspec.convert(document, Node)


def pod(name: str, *, group: str = "", on: str = "", phase: str = "Pending", labels: Any = None, **spec: Any) -> Pod:
    annotations = {"scheduling.k8s.io/group-name": group} if group else {}
    metadata = {"name": name, "namespace": "default", "uid": name, "annotations": annotations, "labels": labels or {}}
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    whole = {"schedulerName": "volcano", "containers": containers, "nodeName": on, **spec}
    return msgspec.convert({"metadata": metadata, "spec": whole, "status": {"phase": phase}}, Pod)


def group(name: str, minimum: int = 1, phase: str = "", annotations: Any = None, **spec: Any) -> PodGroup:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations or {}},
        "spec": {"minMember": minimum, **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, PodGroup)


def test_pods_may_come_before_their_group_and_their_node() -> None:
    feed = new_feed()
    feed.on_pod(None, pod("a", group="g", on="n1", phase="Running"))
    feed.on_pod(None, pod("b", group="g"))
    feed.on_pod_group(None, group("g", 2))
    feed.on_node(None, node("n1"))
    job = feed.cluster.jobs["uid-g"]
    assert set(job.tasks) == {"a", "b"}
    assert job.statuses[TaskStatus.RUNNING] == 1
    assert feed.cluster.nodes.used[0, 0] == 1000
    check(feed.cluster)


def test_a_group_that_is_deleted_leaves_its_running_pods_on_their_nodes() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    feed.on_pod_group(None, group("g"))
    feed.on_pod(None, pod("a", group="g", on="n1", phase="Running"))
    feed.on_pod(None, pod("b", group="g"))
    feed.on_pod_group(group("g"), None)
    assert "uid-g" not in feed.cluster.jobs
    assert feed.cluster.nodes.used[0, 0] == 1000
    feed.on_pod_group(None, group("g"))
    assert set(feed.cluster.jobs["uid-g"].tasks) == {"a", "b"}
    check(feed.cluster)


def test_a_pod_that_ends_gives_its_room_back_and_so_does_one_that_is_deleted() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    first, second = pod("a", on="n1", phase="Running"), pod("b", on="n1", phase="Running")
    feed.on_pod(None, first)
    feed.on_pod(None, second)
    assert feed.cluster.nodes.used[0, 0] == 2000
    feed.on_pod(first, pod("a", on="n1", phase="Succeeded"))
    assert feed.cluster.nodes.used[0, 0] == 1000
    feed.on_pod(second, None)
    assert not feed.cluster.nodes.used.any()
    check(feed.cluster)


def test_a_terminating_pod_holds_its_room_until_it_is_gone() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    running = pod("a", on="n1", phase="Running")
    feed.on_pod(None, running)
    meta = msgspec.structs.replace(running.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    leaving = msgspec.structs.replace(running, metadata=meta)
    feed.on_pod(running, leaving)
    assert feed.cluster.tasks["a"].status is TaskStatus.RELEASING
    assert feed.cluster.nodes.used[0, 0] == 1000


def test_a_heartbeat_that_changes_nothing_is_no_news() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    gains, version = feed.cluster.gains, feed.cluster.nodes.version
    feed.on_node(node("n1"), node("n1", conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "x"}]))
    assert (feed.cluster.gains, feed.cluster.nodes.version) == (gains, version)


def test_the_priority_of_a_group_follows_its_class() -> None:
    feed = new_feed()
    feed.on_pod_group(None, group("g", priorityClassName="urgent"))
    assert feed.cluster.jobs["uid-g"].spec.priority == 0
    urgent = msgspec.convert({"metadata": {"name": "urgent"}, "value": 1000}, PriorityClass)
    feed.on_priority_class(None, urgent)
    assert feed.cluster.jobs["uid-g"].spec.priority == 1000


def test_a_pod_that_cannot_be_understood_waits_with_its_reason_and_harms_nobody() -> None:
    feed = new_feed()
    broken = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Resembles"}]}]}}}  # fmt: skip
    feed.on_pod(None, pod("odd", affinity=broken))
    feed.on_pod(None, pod("huge", containers=[{"resources": {"requests": {"cpu": "lots"}}}]))
    for name in ("odd", "huge"):
        blocked = feed.cluster.tasks[name].shape.constraints.blocked
        assert blocked is not None
        assert blocked.code == "invalid-pod"


def test_a_group_in_a_phase_that_nobody_knows_waits() -> None:
    feed = new_feed()
    feed.on_pod_group(None, group("g", phase="Levitating", subGroupPolicy=[
        {"name": "p", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Resembles"}]}, "matchLabelKeys": ["a"]}
    ]))  # fmt: skip
    assert feed.cluster.jobs["uid-g"].phase is JobPhase.PENDING


def test_what_a_namespace_selector_means_follows_the_namespaces() -> None:
    feed = new_feed()
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {},
        "namespaceSelector": {"matchLabels": {"team": "a"}},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    feed.on_pod(None, pod("shy", affinity=affinity))
    (before,) = feed.cluster.tasks["shy"].shape.constraints.anti_affinity
    assert before.selector.namespaces == frozenset()
    feed.on_namespace(None, msgspec.convert({"metadata": {"name": "x", "labels": {"team": "a"}}}, Namespace))
    (after,) = feed.cluster.tasks["shy"].shape.constraints.anti_affinity
    assert after.selector.namespaces == frozenset({"x"})


def test_a_gate_that_is_lifted_lets_the_pod_be_placed() -> None:
    feed = new_feed()
    gated = pod("a", schedulingGates=[{"name": "wait"}])
    feed.on_pod(None, gated)
    assert not list(feed.cluster.jobs["pod:a"].pending())
    feed.on_pod(gated, pod("a"))
    assert list(feed.cluster.jobs["pod:a"].pending())


def test_a_pod_that_is_bound_by_somebody_else_is_followed_there() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    feed.on_node(None, node("n2"))
    waiting = pod("a")
    feed.on_pod(None, waiting)
    task = feed.cluster.tasks["a"]
    feed.cluster.place(task, 0)
    assert task.job is not None
    task.job.move(task, TaskStatus.BINDING)
    feed.on_pod(waiting, pod("a", on="n2"))
    assert feed.cluster.nodes.name(feed.cluster.tasks["a"].row) == "n2"
    assert feed.cluster.tasks["a"].status is TaskStatus.BOUND
    check(feed.cluster)


def test_nothing_is_left_when_everything_has_gone() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    feed.on_pod_group(None, group("g"))
    for number in range(3):
        feed.on_pod(None, pod(f"a-{number}", group="g", on="n1", phase="Running"))
        feed.on_pod(None, pod(f"b-{number}"))
    for number in range(3):
        feed.on_pod(pod(f"a-{number}", group="g", on="n1"), None)
        feed.on_pod(pod(f"b-{number}"), None)
    feed.on_pod_group(group("g"), None)
    feed.on_node(node("n1"), None)
    cluster = feed.cluster
    for left in (cluster.tasks, cluster.jobs, feed.pods, feed.groups, cluster.lines.for_nodes):
        assert not left
    assert not any(cluster.lines.by_phase.values())
    assert not cluster.nodes.used.any()


QUEUE = {"scheduling.volcano.sh/queue-name": "ml"}


def named(name: str, kind: type[Any] = Namespace, annotations: Any = None) -> Any:
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations or {}}}, kind)


def test_a_pod_without_a_group_queues_where_it_says_else_where_its_namespace_says() -> None:
    feed = new_feed()
    feed.on_queue(None, named("ml", scheduling.Queue))
    own = pod("own")
    feed.on_pod(None, msgspec.structs.replace(own, metadata=msgspec.structs.replace(own.metadata, annotations=QUEUE)))
    feed.on_pod(None, pod("plain"))
    queues = {task.uid: task.job.spec.queue for task in feed.cluster.tasks.values() if task.job}
    assert queues == {"own": "ml", "plain": "default"}
    feed.on_namespace(None, named("default", annotations=QUEUE))
    assert {task.job.spec.queue for task in feed.cluster.tasks.values() if task.job} == {"ml"}
    feed.on_namespace(named("default", annotations=QUEUE), named("default"))
    assert {task.uid: task.job.spec.queue for task in feed.cluster.tasks.values() if task.job} == queues
    check(feed.cluster)


def test_a_scheduler_that_waits_for_groups_leaves_plain_pods_alone_until_they_are_given_one() -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano", "default-scheduler"), waits_for_groups=True)
    feed.on_queue(None, named("default", scheduling.Queue))
    feed.on_node(None, node("n1"))
    waiting = pod("waiting")
    feed.on_pod(None, waiting)
    feed.on_pod(None, pod("bound", on="n1", phase="Running"))
    feed.on_pod(None, pod("other", schedulerName="default-scheduler"))
    assert set(feed.cluster.tasks) == {"bound", "other"}
    feed.on_pod_group(None, group("g"))
    feed.on_pod(waiting, pod("waiting", group="g"))
    assert set(feed.cluster.jobs["uid-g"].tasks) == {"waiting"}
    check(feed.cluster)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_gang_that_asks_for_another_scheduler_is_left_to_it(order: tuple[int, ...]) -> None:
    """Live, a scheduler placed the pods of a Job whose schedulerName was another's; and each told the PodGroup its own reason."""
    feed, theirs = new_feed(), pod("a", group="g", schedulerName="team-a")
    come = (
        lambda: feed.on_pod_group(None, group("g")),
        lambda: feed.on_pod(None, theirs),
        lambda: feed.on_node(None, node("n")),
    )
    for number in order:
        come[number]()
    job = feed.cluster.jobs["uid-g"]
    assert not job.tasks
    assert feed.other_scheduler_of(job) == "team-a"
    placed = pod("a", group="g", on="n", schedulerName="team-a")
    feed.on_pod(theirs, placed)
    assert job.tasks["a"].status is not TaskStatus.PENDING
    assert feed.other_scheduler_of(job) == ""
    feed.on_pod(placed, None)
    feed.on_pod(None, theirs)
    feed.on_pod(theirs, None)
    assert feed.other_scheduler_of(job) == ""
    feed.on_pod(None, pod("b", group="g"))
    assert feed.other_scheduler_of(job) == ""


def test_a_gang_is_left_to_the_scheduler_that_its_group_names_before_there_are_pods() -> None:
    """Two schedulers let such a job in and told its PodGroup each its own reason, and `hekla why` asked the wrong one."""
    feed = new_feed()
    feed.on_pod_group(None, group("g", annotations={"hekla.dev/scheduler-name": "team-a"}))
    feed.on_pod_group(None, group("ours", annotations={"hekla.dev/scheduler-name": "volcano"}))
    jobs = feed.cluster.jobs
    assert feed.other_scheduler_of(jobs["uid-g"]) == "team-a"
    assert feed.other_scheduler_of(jobs["uid-ours"]) == ""
    feed.on_pod(None, pod("a", group="g"))  # what a pod itself says goes before it
    assert feed.other_scheduler_of(jobs["uid-g"]) == ""


def storage_object(kind: Any, name: str, **body: Any) -> Any:
    namespace = "default" if kind is PersistentVolumeClaim else ""
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, **body}, kind)


def test_what_a_node_attaches_may_be_known_before_and_after_the_node() -> None:
    feed = new_feed()
    limits = storage_object(
        CSINode, "n1", spec={"drivers": [{"name": "d", "allocatable": {"count": 3}}, {"name": "e"}]}
    )
    feed.on_csi_node(None, limits)
    feed.on_node(None, node("n1"))
    spec = feed.cluster.nodes.specs[0]
    assert spec is not None
    assert spec.volume_limits == {"d": 3}
    feed.on_csi_node(limits, None)
    spec = feed.cluster.nodes.specs[0]
    assert spec is not None
    assert spec.volume_limits == {}


def test_an_attached_volume_and_the_pod_that_mounts_it_are_one_in_whatever_order_they_come() -> None:
    attachment = storage_object(
        VolumeAttachment, "a", spec={"nodeName": "n1", "attacher": "d", "source": {"persistentVolumeName": "v"}}
    )
    reference = {"namespace": "default", "name": "data"}
    volume = storage_object(PersistentVolume, "v", spec={"csi": {"driver": "d"}, "claimRef": reference})
    claim = storage_object(PersistentVolumeClaim, "data", spec={"volumeName": "v"})
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    told: list[Callable[[ClusterFeed], None]] = [
        lambda feed: feed.on_attachment(None, attachment),
        lambda feed: feed.on_volume(None, volume),
        lambda feed: feed.on_claim(None, claim),
        lambda feed: feed.on_node(None, node("n1")),
    ]
    for order in permutations(told):
        feed = new_feed()
        for tell in order:
            tell(feed)
        feed.on_pod(None, pod("a", on="n1", phase="Running", volumes=volumes))
        tally = feed.cluster.tallies.find(Attached("d"))
        assert tally is not None
        assert feed.cluster.tallies.total(tally) == 1
        feed.on_pod(pod("a", on="n1", phase="Running", volumes=volumes), None)
        assert feed.cluster.tallies.total(tally) == 1, "it is attached until it is detached"
        feed.on_attachment(attachment, None)
        assert feed.cluster.tallies.total(tally) == 0


def test_a_free_volume_that_comes_is_news_for_those_who_wait_for_one() -> None:
    feed = new_feed()
    binding = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    feed.on_storage_class(None, storage_object(StorageClass, "local", **binding))
    feed.on_claim(None, storage_object(PersistentVolumeClaim, "data", spec={"storageClassName": "local"}))
    feed.on_pod(None, pod("a", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
    assert feed.cluster.tasks["a"].spec.constraints.blocked is not None
    feed.on_volume(None, storage_object(PersistentVolume, "v", spec={"storageClassName": "local"}))
    (unbound,) = feed.cluster.tasks["a"].spec.constraints.unbound_claims
    assert [volume.name for volume in unbound.choices] == ["v"]


def test_room_that_a_driver_tells_is_news_for_those_who_wait_for_it() -> None:
    feed = new_feed()
    feed.on_csi_driver(None, storage_object(CSIDriver, "d", spec={"storageCapacity": True}))
    binding = {"provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer"}
    feed.on_storage_class(None, storage_object(StorageClass, "fast", **binding))
    wanted = {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}
    feed.on_claim(None, storage_object(PersistentVolumeClaim, "data", spec=wanted))
    feed.on_pod(None, pod("a", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
    assert feed.cluster.tasks["a"].spec.constraints.storage_terms == ((),)
    told = storage_object(CSIStorageCapacity, "c", storageClassName="fast", capacity="9Gi", nodeTopology={})
    feed.on_storage_capacity(None, told)
    assert feed.cluster.tasks["a"].spec.constraints.storage_terms == ()
    feed.on_storage_capacity(told, None)
    assert feed.cluster.tasks["a"].spec.constraints.storage_terms == ((),)


def test_of_those_who_come_at_once_only_who_waits_or_is_in_a_group_is_looked_at() -> None:
    feed = new_feed()
    feed.on_node(None, node("n1"))
    feed.on_pod_group(None, group("g"))
    feed.dirty.clear()
    feed.on_pods([pod("runs", on="n1", phase="Running"), pod("waits"), pod("member", group="g", on="n1")])
    assert feed.dirty == {"pod:waits", "uid-g"}
    assert set(feed.cluster.tasks) == {"runs", "waits", "member"}


@pytest.mark.parametrize(("said", "estimate_s"), [("1h30m", 5400.0), ("2 hours", None), ("-5m", None), ("", None)])
def test_how_long_a_lone_pod_runs_is_read_and_what_cannot_be_is_kept_to_be_told(
    said: str, estimate_s: float | None
) -> None:
    key = "hekla.dev/running-estimate"
    spec = lone_pod(msgspec.convert({"metadata": {"name": "x", "annotations": {key: said}}}, Pod))
    assert spec.estimate_s == estimate_s
    assert spec.traits.get(key) == (None if estimate_s else said)
