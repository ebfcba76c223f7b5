"""PodGroups of plain workloads: who gets one, what it says, and that it follows what it was made for."""

from collections.abc import Callable
from typing import Any

import pytest

from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Command, Create, Event, Patch, RequeueAfter
from hekla.kube.reconcile import Reconciler
from hekla.testing.admission import admit
from hekla.testing.job_world import NOW
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge, decide
from hekla.testing.world import FakeWorld
from hekla.workloads.admission import ADMISSION_RULES, rules_of
from hekla.workloads.ours import Ours
from hekla.workloads.plain_groups import plain_groups
from hekla.workloads.reconcilers import RECONCILERS, reconcilers

MIN = "scheduling.volcano.sh/group-min-member"
ROOM = "scheduling.volcano.sh/group-min-resources"
QUEUE = "scheduling.volcano.sh/queue-name"
NAME = "scheduling.k8s.io/group-name"
MODE, TIER = "volcano.sh/network-topology-mode", "volcano.sh/network-topology-highest-tier"
LWS = "leaderworkerset.sigs.k8s.io"
BY_NAME: dict[str, Reconciler] = {one.name: one for one in plain_groups()}
EVERY: dict[str, Reconciler] = {one.name: one for one in plain_groups(every_pod=True)}
VERSIONS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}


def workload(
    kind: str = "ReplicaSet", notes: Document | None = None, of_pods: Document | None = None, *,
    labels: Document | None = None, scheduler: str = "volcano", status: Document | None = None, **spec: Any,
) -> Document:  # fmt: skip
    """A workload `web` whose pods ask for two cpus each."""
    counts: Document = {} if kind in ("Job", "DaemonSet") else {"replicas": 4}
    pod = {"schedulerName": scheduler, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    template = {"metadata": {"annotations": of_pods or {}, "labels": labels or {}}, "spec": pod}
    metadata = {"name": "web", "namespace": "default", "uid": "u1", "annotations": notes or {}}
    return {
        "apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": {**counts, "template": template, **spec},
        "status": status or {},
    }  # fmt: skip


def pod(
    name: str, owner: Document | None = None, notes: Document | None = None, labels: Document | None = None, on: str = "",
    **status: Any,
) -> Document:  # fmt: skip
    """A pod that asks for one cpu, made by an owner or by hand."""
    metadata: Document = {"name": name, "namespace": "default", "annotations": notes or {}, "labels": labels or {}}
    if owner is not None:
        reference = {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata["ownerReferences"] = [
            {**reference, "apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        ]
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    spec = {"schedulerName": "volcano", "containers": containers, **({"nodeName": on} if on else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status or {"phase": "Pending"},
    }


def namespace(queue: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "annotations": {QUEUE: queue}}}


def settled(
    world: FakeWorld, kind: str = "ReplicaSet", name: str = "web", by: dict[str, Reconciler] = BY_NAME
) -> FakeWorld:
    converge(by[f"group-of-{kind.lower()}"], world, "default", name, now=NOW)
    return world


def groups(world: FakeWorld) -> dict[str, Document]:
    return {
        one.metadata.name: world.document(PodGroup, "default", one.metadata.name)["spec"]
        for one in world.list(PodGroup)
    }


def concerns(it: Reconciler, document: Document) -> bool:
    """Whether a reconciler looks at a pod at all."""
    assert it.concerns is not None
    return it.concerns(FakeWorld(document).list(Pod)[0], FakeWorld(document))


# ---- who gets a group


@pytest.mark.parametrize("kind", VERSIONS)
def test_what_makes_pods_gets_a_group_when_its_annotations_ask_for_a_gang(kind: str) -> None:
    counts = (
        {"parallelism": 4} if kind == "Job" else {"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    )
    world = settled(FakeWorld(workload(kind, {MIN: "3"}, **counts)), kind)
    assert groups(world) == {
        "podgroup-u1": {"minMember": 3, "queue": "default", "minResources": {"cpu": "6"}},
    }
    owner = world.document(PodGroup, "default", "podgroup-u1")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (kind, "web", "u1", True)


@pytest.mark.parametrize(
    ("notes", "of_pods", "asks"),
    [
        ({}, {}, False),
        ({}, {QUEUE: "ml"}, False),
        ({"example.com/x": "1", "deployment.kubernetes.io/revision": "1"}, {}, False),
        ({MIN: "1"}, {}, True),
        ({}, {MIN: "2"}, True),
        ({ROOM: '{"cpu": "1"}'}, {}, True),
        ({}, {MODE: "soft"}, True),
        ({}, {TIER: "1"}, True),
        ({"volcano.sh/sla-waiting-time": "1h"}, {}, True),
    ],
)
def test_a_group_is_made_for_who_asks_and_its_pods_are_marked_as_they_are_made(
    notes: Document, of_pods: Document, asks: bool
) -> None:
    owner = workload(notes=notes, of_pods=of_pods)
    assert bool(groups(settled(FakeWorld(owner)))) is asks
    made = admit(ADMISSION_RULES, pod("web-1", owner, of_pods), there=[owner])
    assert made["metadata"]["annotations"] == {**of_pods, **({NAME: "podgroup-u1"} if asks else {})}


def test_a_pod_of_another_scheduler_or_of_a_group_already_is_left_alone() -> None:
    owner = workload(notes={MIN: "2"}, scheduler="default-scheduler")
    assert groups(settled(FakeWorld(owner))) == {}
    foreign = pod("web-1", owner)
    foreign["spec"]["schedulerName"] = "default-scheduler"
    assert admit(ADMISSION_RULES, foreign, there=[owner])["metadata"]["annotations"] == {}
    for key in (NAME, "scheduling.volcano.sh/group-name"):
        chosen = pod("web-1", workload(notes={MIN: "2"}), {key: "mine"})
        assert admit(ADMISSION_RULES, chosen, there=[workload(notes={MIN: "2"})])["metadata"]["annotations"] == {
            key: "mine"
        }


def test_an_owner_of_the_same_name_made_anew_does_not_speak_for_the_old_ones_pods() -> None:
    old, new = workload(), workload(notes={MIN: "2"})
    old["metadata"]["uid"] = "u0"
    assert admit(ADMISSION_RULES, pod("web-1", old), there=[new])["metadata"]["annotations"] == {}
    assert admit(ADMISSION_RULES, pod("web-1", old))["metadata"]["annotations"] == {}


# ---- what it says


def test_a_group_takes_over_queue_class_topology_and_what_concerns_eviction() -> None:
    of_pods = {QUEUE: "ml", MODE: "strange", TIER: "2", "volcano.sh/preemptable": "true"}
    owner = workload(notes={MIN: "2", "volcano.sh/sla-waiting-time": "1h"}, of_pods=of_pods)
    owner["spec"]["template"]["spec"]["priorityClassName"] = "high"
    world = settled(FakeWorld(owner))
    assert groups(world)["podgroup-u1"] == {
        "minMember": 2, "queue": "ml", "minResources": {"cpu": "4"}, "priorityClassName": "high",
        "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
    }  # fmt: skip
    notes = world.document(PodGroup, "default", "podgroup-u1")["metadata"]["annotations"]
    assert notes == {"volcano.sh/sla-waiting-time": "1h", "volcano.sh/preemptable": "true"}


def test_the_queue_is_the_pods_else_the_namespaces() -> None:
    assert groups(settled(FakeWorld(workload(notes={MIN: "2"}), namespace("nlp"))))["podgroup-u1"]["queue"] == "nlp"
    owner = workload(notes={MIN: "2"}, of_pods={QUEUE: "ml"})
    assert groups(settled(FakeWorld(owner, namespace("nlp"))))["podgroup-u1"]["queue"] == "ml"


def test_the_room_may_be_given() -> None:
    world = settled(FakeWorld(workload(notes={MIN: "2", ROOM: '{"cpu": 16, "memory": "64Gi"}'})))
    assert groups(world)["podgroup-u1"]["minResources"] == {"cpu": "16", "memory": "64Gi"}


@pytest.mark.parametrize(
    ("notes", "of_pods", "sentence"),
    [
        ({MIN: "three"}, {}, f"annotation {MIN} is 'three', which is no whole number above 0; the gang's minimum is 1"),
        ({MIN: "²"}, {}, f"annotation {MIN} is '²', which is no whole number above 0; the gang's minimum is 1"),
        ({MIN: "9" * 5000}, {}, f"annotation {MIN} is '{'9' * 5000}', which is no whole number above 0; the gang's minimum is 1"),
        ({MIN: "0"}, {}, f"annotation {MIN} is '0', which is no whole number above 0; the gang's minimum is 1"),
        (
            {ROOM: "cpu=4"}, {},
            f"annotation {ROOM} is 'cpu=4'; write quantities by resource as JSON, like "
            '{"cpu": "8", "memory": "32Gi"}; what the pods ask for counts instead',
        ),
        ({}, {TIER: "rack"}, f"annotation {TIER} is 'rack', which is no tier; tiers are numbers from 0 on"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_on_the_workload_and_stops_nothing(
    notes: Document, of_pods: Document, sentence: str
) -> None:
    world = settled(FakeWorld(workload(notes=notes, of_pods=of_pods)))
    assert groups(world)["podgroup-u1"]["minMember"] == 1
    assert [(event.reason, event.message, event.target.name) for event in world.events] == [
        ("PodGroupAnnotation", sentence, "web")
    ]


def test_a_stateful_set_that_makes_pods_in_turn_is_no_gang_and_says_so() -> None:
    world = settled(FakeWorld(workload("StatefulSet", {MIN: "3"})), "StatefulSet")
    assert groups(world)["podgroup-u1"] == {"minMember": 1, "queue": "default", "minResources": {"cpu": "6"}}
    assert "spec.podManagementPolicy to Parallel" in world.events[0].message


# ---- it follows


def scaled(world: FakeWorld, kind: str = "ReplicaSet", **spec: Any) -> dict[str, Document]:
    world.change(type(world.list(BY_NAME[f"group-of-{kind.lower()}"].kind)[0]), "default", "web", {"spec": spec})
    return groups(settled(world, kind))


def test_the_minimum_follows_the_scale_and_nothing_is_left_at_none() -> None:
    world = settled(FakeWorld(workload(notes={MIN: "3"})))
    assert scaled(world, replicas=2)["podgroup-u1"] == {
        "minMember": 2,
        "queue": "default",
        "minResources": {"cpu": "4"},
    }
    assert scaled(world, replicas=10)["podgroup-u1"]["minMember"] == 3
    assert scaled(world, replicas=0) == {}
    assert scaled(world, replicas=3)["podgroup-u1"]["minMember"] == 3


def test_a_rolling_update_that_makes_one_pod_at_a_time_is_not_stopped_by_its_gang() -> None:
    assert groups(settled(FakeWorld(workload(notes={MIN: "3"}, replicas=1))))["podgroup-u1"]["minMember"] == 1


def test_a_batch_job_has_a_group_while_it_is_to_run() -> None:
    world = settled(FakeWorld(workload("Job", {MIN: "3"}, parallelism=8, completions=2)), "Job")
    assert groups(world)["podgroup-u1"]["minMember"] == 2
    assert scaled(world, "Job", suspend=True) == {}
    over = workload("Job", {MIN: "3"}, parallelism=8, status={"conditions": [{"type": "Complete", "status": "True"}]})
    assert groups(settled(FakeWorld(over), "Job")) == {}


def test_a_daemon_set_follows_its_nodes_once_it_knows_them() -> None:
    assert groups(settled(FakeWorld(workload("DaemonSet", {MIN: "3"})), "DaemonSet"))["podgroup-u1"]["minMember"] == 3
    status = {"observedGeneration": 1, "desiredNumberScheduled": 2}
    known = workload("DaemonSet", {MIN: "3"}, status=status)
    assert groups(settled(FakeWorld(known), "DaemonSet"))["podgroup-u1"]["minMember"] == 2


def test_a_changed_template_changes_the_group() -> None:
    world = settled(FakeWorld(workload("StatefulSet", {MIN: "2"}, podManagementPolicy="Parallel")), "StatefulSet")
    template = {"metadata": {"annotations": {QUEUE: "ml", "volcano.sh/preemptable": "true"}}}
    assert scaled(world, "StatefulSet", template=template)["podgroup-u1"]["queue"] == "ml"
    notes = world.document(PodGroup, "default", "podgroup-u1")["metadata"]["annotations"]
    assert notes == {"volcano.sh/preemptable": "true"}


def test_pods_that_were_marked_keep_their_group_when_the_wish_is_gone() -> None:
    owner = workload()
    world = settled(FakeWorld(owner, pod("web-1", owner, {NAME: "podgroup-u1"})))
    assert groups(world)["podgroup-u1"]["minMember"] == 1


def test_pods_that_nobody_marked_are_marked_while_they_wait() -> None:
    owner = workload(notes={MIN: "2"})
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    world = settled(FakeWorld(owner, node, pod("a", owner), pod("b", owner, on="n1"), pod("c", owner, {NAME: "other"})))
    marks = {one.metadata.name: one.metadata.annotations.get(NAME) for one in world.list(Pod)}
    assert marks == {"a": "podgroup-u1", "b": None, "c": "other"}
    waking = BY_NAME["group-of-replicaset"].wakes[Pod]
    assert [list(waking(one)) for one in FakeWorld(owner, pod("a", owner), pod("b", owner, {NAME: "x"})).list(Pod)] == [
        [("default", "web")], [],
    ]  # fmt: skip


# ---- gangs by labels


def lws(worker: int, group: int = 0, size: int = 4, **notes: str) -> Document:
    labels = {f"{LWS}/name": "llama", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
    return pod(f"llama-{group}-{worker}", None, {f"{LWS}/size": str(size), **notes}, labels)


def spark(role: str, name: str, **notes: str) -> Document:
    return pod(name, None, notes, {"spark-role": role, "spark-app-selector": "spark-5f4b"})


def flink(component: str, name: str, **labels: str) -> Document:
    return pod(name, None, {MIN: "3"}, {"app": "stream", "component": component, **labels})


@pytest.mark.parametrize(
    ("members", "name", "minimum"),
    [
        ([lws(0), lws(1)], "podgroup-lws-llama-0", 4),
        ([lws(0, **{MIN: "1"})], "podgroup-lws-llama-0", 1),
        ([spark("driver", "d"), spark("executor", "e1")], "podgroup-spark-spark-5f4b", 1),
        ([flink("jobmanager", "j"), flink("taskmanager", "t")], "podgroup-flink-stream", 3),
        ([flink("jobmanager", "j", type="flink-native-kubernetes")], "podgroup-flink-stream", 1),
    ],
)
def test_leader_and_followers_are_one_gang(members: list[Document], name: str, minimum: int) -> None:
    for document in members:
        assert admit(ADMISSION_RULES, document)["metadata"]["annotations"][NAME] == name
    world = FakeWorld(*members)
    for document in members:
        settled(world, "leader", document["metadata"]["name"])
    assert {key: spec["minMember"] for key, spec in groups(world).items()} == {name: minimum}
    owner = world.list(PodGroup)[0].metadata.owner_references[0]
    assert (owner.kind, owner.name) == ("Pod", members[0]["metadata"]["name"])
    assert {one.metadata.annotations[NAME] for one in world.list(Pod)} == {name}


def test_a_driver_of_another_scheduler_of_ours_gets_its_group_in_our_default_queue() -> None:
    ours = Ours(("volcano", "team-a"), "shared")
    driver, executor = spark("driver", "d"), spark("executor", "e1")
    for document in (driver, executor):
        document["spec"]["schedulerName"] = "team-a"
        assert NAME not in admit(ADMISSION_RULES, document)["metadata"]["annotations"]
        made = admit(rules_of("hekla-system", ours), document)
        assert made["metadata"]["annotations"][NAME] == "podgroup-spark-spark-5f4b"
    theirs = {one.name: one for one in plain_groups(ours=ours)}
    assert (concerns(BY_NAME["group-of-leader"], driver), concerns(theirs["group-of-leader"], driver)) == (False, True)
    assert groups(settled(FakeWorld(driver), "leader", "d", theirs)) == {
        "podgroup-spark-spark-5f4b": {"minMember": 1, "queue": "shared", "minResources": {"cpu": "1"}},
    }  # fmt: skip


def test_every_reconciler_of_plain_groups_looks_at_our_schedulers_and_no_other() -> None:
    theirs = {one.name: one for one in plain_groups(every_pod=True, ours=Ours(("team-a",), "shared"))}
    for kind in VERSIONS:
        counts: Document = {"parallelism": 4} if kind == "Job" else {}
        mine = workload(kind, {MIN: "2"}, scheduler="team-a", podManagementPolicy="Parallel", **counts)
        [group] = groups(settled(FakeWorld(mine), kind, by=theirs)).values()
        assert group["queue"] == "shared"
        assert groups(settled(FakeWorld(workload(kind, {MIN: "2"}, **counts)), kind, by=theirs)) == {}
    lone = pod("a")
    assert not concerns(theirs["group-of-pod"], lone)
    lone["spec"]["schedulerName"] = "team-a"
    assert concerns(theirs["group-of-pod"], lone)
    [group] = groups(settled(FakeWorld(lone), "pod", "a", theirs)).values()
    assert group["queue"] == "shared"


def test_a_driver_starts_alone_in_a_queue_that_has_room_for_its_executors() -> None:
    world = settled(FakeWorld(spark("driver", "d", **{ROOM: '{"cpu": "9"}'})), "leader", "d")
    assert groups(world)["podgroup-spark-spark-5f4b"] == {
        "minMember": 1, "queue": "default", "minResources": {"cpu": "9"},
    }  # fmt: skip


def test_a_leader_worker_set_that_made_its_own_group_is_left_alone() -> None:
    leader = lws(0, **{NAME: "llama-0-rev1"})
    assert admit(ADMISSION_RULES, leader)["metadata"]["annotations"][NAME] == "llama-0-rev1"
    assert decide(BY_NAME["group-of-leader"], FakeWorld(leader), "default", "llama-0-0", now=NOW) == []


def test_the_stateful_sets_below_a_leader_worker_set_have_no_group_of_their_own() -> None:
    owner = workload("StatefulSet", {MIN: "3"}, labels={f"{LWS}/name": "llama"}, podManagementPolicy="Parallel")
    assert groups(settled(FakeWorld(owner), "StatefulSet")) == {}


def test_a_new_leader_waits_until_the_group_of_the_old_one_is_gone() -> None:
    world = FakeWorld(lws(0))
    world.put(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {
                "name": "podgroup-lws-llama-0", "namespace": "default",
                "ownerReferences": [{"kind": "Pod", "name": "llama-0-0", "uid": "gone", "controller": True}],
            },
        }
    )  # fmt: skip
    commands = decide(BY_NAME["group-of-leader"], world, "default", "llama-0-0", now=NOW)
    assert [type(command) for command in commands] == [Patch, RequeueAfter]
    world.remove(PodGroup, "default", "podgroup-lws-llama-0")
    assert groups(settled(world, "leader", "llama-0-0"))["podgroup-lws-llama-0"]["minMember"] == 4


def test_names_that_make_no_name_are_digested() -> None:
    odd = pod("d", None, {}, {"spark-role": "driver", "spark-app-selector": "Spark_1"})
    name = admit(ADMISSION_RULES, odd)["metadata"]["annotations"][NAME]
    assert name.startswith("podgroup-spark-")
    assert name == name.lower()
    assert "_" not in name


# ---- every pod, as Volcano has it


def test_every_pod_gets_a_group_where_schedulers_wait_for_it() -> None:
    owner = workload()
    world = settled(FakeWorld(owner, pod("web-1", owner)), by=EVERY)
    assert groups(world)["podgroup-u1"]["minMember"] == 1
    assert world.list(Pod)[0].metadata.annotations[NAME] == "podgroup-u1"
    bare = settled(FakeWorld(pod("bare")), "pod", "bare", by=EVERY)
    assert set(groups(bare)) == {"podgroup-uid-pods-default-bare"}


def test_pods_of_one_foreign_owner_share_a_group() -> None:
    mine = workload("Job")
    foreign = {**mine, "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    world = FakeWorld(mine, pod("a", foreign), pod("b", foreign))
    for name in "ab":
        settled(world, "pod", name, by=EVERY)
    assert set(groups(world)) == {"podgroup-u1"}
    assert world.list(PodGroup)[0].metadata.owner_references[0].kind == "Workflow"


# ---- the three properties

WORLDS: dict[str, tuple[str, str, Callable[[], FakeWorld]]] = {
    "new": ("replicaset", "web", lambda: FakeWorld(o := workload(notes={MIN: "three"}), pod("a", o), pod("b", o))),
    "scaled down": ("replicaset", "web", lambda: shrunk(2)),
    "scaled to none": ("replicaset", "web", lambda: shrunk(0)),
    "in turn": ("statefulset", "web", lambda: FakeWorld(workload("StatefulSet", {MIN: "3"}))),
    "a leader": ("leader", "llama-0-0", lambda: FakeWorld(lws(0), lws(1))),
    "a follower": ("leader", "llama-0-1", lambda: FakeWorld(lws(0), lws(1))),
}


def shrunk(replicas: int) -> FakeWorld:
    world = settled(FakeWorld(workload(notes={MIN: "3"}, of_pods={TIER: "1"})))
    world.change(BY_NAME["group-of-replicaset"].kind, "default", "web", {"spec": {"replicas": replicas}})
    return world


@pytest.mark.parametrize("case", WORLDS)
def test_reconcilers_of_plain_groups_keep_the_three_properties(case: str) -> None:
    reconciler, name, make = WORLDS[case]
    for by in (BY_NAME, EVERY):
        it = by[f"group-of-{reconciler}"]
        assert_converges(it, make(), "default", name, now=NOW)
        assert_heals(it, make, "default", name, now=NOW)
        assert_touches_only_its_own(it, make(), "default", name, now=NOW)


def test_a_foreign_owners_group_is_the_only_stranger_that_is_touched() -> None:
    def made_for_the_owner(command: Command) -> bool:
        return isinstance(command, Create) and command.document["metadata"]["name"] == "podgroup-u1"

    mine = workload("Job")
    world = FakeWorld(mine, pod("a", {**mine, "kind": "Workflow"}))
    it = EVERY["group-of-pod"]
    assert_touches_only_its_own(it, world, "default", "a", now=NOW, may_touch=made_for_the_owner)
    assert_converges(it, world, "default", "a", now=NOW)


def test_a_group_that_is_refused_is_told_of_on_the_workload() -> None:
    created = [
        c
        for c in decide(
            BY_NAME["group-of-replicaset"], FakeWorld(workload(notes={MIN: "2"})), "default", "web", now=NOW
        )
        if isinstance(c, Create)
    ]
    assert [command.is_announced for command in created] == [True]
    assert not any(isinstance(c, Event) for c in created)


def test_groups_for_every_pod_need_no_kind_that_groups_for_gangs_do_not() -> None:
    """The rights of the controllers are derived from the latter."""

    def written(those: tuple[Reconciler, ...]) -> set[tuple[type, type]]:
        return {(one.kind, kind) for one in those for kind in (one.kind, *one.owns)}

    def read(those: tuple[Reconciler, ...]) -> set[type]:
        return {kind for one in those for kind in (one.kind, *one.owns, *one.reads, *one.wakes, *one.finds)}

    assert written(reconcilers(every_pod=True)) == written(RECONCILERS)
    assert read(reconcilers(every_pod=True)) == read(RECONCILERS)
