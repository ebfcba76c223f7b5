from datetime import timedelta

import pytest

from hekla.api.pods import Pod
from hekla.controlplane.job import reconcile_job, reconcile_job_orphan
from hekla.controlplane.job_count import FINALIZER
from hekla.controlplane.job_indexes import INDEX, MOST_INDEXES, format_indexes, parse_indexes
from hekla.controlplane.job_pods import MAX_BURST
from hekla.controlplane.views import Job
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own
from hekla.testing.world import FakeWorld


def job(parallelism=1, completions=1, restart="Never", **spec):
    template = {
        "metadata": {"labels": {"job-name": "train"}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "x"}]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "uid": "job"},
        "spec": {
            "parallelism": parallelism,
            "completions": completions,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": template,
            **spec,
        },
    }


class Cluster:
    def __init__(self, now, **spec):
        self.world = FakeWorld(job(**spec))
        self.now = now

    def step(self):
        one = self.world.get(Job, "default", "train")
        if one is not None:
            self.world.execute(list(reconcile_job.decide(one, self.world, self.now)))

    def settle(self):
        for _ in range(30):
            before = self.world.documents()
            self.step()
            if before == self.world.documents():
                return
        raise AssertionError("it never settles")

    def end(self, pod, phase, exit_code=0, at="2026-01-01T00:00:30Z"):
        terminated = {"exitCode": exit_code, "finishedAt": at}
        self.world.change(
            Pod, "default", pod.metadata.name,
            {"status": {"phase": phase, "containerStatuses": [{"name": "c", "state": {"terminated": terminated}}]}},
        )  # fmt: skip
        self.settle()

    @property
    def active(self):
        return [pod for pod in self.pods if pod.status.phase not in ("Succeeded", "Failed")]

    @property
    def pods(self):
        return self.world.list(Pod)

    @property
    def status(self):
        return self.world.get(Job, "default", "train").status

    @property
    def conditions(self):
        return {one.type: one.reason for one in self.status.conditions if one.status == "True"}


def test_a_job_is_complete_when_enough_pods_have_succeeded(now):
    cluster = Cluster(now, parallelism=2, completions=3)
    cluster.settle()
    assert len(cluster.active) == 2
    assert cluster.status.active == 2
    while cluster.active:
        cluster.end(cluster.active[0], "Succeeded")
    assert cluster.status.succeeded == 3
    assert cluster.conditions == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    assert cluster.status.completion_time
    assert not any(pod.metadata.finalizers for pod in cluster.pods)


def test_a_pod_is_counted_once_whatever_fails_in_between(now):
    for failing in range(6):
        cluster = Cluster(now, parallelism=1, completions=2)
        cluster.settle()
        pod = cluster.active[0]
        cluster.world.change(Pod, "default", pod.metadata.name, {"status": {"phase": "Succeeded"}})
        for _ in range(3):
            commands = list(reconcile_job.decide(cluster.world.get(Job, "default", "train"), cluster.world, now))
            cluster.world.execute(commands[:failing])
        cluster.settle()
        assert cluster.status.succeeded == 1


def test_too_many_failures_fail_the_job_and_remove_what_is_left(now):
    cluster = Cluster(now, parallelism=2, completions=2, backoffLimit=0)
    cluster.settle()
    first, second = cluster.active
    cluster.end(first, "Failed", 3)
    assert cluster.conditions == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
    assert cluster.world.get(Pod, "default", second.metadata.name) is None
    assert cluster.status.failed == 2


def test_the_next_try_waits_longer_after_each_failure(now):
    cluster = Cluster(now)
    cluster.settle()
    ends = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.end(cluster.active[0], "Failed", 1, at=ends)
    assert cluster.active == []
    assert 10 <= cluster.world.requeues[-1] <= 11
    cluster.now = now + timedelta(seconds=11)
    cluster.settle()
    assert len(cluster.active) == 1
    again = cluster.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.end(cluster.active[0], "Failed", 1, at=again)
    assert 20 <= cluster.world.requeues[-1] <= 21


def test_indexed_pods_work_on_one_index_each(now):
    cluster = Cluster(now, parallelism=2, completions=4, completionMode="Indexed")
    cluster.settle()
    assert sorted(pod.metadata.annotations[INDEX] for pod in cluster.active) == ["0", "1"]
    assert cluster.active[0].spec.hostname == "train-0"
    env = cluster.active[0].spec.containers[0].env
    assert [one.name for one in env] == ["JOB_COMPLETION_INDEX"]
    by_index = {pod.metadata.annotations[INDEX]: pod for pod in cluster.active}
    cluster.end(by_index["1"], "Succeeded")
    assert cluster.status.completed_indexes == "1"
    assert sorted(pod.metadata.annotations[INDEX] for pod in cluster.active) == ["0", "2"]
    while cluster.active:
        cluster.end(cluster.active[0], "Succeeded")
    assert cluster.status.completed_indexes == "0-3"
    assert "Complete" in cluster.conditions


def test_a_suspended_job_has_no_pods_and_counts_no_failures(now):
    cluster = Cluster(now, parallelism=2, completions=2)
    cluster.settle()
    cluster.world.change(Job, "default", "train", {"spec": {"suspend": True}})
    cluster.settle()
    assert cluster.pods == []
    assert cluster.conditions == {"Suspended": "JobSuspended"}
    assert cluster.status.start_time is None
    assert cluster.status.failed == 0
    cluster.world.change(Job, "default", "train", {"spec": {"suspend": False}})
    cluster.settle()
    assert len(cluster.active) == 2
    assert cluster.status.start_time


def test_fewer_parallel_pods_are_removed_without_counting_as_failed(now):
    cluster = Cluster(now, parallelism=3, completions=5)
    cluster.settle()
    cluster.world.change(Job, "default", "train", {"spec": {"parallelism": 1}})
    cluster.settle()
    assert len(cluster.pods) == 1
    assert cluster.status.failed == 0


def test_a_deadline_ends_the_job(now):
    cluster = Cluster(now, activeDeadlineSeconds=60)
    cluster.settle()
    cluster.now = now + timedelta(seconds=61)
    cluster.settle()
    assert cluster.conditions["Failed"] == "DeadlineExceeded"
    assert cluster.pods == []


def rule(action, *codes):
    return {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}]}


def test_a_failure_policy_can_end_the_job_at_once(now):
    cluster = Cluster(now, podFailurePolicy=rule("FailJob", 42), podReplacementPolicy="Failed")
    cluster.settle()
    name = cluster.active[0].metadata.name
    cluster.end(cluster.active[0], "Failed", 42)
    assert cluster.conditions["Failed"] == "PodFailurePolicy"
    message = next(one.message for one in cluster.status.conditions if one.type == "Failed")
    assert message == f"Container c for pod default/{name} failed with exit code 42 matching FailJob rule at index 0"


def test_a_failure_policy_can_ignore_a_failure(now):
    cluster = Cluster(now, backoffLimit=0, podFailurePolicy=rule("Ignore", 42), podReplacementPolicy="Failed")
    cluster.settle()
    cluster.end(cluster.active[0], "Failed", 42)
    assert cluster.status.failed == 0
    assert "Failed" not in cluster.conditions
    assert len(cluster.active) == 1


def test_an_index_fails_alone_when_it_has_a_limit_of_its_own(now):
    cluster = Cluster(
        now, parallelism=2, completions=2, completionMode="Indexed", backoffLimitPerIndex=0, backoffLimit=2**31 - 1
    )
    cluster.settle()
    first, second = sorted(cluster.active, key=lambda pod: pod.metadata.annotations[INDEX])
    cluster.end(first, "Failed", 1)
    assert cluster.status.failed_indexes == "0"
    assert "Failed" not in cluster.conditions
    cluster.end(second, "Succeeded")
    assert cluster.conditions["Failed"] == "FailedIndexes"


def test_a_finished_job_is_deleted_when_its_time_is_up(now):
    cluster = Cluster(now, ttlSecondsAfterFinished=100)
    cluster.settle()
    cluster.end(cluster.active[0], "Succeeded")
    assert 99 <= cluster.world.requeues[-1] <= 101
    cluster.now = now + timedelta(seconds=101)
    cluster.step()
    assert cluster.world.get(Job, "default", "train") is None


def test_a_job_of_another_controller_is_left_alone(now):
    cluster = Cluster(now, managedBy="kueue.x-k8s.io/multikueue")
    cluster.settle()
    assert cluster.pods == []


def test_the_pod_of_a_vanished_job_is_let_go(now):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "job", "controller": True}
    metadata = {"name": "p", "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world = FakeWorld(job(), {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": [owner]}})
    pod = world.get(Pod, "default", "p")
    world.execute(list(reconcile_job_orphan.decide(pod, world, now)))
    assert world.get(Pod, "default", "p") is None


@pytest.mark.parametrize(
    ("indexes", "text"), [([], ""), ([3], "3"), ([0, 1], "0,1"), ([0, 1, 2, 5, 7, 8, 9], "0-2,5,7-9")]
)
def test_indexes_are_written_as_ranges(indexes, text):
    assert format_indexes(indexes) == text
    assert parse_indexes(text) == set(indexes)


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
def test_the_properties_of_all_reconcilers_hold(now, mode):
    def world():
        return FakeWorld(job(3, 5, completionMode=mode))

    assert_converges(reconcile_job, world(), "default", "train", now=now)
    assert_heals(reconcile_job, world, "default", "train", now=now)
    assert_touches_only_its_own(reconcile_job, world(), "default", "train", now=now)


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
def test_two_billion_completions_are_begun_a_part_at_a_time(now, mode):
    many = 2_000_000_000
    cluster = Cluster(now, parallelism=many, completions=many, completionMode=mode)
    cluster.step()
    assert len(cluster.pods) == MAX_BURST


@pytest.mark.parametrize("text", ["0-2000000000", "0-1,5-2000000000"])
def test_a_success_policy_of_billions_of_indexes_is_weighed_without_listing_them(now, text):
    rules = [{"succeededIndexes": text, "succeededCount": 2}]
    cluster = Cluster(now, parallelism=2, completions=4, completionMode="Indexed", successPolicy={"rules": rules})
    cluster.settle()
    for pod in list(cluster.pods):
        cluster.end(pod, "Succeeded")
    conditions = cluster.world.get(Job, "default", "train").status.conditions
    assert "SuccessPolicy" in {one.reason for one in conditions}


@pytest.mark.parametrize("text", ["0-99999999999999999999999", "9" * 5000, "3-1", "a-b", "-", "1-"])
def test_runs_that_cannot_be_name_no_index(text):
    assert parse_indexes(text) == set()


def test_a_status_that_names_billions_of_indexes_is_read_up_to_a_bound():
    assert len(parse_indexes("0-2000000000")) == MOST_INDEXES
