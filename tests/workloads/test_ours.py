"""What the webhooks of `hekla run --scheduler-name team-a --default-queue shared` take for theirs."""

import copy
from typing import Any

from hekla.api.core import Pod
from hekla.api.volcano import CronJob, Job, Queue
from hekla.apiserver.admission import Operation
from hekla.testing.admission import admit, api_object, refusal
from hekla.workloads.admission import ADMISSION_RULES, rules_of
from hekla.workloads.admission_resource_groups import HOME
from hekla.workloads.ours import Ours

RULES = rules_of(HOME, Ours(("team-a", "team-b"), "shared"))
SHARED = api_object(Queue, "shared", status={"state": "Open"})
TASK = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}


def pod(scheduler: str, **annotations: str) -> dict[str, Any]:
    document = api_object(Pod, "p", "ml", spec={"schedulerName": scheduler})
    document["metadata"]["annotations"] = annotations
    return document


def test_a_job_that_says_nothing_gets_the_first_scheduler_and_the_default_queue() -> None:
    spec = admit(RULES, api_object(Job, "train", "ml", spec={"tasks": [TASK]}), there=[SHARED])["spec"]
    assert (spec["schedulerName"], spec["queue"]) == ("team-a", "shared")
    said = {"tasks": [TASK], "schedulerName": "team-b", "queue": "ml"}
    spec = admit(RULES, api_object(Job, "train", "ml", spec=said), there=[api_object(Queue, "ml")])["spec"]
    assert (spec["schedulerName"], spec["queue"]) == ("team-b", "ml")


def test_the_kinds_own_default_stands_for_none_where_nobody_has_such_a_queue() -> None:
    """An API server writes `queue: default` into a Job before it asks webhooks: the flag had no effect on any Job."""
    job = api_object(Job, "train", "ml", spec={"tasks": [TASK], "queue": "default"})
    assert admit(RULES, job, there=[SHARED])["spec"]["queue"] == "shared"
    assert admit(RULES, job, there=[SHARED, api_object(Queue, "default")])["spec"]["queue"] == "default"
    template = {"spec": {"tasks": [TASK], "queue": "default"}}
    hourly = api_object(CronJob, "c", "ml", spec={"schedule": "@hourly", "jobTemplate": template})
    assert refusal(RULES, hourly, there=[SHARED]) == ""


def test_a_job_that_is_stored_keeps_its_queue_whichever_queues_come_and_go() -> None:
    """Once the Queue `default` was gone, a job of that queue took no annotation: it was rewritten, and then refused for that."""
    default = api_object(Queue, "default", status={"state": "Open"})
    fields = {"tasks": [TASK], "queue": "default"}
    for queue, before, after in (("default", [SHARED, default], [SHARED]), ("shared", [SHARED], [SHARED, default])):
        job = admit(RULES, api_object(Job, "train", "ml", spec=fields), there=before)
        assert job["spec"]["queue"] == queue
        again = {**copy.deepcopy(job), "spec": {**copy.deepcopy(job["spec"]), "queue": "default"}}
        again["metadata"]["annotations"] = {"a": "b"}
        assert admit(RULES, again, old=job, there=after, operation=Operation.UPDATE)["spec"]["queue"] == queue
    ml = api_object(Queue, "ml", status={"state": "Open"})
    job = admit(RULES, api_object(Job, "train", "ml", spec={"tasks": [TASK], "queue": "ml"}), there=[ml])
    moved = {**copy.deepcopy(job), "spec": {**copy.deepcopy(job["spec"]), "queue": "default"}}
    assert "may not change" in refusal(RULES, moved, old=job, there=[ml, SHARED, default], operation=Operation.UPDATE)


def test_a_cron_jobs_template_is_judged_with_the_default_queue() -> None:
    hourly = api_object(CronJob, "c", "ml", spec={"schedule": "@hourly", "jobTemplate": {"spec": {"tasks": [TASK]}}})
    assert refusal(RULES, hourly, there=[SHARED]) == ""
    assert '"shared" not found' in refusal(RULES, hourly, there=[api_object(Queue, "default")])


def test_pods_of_each_scheduler_are_gated_and_their_budgets_judged() -> None:
    gate, budget = "scheduling.volcano.sh/queue-allocation-gate", "volcano.sh/jdb-min-available"
    for scheduler, is_ours in (("team-a", True), ("team-b", True), ("volcano", False)):
        assert ("schedulingGates" in admit(RULES, pod(scheduler, **{gate: "true"}))["spec"]) is is_ours
        assert bool(refusal(RULES, pod(scheduler, **{budget: "0"}))) is is_ours


def test_the_default_queue_is_not_deleted() -> None:
    said = refusal(RULES, SHARED, operation=Operation.DELETE, there=[SHARED])
    assert said.endswith("`shared` queue can not be deleted")
    assert refusal(ADMISSION_RULES, SHARED, operation=Operation.DELETE, there=[SHARED]) == ""
