"""A cluster kept by events is the cluster that would be read anew: whatever came, changed and went, in any order."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano import scheduling
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.feed import ClusterFeed
from hekla.placement.cluster import Cluster
from hekla.placement.policy import Policy
from hekla.placement.registry import action_named, build_plugin
from hekla.placement.session import Session
from hekla.testing.cluster import check

NODES, PODS, GROUPS = ("n1", "n2", "n3"), tuple(f"p{number}" for number in range(6)), ("g1", "g2")


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    name = draw(st.sampled_from(NODES))
    taints = draw(st.sampled_from([[], [{"key": "a", "effect": "NoSchedule"}]]))
    labels = {"kubernetes.io/hostname": name, "zone": draw(st.sampled_from(["x", "y"]))}
    allocatable = {"cpu": str(draw(st.integers(1, 8))), "pods": "10"}
    document = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": allocatable},
    }
    return msgspec.convert(document, Node)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    name = draw(st.sampled_from(PODS))
    group = draw(st.sampled_from(["", "", *GROUPS]))
    on = draw(st.sampled_from(["", "", *NODES]))
    phase = draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])) if on else "Pending"
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    apart: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    document = {
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "labels": {"app": draw(st.sampled_from(["a", "b"]))},
            "annotations": {"scheduling.k8s.io/group-name": group} if group else {},
        },
        "spec": {
            "nodeName": on, "schedulerName": draw(st.sampled_from(["volcano", "volcano", "other"])),
            "affinity": draw(st.sampled_from([None, None, apart])),
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(draw(st.integers(0, 3)))}}}],
        },
        "status": {"phase": phase},
    }  # fmt: skip
    return msgspec.convert(document, Pod)


@st.composite
def groups(draw: st.DrawFn) -> PodGroup:
    name = draw(st.sampled_from(GROUPS))
    spec = {"minMember": draw(st.integers(1, 3)), "queue": draw(st.sampled_from(["default", "team"]))}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}, PodGroup)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Puts and removals, and cycles whose decisions come true or do not."""
    step = st.one_of(
        st.tuples(st.just("put"), st.one_of(nodes(), pods(), groups())),
        st.tuples(st.just("remove"), st.one_of(nodes(), pods(), groups())),
        st.tuples(st.just("cycle"), st.sampled_from(["bound", "refused"])),
    )
    return draw(st.lists(step, max_size=30))


class Story:
    """The objects of an API server, and a cluster that follows them."""

    def __init__(self) -> None:
        self.feed = new_feed()
        self.objects: dict[tuple[type[Resource], str], Any] = {}
        self.policy = Policy(self.feed.cluster, [[build_plugin("gang"), build_plugin("predicates")]])

    def put(self, obj: Any) -> None:
        key = (type(obj), obj.metadata.name)
        tell(self.feed, self.objects.get(key), obj)
        self.objects[key] = obj

    def remove(self, obj: Any) -> None:
        old = self.objects.pop((type(obj), obj.metadata.name), None)
        if old is not None:
            tell(self.feed, old, None)

    def cycle(self, ending: str) -> None:
        binds = list(action_named("allocate")(Session(self.policy)))
        for bind in binds:
            if ending == "refused":
                self.feed.cluster.take_back(bind.task)
            else:
                pod = self.objects[Pod, bind.task.spec.name]
                self.put(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=bind.node)))


def new_feed() -> ClusterFeed:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    for name in ("default", "team"):
        feed.on_queue(None, msgspec.convert({"metadata": {"name": name}}, scheduling.Queue))
    return feed


def tell(feed: ClusterFeed, old: Any, new: Any) -> None:
    kind = type(new or old)
    {Node: feed.on_node, Pod: feed.on_pod, PodGroup: feed.on_pod_group}[kind](old, new)


def facts_of(feed: ClusterFeed) -> dict[str, Any]:
    cluster = feed.cluster
    columns = cluster.nodes
    return {
        "used": {
            name: {resource: int(columns.used[index, row]) for resource, index in columns.resources.items() if columns.used[index, row]}
            for name, row in columns.row_of.items()
        },
        "shares": {name: columns.share[:, row].tobytes() for name, row in columns.row_of.items()},
        "tasks": {uid: (task.status, columns.name(task.row) if task.row >= 0 else "") for uid, task in cluster.tasks.items()},
        "jobs": {uid: (tuple(job.statuses), job.ready_count, sorted(job.tasks)) for uid, job in cluster.jobs.items()},
        "held": {name: dict(+held) for name, held in cluster.held.items() if +held},
        "waiting": sorted(cluster.lines.for_nodes),
    }  # fmt: skip


def tallies_of(feed: ClusterFeed, questions: Sequence[Any]) -> list[int]:
    found = [feed.cluster.tallies.find(question) for question in questions]
    return [feed.cluster.tallies.total(tally) if tally is not None else 0 for tally in found]


@given(histories())
@settings(max_examples=150, deadline=None)
def test_a_cluster_kept_by_events_is_the_one_that_would_be_read_anew(history: list[tuple[str, Any]]) -> None:
    story = Story()
    for step, what in history:
        getattr(story, step)(what)
        check(story.feed.cluster)
    anew = new_feed()
    for obj in story.objects.values():
        tell(anew, None, obj)
    check(anew.cluster)
    assert facts_of(story.feed) == facts_of(anew)
    questions = list(anew.cluster.tallies._ids)
    assert tallies_of(story.feed, questions) == tallies_of(anew, questions)
    at_once = new_feed()
    for obj in story.objects.values():
        if not isinstance(obj, Pod):
            tell(at_once, None, obj)
    at_once.on_pods([obj for obj in story.objects.values() if isinstance(obj, Pod)])
    check(at_once.cluster)
    assert facts_of(at_once) == facts_of(anew)
    assert tallies_of(at_once, questions) == tallies_of(anew, questions)
