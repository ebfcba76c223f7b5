from datetime import UTC, datetime

import pytest

from hekla.api.core import Pod
from hekla.api.meta import ObjectMeta
from hekla.api.pods import PodStatus
from hekla.api.volcano import Job, JobFlow, JobTemplate
from hekla.testing.job_world import task
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.world import FakeWorld
from hekla.workloads import keys
from hekla.workloads.flow_probes import due
from hekla.workloads.job_flow import reconcile_job_flow
from hekla.workloads.job_template import reconcile_job_template

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLOW = "flow.volcano.sh/v1alpha1"


def template(name, **spec):
    whole = {"queue": "research", "tasks": [task("worker", 2)], **spec}
    return {
        "apiVersion": FLOW,
        "kind": "JobTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": whole,
    }


def flow(*steps, **spec):
    meta = {"name": "etl", "namespace": "default", "uid": "flow"}
    return {"apiVersion": FLOW, "kind": "JobFlow", "metadata": meta, "spec": {"flows": list(steps), **spec}}


def step(name, *targets, **more):
    return {"name": name, **({"dependsOn": {"targets": list(targets)}} if targets else {}), **more}


def diamond(**spec):
    """b and c wait for a; d waits for both."""
    steps = (step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"))
    return FakeWorld(flow(*steps, **spec), *(template(name) for name in "abcd"))


def run(world):
    converge(reconcile_job_flow, world, "default", "etl", now=NOW)
    return world


def names(world):
    return [job.metadata.name for job in world.list(Job)]


def to(world, name, phase, **status):
    state = {"phase": phase, "lastTransitionTime": "2026-01-01T00:01:00Z"}
    world.change(Job, "default", f"etl-{name}", {"status": {"state": state, **status}})
    return run(world)


def status(world):
    return world.get(JobFlow, "default", "etl").status


def phase(world):
    return status(world).state.phase


def reasons(world):
    return [event.reason for event in world.events]


def test_jobs_start_when_those_they_wait_for_are_completed():
    world = run(diamond())
    assert names(world) == ["etl-a"]
    assert phase(to(world, "a", "Running")) == "Running"
    assert names(world) == ["etl-a"]
    assert names(to(world, "a", "Completed")) == ["etl-a", "etl-b", "etl-c"]
    assert names(to(world, "c", "Completed")) == ["etl-a", "etl-b", "etl-c"]
    assert names(to(world, "b", "Completed")) == ["etl-a", "etl-b", "etl-c", "etl-d"]
    assert phase(world) == "Running"
    assert phase(to(world, "d", "Completed")) == "Succeed"
    assert status(world).completed_jobs == ["etl-a", "etl-b", "etl-c", "etl-d"]


def test_a_job_carries_its_flow_and_its_template():
    (job,) = run(diamond()).list(Job)
    marks = {keys.MADE_BY_FLOW: "default.etl", keys.MADE_FROM_TEMPLATE: "default.a"}
    assert marks == job.metadata.annotations
    assert marks == job.metadata.labels
    assert job.spec.queue == "research"


def test_a_new_flow_is_pending():
    world = run(diamond())
    assert phase(world) == "Pending"
    assert status(world).pending_jobs == ["etl-a"]


@pytest.mark.parametrize("end", ["Failed", "Terminated"])
def test_a_flow_fails_with_its_first_job_and_starts_no_more(end):
    world = to(run(diamond()), "a", "Completed")
    assert phase(to(world, "b", end)) == "Failed"
    to(world, "c", "Completed")
    assert names(world) == ["etl-a", "etl-b", "etl-c"]
    assert phase(world) == "Failed"


def test_a_flow_that_succeeded_may_delete_its_jobs_and_keeps_its_story():
    world = run(FakeWorld(flow(step("a"), jobRetainPolicy="delete"), template("a")))
    to(world, "a", "Completed")
    assert names(world) == []
    assert phase(world) == "Succeed"
    assert status(world).completed_jobs == ["etl-a"]
    assert names(run(world)) == []


def test_a_missing_template_is_told_and_waited_for():
    world = run(FakeWorld(flow(step("a"), step("b"), step("c", "b")), template("a")))
    assert names(world) == ["etl-a"]
    assert "JobTemplateNotFound" in reasons(world)
    world.execute([])
    late = FakeWorld(*world.documents().values(), template("b"))
    assert names(run(late)) == ["etl-a", "etl-b"]


def test_a_template_wakes_the_flows_that_use_it():
    world = diamond()
    wake = reconcile_job_flow.finds[JobTemplate]
    assert list(wake(world.get(JobTemplate, "default", "b"), world)) == [("default", "etl")]


def test_a_patch_replaces_fields_of_the_template():
    """Volcano accepts the field and heeds nothing of it."""
    patched = step("a", patch={"jobSpec": {"queue": "night", "maxRetry": 7}})
    (job,) = run(FakeWorld(flow(patched), template("a", minAvailable=2))).list(Job)
    assert (job.spec.queue, job.spec.max_retry, job.spec.min_available) == ("night", 7, 2)


def test_a_probe_lets_a_job_start_beside_those_it_waits_for():
    probed = {"targets": ["a"], "probe": {"taskStatusList": [{"taskName": "worker", "phase": "Running"}]}}
    world = run(FakeWorld(flow(step("a"), step("b", dependsOn=probed)), template("a"), template("b")))
    to(world, "a", "Running", taskStatusCount={"worker": {"phase": {"Running": 1, "Pending": 1}}})
    assert names(world) == ["etl-a"]
    to(world, "a", "Running", taskStatusCount={"worker": {"phase": {"Running": 1, "Succeeded": 1}}})
    assert names(world) == ["etl-a", "etl-b"]


def probed_flow(**probe):
    return flow(step("a"), step("b", dependsOn={"targets": ["a"], "probe": probe}))


@pytest.mark.parametrize("answers", ["", "b", "a,b,c"])
def test_a_job_whose_probes_knock_at_doors_starts_when_they_are_answered(answers):
    document = probed_flow(tcpSocketList=[{"taskName": "worker", "port": 80}])
    document["metadata"]["annotations"] = {keys.PROBES_ANSWERED: answers} if answers else {}
    world = run(FakeWorld(document, template("a"), template("b")))
    to(world, "a", "Running")
    assert ("etl-b" in names(world)) == bool(answers)


def test_answers_do_not_make_up_for_a_phase_that_a_task_has_not_reached():
    document = probed_flow(
        tcpSocketList=[{"taskName": "worker", "port": 80}], taskStatusList=[{"taskName": "worker", "phase": "Running"}]
    )
    document["metadata"]["annotations"] = {keys.PROBES_ANSWERED: "b"}
    world = run(FakeWorld(document, template("a"), template("b")))
    to(world, "a", "Running", taskStatusCount={"worker": {"phase": {"Pending": 2}}})
    assert names(world) == ["etl-a"]
    to(world, "a", "Running", taskStatusCount={"worker": {"phase": {"Running": 2}}})
    assert names(world) == ["etl-a", "etl-b"]


def doors(world, **pods):
    """The doors to knock at for each job of the flow that waits; `pods` are phases and addresses of pods of job a."""
    found = world.get(JobFlow, "default", "etl")
    jobs = {job.metadata.name.removeprefix("etl-"): job for job in world.list(Job)}
    uid = jobs["a"].metadata.uid
    made = [
        Pod(
            metadata=ObjectMeta(name=name, annotations={keys.TASK_SPEC: "worker"}),
            status=PodStatus(phase=phase, pod_ip=ip),
        )
        for name, (phase, ip) in pods.items()
    ]
    return dict(due(found, jobs, {uid: made}))


def test_every_pod_of_the_task_has_to_answer_and_nobody_is_asked_before_all_run():
    header = {"name": "who", "value": "flow"}
    http = [{"taskName": "worker", "port": 8080, "path": "ready", "httpHeader": header}]
    world = run(FakeWorld(probed_flow(httpGetList=http), template("a"), template("b")))
    assert doors(world, x=("Running", "10.0.0.1")) == {}, "the second has not been made"
    assert doors(world, x=("Running", "10.0.0.1"), y=("Pending", "")) == {}
    both = doors(world, x=("Running", "10.0.0.1"), y=("Running", "fd00::2"))
    assert [knock.url for knock in both["b"]] == ["http://10.0.0.1:8080/ready", "http://[fd00::2]:8080/ready"]
    assert all(knock.header == ("who", "flow") for knock in both["b"])
    world.change(JobFlow, "default", "etl", {"metadata": {"annotations": {keys.PROBES_ANSWERED: "b"}}})
    assert doors(world, x=("Running", "10.0.0.1"), y=("Running", "fd00::2")) == {}, "once is enough"


def test_a_task_that_nobody_has_is_never_taken_for_answered():
    world = run(FakeWorld(probed_flow(tcpSocketList=[{"taskName": "ghost", "port": 1}]), template("a"), template("b")))
    assert doors(world, x=("Running", "10.0.0.1"), y=("Running", "10.0.0.2")) == {}


def test_a_job_of_somebody_else_is_left_alone():
    other = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": "etl-a", "namespace": "default"}, "spec": {"tasks": [task("worker", 1)]},
    }  # fmt: skip
    world = run(FakeWorld(flow(step("a")), template("a"), other))
    assert "ForeignJob" in reasons(world)
    assert phase(world) == "Pending"


def test_the_phases_that_a_job_went_through_are_remembered():
    world = run(diamond())
    to(world, "a", "Running")
    to(world, "a", "Restarting", retryCount=2)
    (story,) = status(world).job_status_list
    assert [one.state for one in story.running_histories] == ["Pending", "Running", "Restarting"]
    assert story.running_histories[0].end_timestamp == story.running_histories[1].start_timestamp
    assert story.restart_count == 2
    assert status(world).conditions["etl-a"].phase == "Restarting"


def test_a_flow_that_is_being_deleted_starts_nothing():
    world = diamond()
    world.change(
        JobFlow, "default", "etl", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}}
    )
    assert names(run(world)) == []


def test_it_converges_heals_and_touches_only_its_own():
    assert_converges(reconcile_job_flow, diamond(), "default", "etl", now=NOW)
    assert_heals(reconcile_job_flow, diamond, "default", "etl", now=NOW)
    assert_touches_only_its_own(reconcile_job_flow, diamond(), "default", "etl", now=NOW)
    done = to(
        run(FakeWorld(flow(step("a"), step("b", "a"), jobRetainPolicy="delete"), template("a"), template("b"))),
        "a",
        "Completed",
    )
    assert_touches_only_its_own(reconcile_job_flow, done, "default", "etl", now=NOW)


def test_a_template_lists_the_jobs_made_from_it():
    world = run(diamond())
    converge(reconcile_job_template, world, "default", "a", now=NOW)
    assert world.get(JobTemplate, "default", "a").status.job_depends_on_list == ["etl-a"]
    (job,) = world.list(Job)
    assert list(reconcile_job_template.wakes[Job](job)) == [("default", "a")]
    assert_touches_only_its_own(reconcile_job_template, run(diamond()), "default", "a", now=NOW)
    assert_converges(reconcile_job_template, run(diamond()), "default", "a", now=NOW)
    assert_heals(reconcile_job_template, lambda: run(diamond()), "default", "a", now=NOW)
