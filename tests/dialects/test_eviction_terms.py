from typing import Any

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.api.scheduling import PriorityClass
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.eviction_terms import budget_of
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.kubernetes import task_spec
from hekla.dialects.surroundings import EmptySurroundings
from hekla.dialects.volcano import job_spec, lone_pod
from hekla.placement.cluster import Cluster
from hekla.placement.model import TaskSpec, TaskStatus

NOON = "2026-11-21T12:00:00Z"
NOON_S = 1795262400.0


def pod(*, status: Any = None, meta: Any = None, **spec: Any) -> Pod:
    metadata = {"name": "p", "namespace": "default", "uid": "p", **(meta or {})}
    whole = {"schedulerName": "volcano", "containers": [{"name": "c", "image": "i"}], **spec}
    return msgspec.convert({"metadata": metadata, "spec": whole, "status": status or {}}, Pod)


def spec_of(**facts: Any) -> TaskSpec:
    return task_spec(pod(**facts), EmptySurroundings())


def annotated(**annotations: str) -> TaskSpec:
    return spec_of(meta={"annotations": {KEYS[name]: value for name, value in annotations.items()}})


KEYS = {
    "preemptable": "volcano.sh/preemptable", "cooldown": "volcano.sh/cooldown-time",
    "minimum": "hekla.dev/minimum-run-time", "checkpoint": "hekla.dev/checkpointed-at",
}  # fmt: skip


def test_a_pod_that_says_nothing_may_be_evicted_at_any_time_and_preempts() -> None:
    spec = spec_of()
    assert spec.is_preemptable
    assert not spec.preemption_never
    assert (spec.cooldown_s, spec.min_run_s, spec.grace_s) == (None, 0.0, 30.0)
    assert (spec.nominated, spec.scheduled_at, spec.started, spec.checkpointed) == ("", None, None, None)


@pytest.mark.parametrize(
    ("said", "may_go"), [("true", True), ("1", True), ("false", False), ("F", False), ("si", False)]
)
def test_preemptable_is_read_as_go_reads_truth_values(said: str, may_go: bool) -> None:
    assert annotated(preemptable=said).is_preemptable is may_go
    labels = {"volcano.sh/preemptable": said}
    assert spec_of(meta={"labels": labels}).is_preemptable is may_go
    against = {"volcano.sh/preemptable": "false" if may_go else "true"}
    assert spec_of(meta={"labels": labels, "annotations": against}).is_preemptable is not may_go
    group = msgspec.convert({"metadata": {"name": "g", "uid": "g", "annotations": labels}}, PodGroup)
    assert job_spec(group, EmptySurroundings()).is_preemptable is may_go


def test_a_group_that_says_nothing_says_neither_yes_nor_no() -> None:
    group = msgspec.convert({"metadata": {"name": "g", "uid": "g"}}, PodGroup)
    assert job_spec(group, EmptySurroundings()).is_preemptable is None


def test_durations_are_gos_and_one_that_is_none_counts_as_none() -> None:
    spec = annotated(cooldown="1h30m", minimum="90s")
    assert (spec.cooldown_s, spec.min_run_s) == (5400.0, 90.0)
    spec = annotated(cooldown="a while", minimum="5 minutes")
    assert (spec.cooldown_s, spec.min_run_s) == (None, 0.0)
    spec = annotated(cooldown="-5m", minimum="-5m")
    assert (spec.cooldown_s, spec.min_run_s) == (0.0, 0.0)
    assert spec_of(meta={"labels": {"volcano.sh/cooldown-time": "10s"}}).cooldown_s == 10.0


def test_what_would_be_lost_counts_from_the_last_checkpoint() -> None:
    status = {"phase": "Running", "startTime": NOON}
    meta = {"annotations": {"hekla.dev/checkpointed-at": "2026-11-21T12:30:00Z"}}
    assert spec_of(status=status, nodeName="n1").lost_work_s(NOON_S + 3600) == 3600
    assert spec_of(status=status, nodeName="n1", meta=meta).lost_work_s(NOON_S + 3600) == 1800
    assert annotated(checkpoint="yesterday").checkpointed is None


def test_times_are_read_from_the_status_of_a_pod_that_has_a_node() -> None:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": NOON}]
    spec = spec_of(status={"phase": "Running", "startTime": NOON, "conditions": conditions}, nodeName="n1")
    assert (spec.scheduled_at, spec.started) == (NOON_S, NOON_S)
    waiting = [{"type": "PodScheduled", "status": "False", "lastTransitionTime": NOON}]
    spec = spec_of(status={"phase": "Pending", "nominatedNodeName": "n2", "conditions": waiting})
    assert (spec.scheduled_at, spec.started, spec.nominated) == (None, None, "n2")


def test_the_pod_decides_whether_it_preempts_and_else_its_priority_class() -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    never = {"metadata": {"name": "polite"}, "value": 5, "preemptionPolicy": "Never"}
    feed.on_priority_class(None, msgspec.convert(never, PriorityClass))
    assert task_spec(pod(preemptionPolicy="Never"), feed).preemption_never
    assert task_spec(pod(priorityClassName="polite"), feed).preemption_never
    assert not task_spec(
        pod(priorityClassName="polite", preemptionPolicy="PreemptLowerPriority"), feed
    ).preemption_never
    assert not task_spec(pod(), feed).preemption_never
    feed.on_priority_class(None, msgspec.convert({**never, "globalDefault": True}, PriorityClass))
    assert task_spec(pod(), feed).preemption_never


def test_a_grace_period_of_nothing_is_nothing() -> None:
    assert spec_of(terminationGracePeriodSeconds=0).grace_s == 0.0


def test_a_lone_pod_is_known_by_its_controller() -> None:
    owners = [
        {"kind": "X", "name": "x", "uid": "u1", "apiVersion": "v1"},
        {"kind": "R", "name": "r", "uid": "u2", "apiVersion": "v1", "controller": True},
    ]
    assert lone_pod(pod(meta={"ownerReferences": owners})).lineage == "u2"
    assert lone_pod(pod()).lineage == ""


def test_a_change_of_status_alone_reaches_the_task() -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    fresh = pod()
    feed.on_pod(None, fresh)
    nominated = pod(status={"nominatedNodeName": "n1"})
    feed.on_pod(fresh, nominated)
    assert feed.cluster.tasks["p"].spec.nominated == "n1"
    feed.on_pod(nominated, fresh)
    assert feed.cluster.tasks["p"].spec.nominated == ""
    running = pod(status={"phase": "Running", "startTime": NOON}, nodeName="n1")
    feed.on_pod(fresh, running)
    task = feed.cluster.tasks["p"]
    assert (task.spec.started, task.status) == (NOON_S, TaskStatus.RUNNING)


def budget(**facts: Any) -> PodDisruptionBudget:
    meta = {"name": "b", "namespace": "default", "generation": 2, "resourceVersion": "7"}
    status = {"disruptionsAllowed": 1, "observedGeneration": 2, **facts.pop("status", {})}
    spec = {"selector": {"matchLabels": {"app": "x"}}, **facts}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, PodDisruptionBudget)


def test_a_budget_is_about_the_pods_that_it_selects_in_its_namespace() -> None:
    told = budget_of(budget())
    assert (told.allowed, told.revision) == (1, "7")
    assert told.selector.matches("default", {"app": "x"})
    assert not told.selector.matches("default", {"app": "y"})
    assert not told.selector.matches("other", {"app": "x"})
    assert budget_of(budget(selector={})).selector.matches("default", {})
    assert not budget_of(budget(selector=None)).selector.matches("default", {"app": "x"})
    odd = {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]}
    assert not budget_of(budget(selector=odd)).selector.matches("default", {"app": "x"})


def test_a_budget_of_which_the_controller_has_not_spoken_yet_allows_nothing() -> None:
    assert budget_of(budget(status={"observedGeneration": 1})).allowed == 0
    assert budget_of(budget(status={"disruptionsAllowed": -3})).allowed == 0


def test_a_budget_comes_and_goes() -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    feed.on_budget(None, budget())
    assert set(feed.cluster.budgets["default"]) == {"b"}
    feed.on_budget(budget(), None)
    assert not feed.cluster.budgets
