"""The whole life of a Volcano Job, with the real reconciler and everybody else played by the test."""

from typing import Any

import pytest

from hekla.api.core import ConfigMap, Pod, Service
from hekla.api.volcano import Job, PodGroup
from hekla.api.volcano.bus import Command as Order
from hekla.kube.commands import Create, Delete, Event, RequeueAfter, SetStatus
from hekla.testing.job_world import NAMESPACE, JobWorld, job, task
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own
from hekla.workloads.job import reconcile_job
from hekla.workloads.keys import KILLED_AT

RESTART_ON_FAILURE = [{"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"}]


def running(**spec: Any) -> JobWorld:
    return JobWorld(job(**spec)).admit().settle().run_all().settle()


def test_a_new_job_makes_its_gang_and_waits_for_the_scheduler() -> None:
    world = JobWorld(job(tasks={"master": 1, "worker": 3})).settle()
    assert world.phase == "Pending"
    assert world.pods == {}
    assert world.group is not None
    assert world.group.metadata.name == "train-uid-train"
    assert (world.group.spec.min_member, world.group.spec.min_task_member) == (4, {"master": 1, "worker": 3})
    assert world.group.spec.min_resources == {"cpu": "4", "memory": "4Gi"}


def test_an_admitted_gang_gets_all_its_pods_in_one_round() -> None:
    world = JobWorld(job(tasks={"worker": 3})).admit()
    created = [command for command in world.step() if isinstance(command, Create)]
    assert [command.document["metadata"]["name"] for command in created] == [f"train-worker-{i}" for i in range(3)]


def test_a_job_runs_when_its_gang_does_and_completes_when_all_its_pods_did() -> None:
    world = JobWorld(job(tasks={"worker": 2})).admit().settle()
    world.run("train-worker-0").settle()
    assert world.phase == "Pending"
    world.run("train-worker-1").settle()
    assert world.phase == "Running"
    assert world.job.status.task_status_count["worker"].phase == {"Running": 2}
    world.end("train-worker-0").end("train-worker-1").settle()
    assert world.phase == "Completed"
    assert [one.status for one in world.job.status.conditions] == ["Pending", "Running", "Completed"]
    assert world.group is None
    assert set(world.pods) == {"train-worker-0", "train-worker-1"}
    assert world.job.status.succeeded == 2


def test_a_failed_pod_restarts_the_job_as_its_policy_says() -> None:
    world = running(policies=RESTART_ON_FAILURE)
    world.end("train-worker-0", 137)
    world.step()
    assert world.phase == "Restarting"
    assert (world.job.status.retry_count, world.job.status.version) == (1, 1)
    world.settle()
    assert world.phase == "Pending"
    world.admit().settle().run_all().settle()
    assert world.phase == "Running"
    assert sorted(world.created) == sorted([f"train-worker-{i}" for i in range(2)] * 2)
    assert world.pods["train-worker-0"].metadata.annotations["volcano.sh/job-version"] == "1"


@pytest.mark.parametrize("leave", ["evict", "vanish"])
def test_a_pod_taken_by_somebody_else_is_an_eviction(leave: str) -> None:
    world = running(policies=[{"event": "PodEvicted", "action": "RestartJob"}])
    getattr(world, leave)("train-worker-1")
    world.step()
    assert world.phase == "Restarting"
    assert world.job.status.state.message == "PodEvicted of pod train-worker-1"


def test_pods_that_the_controller_deletes_are_no_evictions() -> None:
    world = running(policies=RESTART_ON_FAILURE)
    world.end("train-worker-0", 1).settle().admit().settle().run_all().settle()
    assert world.job.status.retry_count == 1


def test_without_a_policy_an_evicted_pod_is_made_again() -> None:
    world = running()
    world.evict("train-worker-1").settle()
    assert world.created.count("train-worker-1") == 2
    assert world.job.status.retry_count == 0


def test_restarts_end_when_the_retries_are_spent_and_the_last_pods_keep_their_logs() -> None:
    world = running(policies=RESTART_ON_FAILURE, maxRetry=2)
    world.end("train-worker-0", 1).settle().admit().settle().run_all().settle()
    assert world.phase == "Running"
    world.end("train-worker-0", 1).settle()
    assert world.phase == "Failed"
    assert world.job.status.state.message == "restarted 2 times; maxRetry is 2"
    assert set(world.pods) == {"train-worker-0"}


def test_a_failed_job_without_a_policy_fails_when_all_pods_ended() -> None:
    world = running()
    world.end("train-worker-0", 1).settle()
    assert world.phase == "Running"
    world.end("train-worker-1").settle()
    assert world.phase == "Failed"
    assert world.job.status.state.message == "task 'worker' has 1 succeeded pods; its minAvailable is 2"


def test_enough_successes_complete_a_job_and_the_rest_is_removed() -> None:
    world = running(tasks={"worker": 3}, minSuccess=1)
    world.end("train-worker-2").settle()
    assert world.phase == "Completed"
    assert set(world.pods) == {"train-worker-2"}


def test_a_completed_task_completes_the_job_when_its_policy_says_so() -> None:
    policy = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    world = running(task_list=[task("master", 1, policies=policy), task("ps", 2)])
    world.end("train-master-0").settle()
    assert world.phase == "Completed"
    assert set(world.pods) == {"train-master-0"}


def test_an_exit_code_calls_for_its_own_action() -> None:
    world = running(policies=[{"exitCode": 3, "action": "TerminateJob"}, *RESTART_ON_FAILURE])
    world.end("train-worker-0", 3).settle()
    assert world.phase == "Terminated"


def test_a_task_policy_goes_before_the_jobs() -> None:
    mine = [{"event": "PodFailed", "action": "AbortJob"}]
    world = running(task_list=[task("worker", 2, policies=mine)], policies=RESTART_ON_FAILURE)
    world.end("train-worker-0", 1).settle()
    assert world.phase == "Aborted"


def test_restarting_one_pod_leaves_the_others_and_the_gang_alone() -> None:
    world = running(tasks={"worker": 3}, policies=[{"event": "PodFailed", "action": "RestartPod"}])
    group = world.group
    world.end("train-worker-1", 1).settle()
    assert world.created.count("train-worker-1") == 2
    assert world.created.count("train-worker-0") == 1
    assert world.group == group
    assert (world.job.status.retry_count, world.job.status.version) == (1, 0)


def test_pods_that_fell_together_are_restarted_together_and_cost_one_retry() -> None:
    world = running(tasks={"worker": 3}, policies=[{"event": "PodFailed", "action": "RestartPod"}])
    world.end("train-worker-1", 1).end("train-worker-2", 1).settle()
    assert world.job.status.retry_count == 1
    assert len(world.created) == 5


def test_restarting_a_task_leaves_other_tasks_alone() -> None:
    restart = [{"event": "PodFailed", "action": "RestartTask"}]
    world = running(task_list=[task("a", 2, policies=restart), task("b", 1)])
    world.end("train-a-0", 1).settle()
    assert sorted(world.created) == ["train-a-0", "train-a-0", "train-a-1", "train-a-1", "train-b-0"]


def test_restarting_a_partition_takes_its_pods_only() -> None:
    partitions = {"totalPartitions": 2, "partitionSize": 2}
    restart = [{"event": "PodFailed", "action": "RestartPartition"}]
    world = running(task_list=[task("w", 4, policies=restart, partitionPolicy=partitions)])
    world.end("train-w-3", 1).settle()
    assert sorted(world.created)[-4:] == ["train-w-2", "train-w-2", "train-w-3", "train-w-3"]
    assert world.group is not None
    assert world.group.spec.sub_group_policy[0].match_label_keys == ["volcano.sh/partition-id"]


def test_a_task_whose_containers_restart_too_often_has_failed() -> None:
    world = running(policies=[{"event": "TaskFailed", "action": "TerminateJob"}])
    world.restarts("train-worker-0", 2).settle()
    assert world.phase == "Running"
    world.restarts("train-worker-1", 1).settle()
    assert world.phase == "Terminated"


@pytest.mark.parametrize("action", ["RestartPod", "RestartJob", "AbortJob"])
def test_a_kill_is_finished_by_the_next_controller_whichever_step_the_first_died_after(action: str) -> None:
    def wounded() -> JobWorld:
        world = running(tasks={"worker": 3}, policies=[{"event": "PodFailed", "action": action}])
        return world.end("train-worker-0", 1)

    for steps in range(len(wounded().decide()) + 1):
        world = wounded()
        world.step(upto=steps)
        world.settle()
        doomed = {"train-worker-0"} if action == "RestartPod" else set()
        kept = {name for name, pod in world.pods.items() if pod.status.phase == "Running"}
        assert kept == ({f"train-worker-{i}" for i in range(3)} - doomed if action == "RestartPod" else set()), steps
        assert world.job.status.retry_count == (0 if action == "AbortJob" else 1), steps
        version = str(world.job.status.version)
        assert world.group is None or world.group.metadata.annotations["volcano.sh/job-version"] == version, steps


def test_suspending_and_resuming_costs_no_retry() -> None:
    world = running()
    world.order("AbortJob").settle()
    assert world.phase == "Aborted"
    assert world.pods == {}
    assert world.world.list(Order) == []
    for _ in range(5):
        world.order("ResumeJob").settle().admit().settle().run_all().settle()
        assert world.phase == "Running"
        world.order("AbortJob").settle()
    assert world.job.status.retry_count == 0
    assert world.job.status.version > 5


def test_an_order_is_deleted_before_it_is_carried_out() -> None:
    world = running()
    world.order("TerminateJob")
    commands = world.step()
    kinds = [type(command) for command in commands]
    assert kinds.index(Delete) < kinds.index(SetStatus)
    assert isinstance(commands[0], Delete)
    assert commands[0].target.kind is Order


def test_an_order_that_means_nothing_in_this_phase_is_dropped() -> None:
    world = running()
    world.order("ResumeJob").settle()
    assert (world.phase, world.world.list(Order)) == ("Running", [])
    world.order("Dance").settle()
    assert (world.phase, world.world.list(Order)) == ("Running", [])


def test_a_task_waits_for_those_it_depends_on() -> None:
    tasks = [task("db", 1), task("app", 2, dependsOn={"name": ["db"]})]
    world = JobWorld(job(task_list=tasks)).admit().settle()
    assert set(world.pods) == {"train-db-0"}
    assert world.job.status.state.message == "task 'app' waits for 'db' (0 of 1 pods are ready)"
    world.run("train-db-0").settle()
    assert set(world.pods) == {"train-db-0", "train-app-0", "train-app-1"}


def test_scaling_down_removes_the_last_pods_and_nothing_is_restarted() -> None:
    world = running(tasks={"worker": 3}, policies=RESTART_ON_FAILURE)
    smaller = job(tasks={"worker": 1})["spec"]
    world.world.change(Job, NAMESPACE, "train", {"spec": {"tasks": smaller["tasks"], "minAvailable": 1}})
    world.settle()
    assert set(world.pods) == {"train-worker-0"}
    assert (world.phase, world.job.status.retry_count) == ("Running", 0)
    assert world.group is not None
    assert (world.group.spec.min_member, world.group.spec.min_resources) == (1, {"cpu": "1", "memory": "1Gi"})


def test_a_gang_that_lost_too_many_pods_is_pending_again() -> None:
    world = running(tasks={"worker": 3}, minAvailable=3)
    world.vanish("train-worker-0").settle()
    assert world.phase == "Pending"


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    world = running(ttlSecondsAfterFinished=60)
    world.end("train-worker-0").end("train-worker-1").settle()
    assert [command for command in world.decide() if isinstance(command, RequeueAfter)] == [RequeueAfter(60.0)]
    world.later(60)
    (deletion,) = [command for command in world.decide() if isinstance(command, Delete)]
    assert (deletion.target.kind, deletion.propagation) == (Job, "Foreground")


def test_a_delayed_action_waits_and_is_forgotten_when_the_pod_is_back() -> None:
    policies = [{"event": "PodEvicted", "action": "RestartJob", "timeout": "30s"}]
    world = running(policies=policies)
    world.evict("train-worker-0").settle()
    assert world.created.count("train-worker-0") == 2
    assert "hekla.dev/delayed-actions" in world.job.metadata.annotations
    world.later(10).run_all().settle()
    assert "hekla.dev/delayed-actions" not in world.job.metadata.annotations
    world.later(60).settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 0)


def test_a_delayed_action_comes_when_its_time_is_over() -> None:
    world = running(policies=[{"event": "PodEvicted", "action": "RestartJob", "timeout": "30s"}])
    world.evict("train-worker-0").settle()
    assert world.world.requeues[-1] == 30.0
    world.later(31).step()
    assert (world.phase, world.job.status.retry_count) == ("Restarting", 1)


def test_a_pod_pending_for_too_long_calls_for_its_policy() -> None:
    world = JobWorld(job(policies=[{"event": "PodPending", "action": "AbortJob", "timeout": "1m"}])).admit().settle()
    assert world.world.requeues[-1] == 60.0
    world.later(61).settle()
    assert world.phase == "Aborted"


def test_why_a_job_waits_is_in_its_status() -> None:
    document = job()
    document["spec"]["queue"] = "nowhere"
    world = JobWorld(document).settle()
    assert world.job.status.state.reason == "QueueNotFound"
    assert world.job.status.state.message == "queue 'nowhere' does not exist; create it or name another in spec.queue"


def test_the_schedulers_reason_is_passed_on() -> None:
    world = JobWorld(job()).settle()
    told = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2/2 nodes: no gpu"}
    world.world.change(PodGroup, NAMESPACE, "train-uid-train", {"status": {"conditions": [told]}})
    world.settle()
    assert (world.job.status.state.reason, world.job.status.state.message) == (
        "NotEnoughResources",
        "2/2 nodes: no gpu",
    )
    other_numbers = {**told, "message": "1/2 nodes: no gpu"}
    world.world.change(PodGroup, NAMESPACE, "train-uid-train", {"status": {"conditions": [other_numbers]}})
    world.settle()
    pending = [event.message for event in world.world.events if event.reason == "PodGroupPending"]
    assert pending == ["PodGroup default:train unschedulable, reason: 2/2 nodes: no gpu"], "other numbers are no news"


def test_a_job_that_was_let_in_no_longer_says_why_it_was_not() -> None:
    """A server that refuses its pods (Pod Security, a LimitRange) left it saying that its queue was full."""
    world = JobWorld(job()).settle()
    told = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "the queue is full"}
    status = {"status": {"conditions": [told], "phase": "Inqueue"}}
    world.world.change(type(world.group), NAMESPACE, "train-uid-train", status)  # type: ignore[arg-type]  # there is a group
    [said, *others] = world.decide()
    assert isinstance(said, SetStatus)
    assert said.can_wait_s, "where the pods are made at once, one write says both"
    assert said.status["state"]["reason"] == "PodsMissing"
    assert "events FailedCreate of the job say why" in said.status["state"]["message"]
    assert any(isinstance(one, Create) for one in others)
    world.settle()
    assert world.job.status.state.reason == "NotEnoughResources", "what the scheduler says of its pods counts again"


def test_a_job_that_was_let_in_at_once_says_that_it_has_no_pods() -> None:
    """Nothing was ever told of its group, and its status said nothing of the pods that the server refused."""
    world = JobWorld(job()).settle()
    world.world.change(type(world.group), NAMESPACE, "train-uid-train", {"status": {"phase": "Inqueue"}})  # type: ignore[arg-type]  # there is a group
    [said, *others] = world.decide()
    assert isinstance(said, SetStatus)
    assert said.can_wait_s, "where the pods are made at once, one write says both"
    assert said.status["state"]["reason"] == "PodsMissing"
    assert any(isinstance(one, Create) for one in others)
    world.settle()
    assert not world.job.status.state.reason


def test_a_group_that_is_refused_is_told_of() -> None:
    """A webhook refuses it where its queue is gone, as after a CustomResourceDefinition that was deleted and applied again."""
    [*_, made] = [one for one in JobWorld(job()).decide() if isinstance(one, Create) and one.kind is PodGroup]
    assert made.is_told_of_when_refused


def test_svc_makes_names_that_resolve() -> None:
    world = JobWorld(job(tasks={"ps-a": 1, "worker": 2}, plugins={"svc": [], "env": []})).admit().settle()
    service = world.world.get(Service, NAMESPACE, "train")
    hosts = world.world.get(ConfigMap, NAMESPACE, "train-svc")
    assert service is not None
    assert hosts is not None
    assert service.spec.cluster_ip == "None"
    assert hosts.data["worker.host"] == "train-worker-0.train\ntrain-worker-1.train"
    assert (hosts.data["VC_WORKER_HOSTS"], hosts.data["VC_WORKER_NUM"]) == (
        "train-worker-0.train,train-worker-1.train",
        "2",
    )
    assert hosts.data["VC_PS_A_NUM"] == "1"
    pod = world.pods["train-worker-1"]
    assert (pod.spec.hostname, pod.spec.subdomain) == ("train-worker-1", "train")
    env = {one.name: one.value for one in pod.spec.containers[0].env}
    assert env["VC_TASK_INDEX"] == env["VK_TASK_INDEX"] == "1"
    assert {"VC_WORKER_HOSTS", "VC_PS_A_HOSTS"} <= env.keys()
    assert [mount.mount_path for mount in pod.spec.containers[0].volume_mounts] == ["/etc/volcano"]
    assert world.job.status.controlled_resources == {"plugin-env": "env", "plugin-svc": "svc"}


def test_pods_carry_volcanos_labels_and_annotations() -> None:
    world = JobWorld(job()).admit().settle()
    meta = world.pods["train-worker-1"].metadata
    assert meta.labels == {
        "volcano.sh/task-index": "1",
        "volcano.sh/job-name": "train",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/job-namespace": "default",
        "volcano.sh/queue-name": "default",
    }
    assert meta.annotations == {
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
        "scheduling.k8s.io/group-name": "train-uid-train",
        "volcano.sh/job-name": "train",
        "volcano.sh/queue-name": "default",
        "volcano.sh/job-version": "0",
        "volcano.sh/template-uid": "train-worker",
        "volcano.sh/job-retry-count": "0",
    }
    assert world.pods["train-worker-1"].spec.scheduler_name == "volcano"


def test_a_job_whose_claim_is_missing_waits_with_a_sentence() -> None:
    world = JobWorld(job(volumes=[{"mountPath": "/data", "volumeClaimName": "data"}])).settle()
    said = "pvc data is not found, the job will be in the Pending state until the PVC is created"
    assert world.job.status.state.message == said
    assert world.group is None


def test_a_described_claim_is_made_once_and_named_in_the_spec() -> None:
    volume = {"mountPath": "/data", "volumeClaim": {"resources": {"requests": {"storage": "1Gi"}}}}
    world = JobWorld(job(volumes=[volume])).settle().admit().settle()
    name = world.job.spec.volumes[0].volume_claim_name
    assert name.startswith("train-pvc-")
    mounted = world.pods["train-worker-0"].spec
    assert [one.mount_path for one in mounted.containers[0].volume_mounts] == ["/data"]


LIVES = {
    "new": lambda: JobWorld(job(tasks={"worker": 2}, plugins={"svc": [], "env": []})),
    "admitted": lambda: JobWorld(job(tasks={"worker": 2}, plugins={"svc": [], "env": []})).admit(),
    "done": lambda: running().end("train-worker-0").end("train-worker-1"),
    "failed, to be restarted": lambda: running(policies=RESTART_ON_FAILURE).end("train-worker-0", 1),
    "failed, one pod to be restarted": lambda: running(policies=RESTART_THE_POD).end("train-worker-0", 1),
    "evicted, one pod to be restarted": lambda: running(policies=RESTART_THE_POD).evict("train-worker-0"),
    "scaled down": lambda: scaled_down(),
    "waiting for others": lambda: JobWorld(
        job(task_list=[task("db", 1), task("app", 2, dependsOn={"name": ["db"]})])
    ).admit(),
}
RESTART_THE_POD = [{"event": "*", "action": "RestartPod"}]


def scaled_down() -> JobWorld:
    world = running(tasks={"worker": 3})
    smaller = job(tasks={"worker": 1})["spec"]["tasks"]
    world.world.change(Job, NAMESPACE, "train", {"spec": {"tasks": smaller, "minAvailable": 1}})
    return world


@pytest.mark.parametrize("life", LIVES)
def test_a_job_comes_to_rest_and_heals_whichever_command_failed(life: str) -> None:
    now = LIVES[life]().now
    assert_converges(reconcile_job, LIVES[life]().world, NAMESPACE, "train", now=now)
    assert_heals(reconcile_job, lambda: LIVES[life]().world, NAMESPACE, "train", now=now)


@pytest.mark.parametrize("life", LIVES)
def test_a_job_in_any_life_touches_only_what_is_its_own(life: str) -> None:
    world = LIVES[life]()
    assert_touches_only_its_own(reconcile_job, world.world, NAMESPACE, "train", now=world.now)


def test_a_job_touches_only_what_is_its_own() -> None:
    world = running(policies=RESTART_ON_FAILURE, plugins={"svc": []})
    world.end("train-worker-0", 1)
    assert_touches_only_its_own(reconcile_job, world.world, NAMESPACE, "train", now=world.now)


def test_carrying_out_an_action_is_told_in_volcanos_words() -> None:
    world = running(policies=RESTART_ON_FAILURE)
    world.end("train-worker-0", 1).step()
    told = [(event.reason, event.message) for event in world.world.events if isinstance(event, Event)]
    assert ("ExecuteAction", "Start to execute action RestartJob ") in told


def test_a_config_map_of_somebody_else_is_left_alone() -> None:
    theirs = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "train-svc", "namespace": NAMESPACE}, "data": {"a": "b"},
    }  # fmt: skip
    world = JobWorld(job(plugins={"svc": []}), theirs).admit().settle().run_all().settle()
    world.end("train-worker-0").end("train-worker-1").settle()
    assert world.phase == "Completed"
    left = world.world.get(ConfigMap, NAMESPACE, "train-svc")
    assert left is not None
    assert left.data == {"a": "b"}


def test_what_plug_ins_made_goes_when_the_job_has_finished() -> None:
    world = running(plugins={"svc": []})
    assert world.world.get(Service, NAMESPACE, "train") is not None
    world.end("train-worker-0").end("train-worker-1").settle()
    assert world.world.get(Service, NAMESPACE, "train") is None
    assert world.job.status.controlled_resources == {}


def test_a_job_looks_again_for_a_claim_that_it_names() -> None:
    world = JobWorld(job(volumes=[{"mountPath": "/data", "volumeClaimName": "data"}])).settle()
    assert RequeueAfter(10.0) in world.decide()
    assert sum(event.reason == "PVCError" for event in world.world.events) == 1
    world.world.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}})
    world.settle()
    assert world.group is not None


def test_two_billion_replicas_are_made_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write one Job stood the controllers of everybody still, until their memory was full."""
    monkeypatch.setattr("hekla.workloads.job_pods.MOST_PODS", 10)
    world = JobWorld(job(tasks={"first": 3, "worker": 2_000_000_000}, minAvailable=1)).admit()
    for numbers in (range(7), range(7, 17)):
        made = [command for command in world.step() if isinstance(command, Create) and command.kind is Pod]
        assert len(made) == 10
        names = [command.document["metadata"]["name"] for command in made]
        assert names[-len(numbers) :] == [f"train-worker-{number}" for number in numbers]


def test_a_plug_in_that_would_name_billions_of_hosts_is_left_out_with_a_sentence() -> None:
    world = JobWorld(
        job(tasks={"worker": 2_000_000_000}, minAvailable=1, plugins={"svc": [], "pytorch": ["--master=worker"]})
    )
    told = [command.message for command in world.step() if isinstance(command, Event)]
    assert any('job plugin "svc" would name 2000000000 hosts' in one for one in told), told
    world.admit()
    assert any(isinstance(command, Create) and command.kind is Pod for command in world.decide())


def test_pods_beyond_what_the_tasks_ask_for_are_known_by_their_number() -> None:
    world = running(tasks={"worker": 3, "worker-1": 2})
    smaller = job(tasks={"worker": 1, "worker-1": 2})["spec"]
    world.world.change(Job, NAMESPACE, "train", {"spec": {"tasks": smaller["tasks"], "minAvailable": 3}})
    world.settle()
    assert set(world.pods) == {"train-worker-0", "train-worker-1-0", "train-worker-1-1"}


@pytest.mark.parametrize("mark", ["²", "1", "1.", "a.b", "1.-1", "9" * 5000])
def test_a_mark_that_cannot_be_read_is_none(mark: str) -> None:
    """A template may have one; the job could not be looked after any more."""
    world = running(tasks={"worker": 1})
    world.world.change(Pod, NAMESPACE, "train-worker-0", {"metadata": {"annotations": {KILLED_AT: mark}}})
    world.settle()
    assert world.phase == "Running"
    assert set(world.pods) == {"train-worker-0"}
