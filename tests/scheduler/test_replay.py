"""What the live scheduler decides is decided again from its snapshot, to the byte."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.dialects.kubernetes import node_spec, task_spec
from hekla.dialects.surroundings import EmptySurroundings
from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.scheduler.answers import NothingToExplainError, snapshot_document
from hekla.scheduler.as_scenario import UnknownJobError, scenario_text
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.configuration import DEFAULT_TEXT, parse_configuration
from hekla.scheduler.decisions import difference, summary
from hekla.scheduler.engine_state import UnknownStateError, saved
from hekla.scheduler.pseudonyms import anonymous
from hekla.scheduler.replay import Replay
from hekla.scheduler.snapshot import (
    Snapshot,
    SnapshotError,
    documents_of,
    from_documents,
    packed,
    typed,
    unpacked,
)
from hekla.scheduler.trimming import trimmed
from hekla.testing.scenarios import expectations, run_scenario
from scheduler.schedulerkit import add_group, add_pod, until, world

SCHEDULING = "scheduling.volcano.sh/v1beta1"


def node(name: str, gpus: int = 8) -> Document:
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(name: str, gpus: int, group: str = "", **spec: Any) -> Document:
    annotations = {"scheduling.k8s.io/group-name": group} if group else {}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    containers = [{"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}]
    spec = {"schedulerName": "volcano", "containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def group(name: str, minimum: int, **spec: Any) -> Document:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"minMember": minimum, **spec}
    return {
        "apiVersion": SCHEDULING,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Inqueue"},
    }


def queue(name: str = "default", **spec: Any) -> Document:
    return {"apiVersion": SCHEDULING, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def snapshot(*documents: Document, **fields: Any) -> Snapshot:
    return Snapshot(**{"objects": tuple(typed(one) for one in documents), "configuration": DEFAULT_TEXT, **fields})


def small() -> Snapshot:
    """A gang that fits and one that does not."""
    pods = [pod(f"a-{number}", 4, "a") for number in range(2)] + [pod(f"b-{number}", 8, "b") for number in range(2)]
    return snapshot(queue(), node("n1"), node("n2"), group("a", 2), group("b", 2), *pods)


async def _knows(scheduler: BatchScheduler, pods: int) -> bool:
    return len(scheduler.feed.pods) == pods


async def _follows(scheduler: BatchScheduler) -> bool:
    return scheduler.is_following


def test_the_live_cycle_is_replayed_to_the_byte_with_what_is_under_way() -> None:
    first, second = asyncio.run(two_cycles())
    for taken in (first, second):
        again = unpacked(packed(taken))
        assert taken.decisions is not None
        assert Replay(again).cycle().encoded() == taken.decisions.encoded()
        assert again.decisions == taken.decisions
    assert first.decisions is not None
    assert second.decisions is not None
    assert [one.pod for one in first.decisions.started][:3] == ["default/train-0", "default/train-1", "default/train-2"]
    assert [one.job for one in first.decisions.waiting] == ["default/large"]
    assert second.decisions.is_quiet
    assert len(second.state["assumed"]) == 4
    assert second.state["phases"]


async def two_cycles() -> tuple[Snapshot, Snapshot]:
    """One that binds, and one right after it, while the binds are under way."""
    async with world(nodes=3) as (client, scheduler):
        await until(lambda: _follows(scheduler))
        await scheduler.idle()
        scheduler.settings = replace(scheduler.settings, window_s=3600.0)  # from now on it decides when it is asked
        await add_pod(client, "wakes-it")
        await until(lambda: _knows(scheduler, 1))
        await add_group(client, "train", 2)
        for number in range(3):
            await add_pod(client, f"train-{number}", gpus=8, group="train")
        await add_group(client, "large", 2)
        for number in range(2):
            await add_pod(client, f"large-{number}", gpus=9, group="large")
        await until(lambda: _knows(scheduler, 6))
        return scheduler.recorded_cycle(), scheduler.recorded_cycle()


def test_the_document_of_the_endpoint_is_the_file() -> None:
    asyncio.run(ask_the_endpoint())


async def ask_the_endpoint() -> None:
    async with world(nodes=1) as (_, scheduler):
        with pytest.raises(NothingToExplainError, match="has not read all objects yet"):
            snapshot_document(scheduler, "volcano")
        await until(lambda: _follows(scheduler))
        found = snapshot_document(scheduler, "volcano")
        with pytest.raises(NothingToExplainError, match='no scheduler "other" here'):
            snapshot_document(scheduler, "other")
    taken = from_documents([found["head"], *found["objects"]])
    assert [one.metadata.name for one in taken.of_kind(Node)] == ["n0"]
    assert taken.decisions is not None


def test_what_is_left_out_decides_nothing() -> None:
    whole: Document = {
        **pod("p-1", 1, "g"),
        "metadata": {
            "name": "p-1", "namespace": "ns", "uid": "u", "labels": {"app": "a"}, "finalizers": ["x"],
            "annotations": {"volcano.sh/task-spec": "worker", "volcano.sh/preemptable": "false", "acme.com/secret": "s"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "secret", "uid": "o", "controller": True}],
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "nodeName": "n1", "schedulerName": "volcano", "hostNetwork": True, "terminationGracePeriodSeconds": 5,
            "nodeSelector": {"zone": "x"}, "tolerations": [{"operator": "Exists"}], "serviceAccountName": "secret",
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {}}
            ]}},
            "initContainers": [{"image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{
                "name": "main", "image": "acme/x", "command": ["secret"], "args": ["secret"], "ports": [{"containerPort": 80}],
                "env": [{"name": "TOKEN", "value": "secret"}], "resources": {"limits": {"cpu": "2"}},
            }],
            "volumes": [{"name": "v", "secret": {"secretName": "secret"}}],
            "overhead": {"cpu": "1"}, "priority": 5, "preemptionPolicy": "Never",
        },
        "status": {
            "phase": "Running", "startTime": "2026-01-01T00:00:03Z", "podIP": "10.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"},
                {"type": "Ready", "status": "True", "message": "secret"},
            ],
        },
    }  # fmt: skip
    obj = typed(whole)
    assert isinstance(obj, Pod)
    kept = trimmed(obj)
    assert "secret" not in msgspec.json.encode(kept).decode()
    again = typed(kept)
    assert isinstance(again, Pod)
    assert task_spec(again, EmptySurroundings()) == task_spec(obj, EmptySurroundings())


def test_images_that_no_pod_names_are_left_out() -> None:
    whole = node("n1")
    whole["status"]["images"] = [{"names": ["a", "b"], "sizeBytes": 5}, {"names": ["c"], "sizeBytes": 7}]
    whole["status"]["conditions"] = [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "True"}]
    obj = typed(whole)
    kept = trimmed(obj, frozenset({"b"}))
    assert kept["status"]["images"] == [{"names": ["a", "b"], "sizeBytes": 5}]
    assert kept["status"]["conditions"] == [{"type": "Ready", "status": "False"}]
    every = typed(trimmed(obj))
    assert isinstance(obj, Node)
    assert isinstance(every, Node)
    assert node_spec(every) == node_spec(obj)


def test_another_configuration_shows_who_starts_and_who_waits_instead() -> None:
    taken = small()
    other = parse_configuration('actions: "allocate"\ntiers:\n- plugins:\n  - name: predicates\n')
    before, after = Replay(taken).cycle(), Replay(taken, other).cycle()
    assert summary(before) == "0 let in, 2 started, 1 job waits"
    told = [one.sentence() for one in difference(before, after)]
    assert "default/b-0: starts on n2; was: nothing" in told
    assert difference(before, before) == []


def test_what_was_decided_comes_true_before_the_next_cycle() -> None:
    first, second = Replay(small()).cycles(5)
    assert [one.pod for one in first.started] == ["default/a-0", "default/a-1"]
    assert second.is_quiet
    assert [one.job for one in second.waiting] == ["default/b"]


def test_a_promise_and_an_eviction_under_way_are_remembered() -> None:
    runs = {**pod("old-0", 8, nodeName="n1"), "status": {"phase": "Running"}}
    taken = snapshot(queue(), node("n1"), runs, pod("new-0", 8), now=100.0)
    leaving = {"version": 1, "leaving": [{"uid": "uid-old-0", "evictedAt": 90.0, "since": 95.0}],
               "assumed": [{"uid": "uid-new-0", "node": "n1", "promisedAt": 90.0}]}  # fmt: skip
    replay = Replay(replace(taken, state=leaving))
    task = replay.cluster.tasks["uid-new-0"]
    assert (task.is_claim, replay.cluster.nodes.name(task.row)) == (True, "n1")
    assert replay.cycle().is_quiet
    assert replay.feed.cluster.tasks["uid-old-0"].evicted_at == 90.0


@pytest.mark.parametrize("by_us", [{}, {"evictedAt": 10.0}])
def test_who_was_given_up_on_is_not_counted_on_in_a_replay(by_us: Document) -> None:
    """It had been, for another grace period, so that a replay promised room where the live cycle did not."""
    stays = pod("old-0", 8, nodeName="n1")
    stays["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stays["status"] = {"phase": "Running"}
    state = {"version": 1, "leaving": [{"uid": "uid-old-0", **by_us, "isOverdue": True}]}
    replay = Replay(snapshot(queue(), node("n1"), stays, pod("new-0", 8), now=500.0, state=state))
    replay.cycle()
    task = replay.cluster.tasks["uid-old-0"]
    assert (task.is_overdue, task.is_leaving) == (True, False)
    assert not any(one.is_claim for one in replay.cluster.tasks.values())
    assert saved(replay.feed)["leaving"] == state["leaving"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: b"not gzip", "not compressed with gzip"),
        (lambda content: content[:-9], "the end of the file is missing"),
        (lambda content: packed(snapshot(queue()))[:0], "the end of the file is missing"),
    ],
    ids=["other", "cut", "empty"],
)
def test_what_is_no_snapshot_is_refused_with_a_sentence(change: Any, sentence: str) -> None:
    with pytest.raises(SnapshotError, match=sentence):
        unpacked(change(packed(small())))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "of version 2 and this hekla reads versions up to 1"),
        ({"version": "x"}, "of version x"),
        ({"format": "other"}, "it is no snapshot"),
        ({"objects": 99}, "it should have 99 objects and has 9"),
        ({"seed": "x", "configuration": None}, None),
    ],
    ids=str,
)
def test_a_head_that_cannot_be_right_is_refused_with_a_sentence(change: Document, sentence: str | None) -> None:
    head, *objects = documents_of(small())
    if sentence is None:
        with pytest.raises(SnapshotError, match="first line cannot be read"):
            from_documents([{key: value for key, value in head.items() if key not in change}, *objects])
        return
    with pytest.raises(SnapshotError, match=sentence):
        from_documents([{**head, **change}, *objects])


def test_objects_that_cannot_be_right_are_refused_with_a_sentence() -> None:
    head, *objects = documents_of(small())
    with pytest.raises(SnapshotError, match="an object of kind 'Secret'"):
        from_documents([head, {"apiVersion": "v1", "kind": "Secret"}, *objects])
    with pytest.raises(SnapshotError, match='Pod "x" in it cannot be read'):
        from_documents([head, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": 5}])


@pytest.mark.parametrize(
    ("state", "sentence"),
    [({"version": 2}, "of version 2"), ({"version": 1, "dreams": []}, 'a section "dreams"')],
    ids=str,
)
def test_state_of_a_newer_engine_is_refused_with_a_sentence(state: Document, sentence: str) -> None:
    with pytest.raises(UnknownStateError, match=sentence):
        Replay(replace(small(), state=state))


KEY = b"a key that only we know"


def test_pseudonyms_hide_names_and_change_no_decision() -> None:
    taken = replace(small(), decisions=Replay(small()).cycle())
    hidden = anonymous(taken, KEY)
    content = b"".join(msgspec.json.encode(one) for one in documents_of(hidden)).decode()
    for name in ("n1", "n2", '"a"', '"b"', "a-0", "b-1", "uid-a", '"default/'):
        assert name not in content.replace('"defaultQueue":"default"', "")
    assert hidden.is_anonymous
    assert hidden.decisions is not None
    assert taken.decisions is not None
    assert len(hidden.decisions.started) == len(taken.decisions.started) == 2
    assert Replay(unpacked(packed(hidden))).cycle().encoded() == hidden.decisions.encoded()
    assert anonymous(taken, KEY) == hidden, "the same key gives the same pseudonyms"
    assert anonymous(taken, b"another") != hidden


def test_a_story_leaves_out_what_makes_no_difference_and_passes_as_a_test() -> None:
    runs = [{**pod(f"old-{number}", 8, nodeName=f"x{number}"), "status": {"phase": "Running"}} for number in range(3)]
    others = [node(f"x{number}") for number in range(3)]
    taken = replace(small(), objects=(*small().objects, *(typed(one) for one in (*runs, *others))))
    text = scenario_text(taken, ["default/a"], source="monday.hekla")
    document = yaml.safe_load(text)
    assert text.startswith("# What was decided in monday.hekla, ")
    assert set(document["jobs"]) == {"a"}
    assert len(document["nodes"]) == 1
    (outcome,) = run_scenario(document)
    (expected,) = expectations(document)
    assert expected["expect"] == {"a-0": "n1", "a-1": "n1"}
    assert {key: outcome[key] for key in expected} == expected


def test_a_story_about_a_job_that_is_not_there_names_one_that_is() -> None:
    with pytest.raises(UnknownJobError, match='job "default/aa" is not in the snapshot; there is "default/a"'):
        scenario_text(small(), ["default/aa"])


def test_a_story_is_about_a_volcano_job_by_the_name_that_its_user_gave() -> None:
    uid = "-022c1e84-9fe5-4f64-a35e-fa3e7d0b2bec"
    objects = [msgspec.json.encode(one).replace(b'"b"', b'"b%s"' % uid.encode()) for one in small().objects]
    read = [msgspec.json.decode(text, type=type(one)) for text, one in zip(objects, small().objects, strict=True)]
    document = yaml.safe_load(scenario_text(replace(small(), objects=tuple(read)), ["default/b"]))
    assert set(document["jobs"]) >= {f"b{uid}"}


def test_a_story_of_everything_tells_why_others_wait() -> None:
    document = yaml.safe_load(scenario_text(small()))
    (outcome,) = run_scenario(document)
    assert outcome["why"] == document["why"] == {"b": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    assert outcome["expect"] == document["expect"]


GOLDEN = Path(__file__).parent / "snapshots" / "a-busy-hour.hekla"
"""150 nodes in racks and 60 gangs in three queues, thrown by dice; what was decided was recorded by another process.

Where a change of decisions is meant, `packed(replace(taken, decisions=Replay(taken).cycle()))` is the new file.
"""


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
def test_a_file_of_another_process_is_decided_alike_by_both_forms_of_the_kernels(is_compiled: bool) -> None:
    if is_compiled and not kernels.use_compiled():
        pytest.skip("there is no numba here")
    try:
        taken = unpacked(GOLDEN.read_bytes())
        assert taken.decisions is not None
        found = Replay(taken).cycle()
        assert [one.sentence() for one in difference(taken.decisions, found)] == []
        assert found.encoded() == taken.decisions.encoded()
        assert len(found.started) > 50
        assert found.waiting
    finally:
        kernels.use(twin)


def test_room_that_is_kept_for_a_job_is_remembered_also_under_a_pseudonym() -> None:
    estimate = {"annotations": {"hekla.dev/running-estimate": "10m"}}
    old = group("old", 1)
    old["metadata"] |= estimate
    runs = {**pod("old-0", 8, "old", nodeName="n1"), "status": {"phase": "Running"}}
    big = group("big", 1, minResources={"nvidia.com/gpu": "8"})
    big["status"]["phase"] = "Pending"
    text = DEFAULT_TEXT.replace("- name: gang", "- name: gang\n  - name: reservation")
    late = [pod("late-0", 4)]
    taken = snapshot(
        queue(), node("n1"), old, runs, big, pod("big-0", 8, "big"), *late, configuration=text, now=9.0, wall_s=9.0
    )
    replay = Replay(taken)
    first = replay.cycle()
    assert first.admitted == ["default/big"]
    state = saved(replay.feed)
    assert state["letIn"] == ["uid-big"]
    (kept,) = state["reservations"]
    assert (kept["uid"], kept["startAt"], [room["node"] for room in kept["rooms"]]) == ("uid-big", 609.0, ["n1"])
    again = Replay(replace(taken, state=state))
    assert again.cluster.reservations == replay.cluster.reservations
    hidden = anonymous(replace(taken, state=state), KEY)
    assert "uid-big" not in str(hidden.state)
    assert len(Replay(hidden).cluster.reservations) == 1
