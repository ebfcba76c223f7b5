"""What the webhooks of queues, groups, pods, flows, cron jobs and hyper-nodes write and refuse."""

from typing import Any

import pytest

from hekla.api.core import Namespace, Pod
from hekla.api.volcano import CronJob, HyperNode, JobFlow, PodGroup, Queue
from hekla.apiserver.admission import Operation
from hekla.testing.admission import admit, api_object, refusal
from hekla.workloads.admission import ADMISSION_RULES


def queue(name: str = "ml", *, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    document = api_object(Queue, name, spec=spec)
    if annotations:
        document["metadata"]["annotations"] = annotations
    return document


def test_a_new_queue_may_be_reclaimed_from_and_weighs_one() -> None:
    marks = {"volcano.sh/hierarchy": "eng/dev", "volcano.sh/hierarchy-weights": "2/5"}
    made = admit(ADMISSION_RULES, queue(annotations=marks))
    assert made["spec"] == {"reclaimable": True, "weight": 1}
    assert made["metadata"]["annotations"] == {
        "volcano.sh/hierarchy": "root/eng/dev",
        "volcano.sh/hierarchy-weights": "1/2/5",
    }


def test_a_queue_that_is_changed_is_completed_like_a_new_one() -> None:
    before = queue(weight=3, reclaimable=False)
    after = admit(
        ADMISSION_RULES, queue(weight=0, reclaimable=False), old=before, operation=Operation.UPDATE, there=[before]
    )
    assert after["spec"] == {"reclaimable": False, "weight": 1}


def test_amounts_that_an_older_volcano_let_in_do_not_keep_a_queue_from_being_told_its_parent() -> None:
    """The controllers asked for it again and again, and were refused by our own webhook."""
    old = queue("team", weight=3, reclaimable=True, guarantee={"resource": {"cpu": "2"}})
    there = [queue("root"), old]
    told = {**old, "spec": {**old["spec"], "parent": "root"}}
    assert admit(ADMISSION_RULES, told, old=old, operation=Operation.UPDATE, there=there) == told
    more = {**old, "spec": {**old["spec"], "guarantee": {"resource": {"cpu": "3"}}}}
    said = refusal(ADMISSION_RULES, more, old=old, operation=Operation.UPDATE, there=there)
    assert "deserved[cpu] must be >= guarantee[cpu]=3" in said


TREE = [
    queue("root"),
    queue("default"),
    queue("org", capability={"cpu": 10}, deserved={"cpu": 8}, guarantee={"resource": {"cpu": 4}}),
    queue("team", parent="org", capability={"cpu": 6}, deserved={"cpu": 4}, guarantee={"resource": {"cpu": 2}}),
    *(queue(f"d{depth}", parent=f"d{depth - 1}" if depth > 1 else "root") for depth in range(1, 6)),
    queue("dev", annotations={"volcano.sh/hierarchy": "root/eng/dev", "volcano.sh/hierarchy-weights": "1/2/3"}),
    {**queue("busy"), "status": {"allocated": {"pods": "3"}}},
]
QUEUES: dict[str, tuple[dict[str, Any], str]] = {
    "negative": (
        queue(capability={"cpu": "-1"}),
        'requestBody.spec.capability.cpu: Invalid value: "-1": must be greater than or equal to 0',
    ),
    "half a gpu": (
        queue(deserved={"nvidia.com/gpu": "500m"}),
        'requestBody.spec.deserved.nvidia.com/gpu: Invalid value: "500m": must be an integer',
    ),
    "guarantee over deserved": (
        queue(deserved={"cpu": 1}, guarantee={"resource": {"cpu": 2}}),
        'requestBody.spec.deserved.cpu: Invalid value: "1": deserved[cpu]=1 must be >= guarantee[cpu]=2',
    ),
    "guarantee without deserved": (
        queue(guarantee={"resource": {"cpu": 2}}),
        'requestBody.spec.deserved.cpu: Invalid value: "<nil>": deserved[cpu] must be >= guarantee[cpu]=2',
    ),
    "deserved over capability": (
        queue(deserved={"memory": "2Gi"}, capability={"memory": "1Gi"}),
        'requestBody.spec.deserved.memory: Invalid value: "2Gi": deserved[memory]=2Gi must be <= capability[memory]=1Gi',
    ),
    "hierarchies of unequal length": (
        queue(annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1"}),
        'requestBody.metadata.annotations: Invalid value: "root/a": volcano.sh/hierarchy must have the same length with '
        "volcano.sh/hierarchy-weights",
    ),
    "a state that queues do not have": (
        {**queue(), "status": {"state": "Ajar"}},
        'requestBody.spec.state: Invalid value: "Ajar": queue state must be in [Open Closed]',
    ),
    "a weight that is no number": (
        queue(annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1/much"}),
        'requestBody.metadata.annotations: Invalid value: "1/much": much in the 1/much is invalid number: '
        'strconv.ParseFloat: parsing "much": invalid syntax',
    ),
    "a place above another queue's": (
        queue(annotations={"volcano.sh/hierarchy": "root/eng", "volcano.sh/hierarchy-weights": "1/2"}),
        'requestBody.metadata.annotations: Invalid value: "root/eng": root/eng is not allowed to be in the sub path of '
        "root/eng/dev of queue dev",
    ),
    "a weight of nothing": (
        queue(annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1/0"}),
        'requestBody.metadata.annotations: Invalid value: "1/0": 0 in the 1/0 must be larger than 0',
    ),
    "its own parent": (queue("ml", parent="ml"), "queue ml cannot use itself as parent"),
    "no such parent": (
        queue(parent="nowhere"),
        'failed to get parent queue nowhere of queue ml: queue.scheduling.volcano.sh "nowhere" not found',
    ),
    "too deep": (queue(parent="d5"), "queue ml exceeds the maximum allowed depth of 5"),
    "a parent with pods": (
        queue(parent="busy"),
        "queue busy cannot be the parent queue of queue ml because it has allocated Pods: 3",
    ),
    "more than its ancestor": (
        queue(parent="team", capability={"cpu": 7}),
        "queue ml capability[cpu]=7 exceeds its ancestor's capability=6",
    ),
    "more than is left of the guarantee": (
        queue(parent="org", deserved={"cpu": 3}, guarantee={"resource": {"cpu": 3}}),
        "parent queue org validation failed: sum of children's guarantee (cpu 5000.00, memory 0.00) exceeds parent's "
        "guarantee limit (cpu 4000.00, memory 0.00)",
    ),
    "more than is left of the deserved": (
        queue(parent="org", deserved={"cpu": 5}),
        "parent queue org validation failed: sum of children's deserved (cpu 9000.00, memory 0.00) exceeds parent's "
        "deserved limit (cpu 8000.00, memory 0.00)",
    ),
    "a good child": (queue(parent="org", deserved={"cpu": 4}, capability={"cpu": 10}), ""),
}
DENIED_QUEUE = 'admission webhook "validatequeue.volcano.sh" denied the request: '


@pytest.mark.parametrize("case", QUEUES)
def test_a_queue_that_contradicts_itself_or_its_tree_is_refused(case: str) -> None:
    document, sentence = QUEUES[case]
    assert refusal(ADMISSION_RULES, document, there=TREE) == (DENIED_QUEUE + sentence if sentence else "")


def test_a_parent_may_not_shrink_below_its_children() -> None:
    smaller = queue("org", capability={"cpu": 5}, deserved={"cpu": 5}, guarantee={"resource": {"cpu": 4}})
    old = next(one for one in TREE if one["metadata"]["name"] == "org")
    said = refusal(ADMISSION_RULES, smaller, old=old, operation=Operation.UPDATE, there=TREE)
    assert said == DENIED_QUEUE + "queue org capability[cpu]=5 is smaller than its descendants' max capability=6"


def test_a_queue_does_not_go_below_one_that_is_below_it() -> None:
    said = refusal(
        ADMISSION_RULES,
        queue("d1", parent="d2"),
        old=queue("d1", parent="root"),
        operation=Operation.UPDATE,
        there=TREE,
    )
    assert said.endswith("queue d1 cannot be below queue d2, which is below it; give one of them another parent")


def test_the_root_queues_shares_are_not_for_users() -> None:
    said = refusal(ADMISSION_RULES, queue("root", deserved={"cpu": 1}), old=queue("root"), operation=Operation.UPDATE)
    assert (
        said == DENIED_QUEUE + "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("default", "`default` queue can not be deleted"),
        ("root", "`root` queue can not be deleted"),
        ("org", "queue org can not be deleted because it has 1 child queues: team"),
        ("team", ""),
    ],
)
def test_queues_that_others_need_are_not_deleted(name: str, sentence: str) -> None:
    said = refusal(ADMISSION_RULES, queue(name), operation=Operation.DELETE, there=TREE)
    assert said == (DENIED_QUEUE + sentence if sentence else "")


def test_a_group_goes_to_its_namespaces_queue() -> None:
    namespace = api_object(Namespace, "research")
    namespace["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "nlp"}
    there = [namespace, queue("nlp"), queue("default"), queue("other")]
    assert admit(ADMISSION_RULES, api_object(PodGroup, "g", "research"), there=there)["spec"]["queue"] == "nlp"
    chosen = api_object(PodGroup, "g", "research", spec={"queue": "other"})
    assert admit(ADMISSION_RULES, chosen, there=there)["spec"]["queue"] == "other"


def test_a_group_in_a_closed_queue_with_a_tier_named_twice_is_refused() -> None:
    both = {"highestTierAllowed": 1, "highestTierName": "rack"}
    shut = {**queue("shut"), "status": {"state": "Closing"}}
    group = api_object(PodGroup, "g", "ml", spec={"queue": "shut", "networkTopology": both})
    assert refusal(ADMISSION_RULES, group, there=[shut]) == (
        'admission webhook "validatepodgroup.volcano.sh" denied the request: can only submit PodGroup to queue with state '
        "`Open`, queue `shut` status is `Closing`.; must not specify 'highestTierAllowed' and 'highestTierName' in "
        "networkTopology simultaneously."
    )


BOTH = {"highestTierAllowed": 1, "highestTierName": "rack"}
DENIED_GROUP = 'admission webhook "validatepodgroup.volcano.sh" denied the request: '


def group(**spec: Any) -> dict[str, Any]:
    return api_object(PodGroup, "g", "ml", spec=spec)


def test_a_group_in_a_queue_that_does_not_exist_is_refused() -> None:
    said = refusal(ADMISSION_RULES, group(queue="nowhere"))
    assert said == DENIED_GROUP + 'unable to find queue: queue.scheduling.volcano.sh "nowhere" not found'


def test_a_sub_group_with_a_tier_named_twice_is_refused_by_its_name() -> None:
    parts = [{"name": "left"}, {"name": "right", "networkTopology": BOTH}]
    said = refusal(ADMISSION_RULES, group(queue="ml", subGroupPolicy=parts), there=[queue("ml")])
    assert said == DENIED_GROUP + (
        "in subGroupPolicy 'right': must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology "
        "simultaneously."
    )


SHUT = {**queue("shut"), "status": {"state": "Closed"}}
BEFORE = group(queue="ml", minMember=2)
GROUP_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another size": (group(queue="ml", minMember=3), ""),
    "a closed queue": (
        group(queue="shut", minMember=2),
        "can only submit PodGroup to queue with state `Open`, queue `shut` status is `Closed`.",
    ),
    "a queue that does not exist": (
        group(queue="nowhere", minMember=2),
        'unable to find queue: queue.scheduling.volcano.sh "nowhere" not found',
    ),
    "a tier named twice": (
        group(queue="ml", minMember=2, networkTopology=BOTH),
        "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously.",
    ),
    "a sub-group's tier named twice": (
        group(queue="ml", minMember=2, subGroupPolicy=[{"name": "left", "networkTopology": BOTH}]),
        "in subGroupPolicy 'left': must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology "
        "simultaneously.",
    ),
}


@pytest.mark.parametrize("case", GROUP_CHANGES)
def test_a_group_may_not_be_changed_into_what_could_not_be_created(case: str) -> None:
    after, sentence = GROUP_CHANGES[case]
    said = refusal(ADMISSION_RULES, after, old=BEFORE, operation=Operation.UPDATE, there=[queue("ml"), SHUT])
    assert said == (DENIED_GROUP + sentence if sentence else "")


def test_what_stood_in_a_group_before_does_not_keep_its_status_from_being_written() -> None:
    before = group(queue="shut", networkTopology=BOTH)
    after = {**before, "status": {"phase": "Running"}}
    assert refusal(ADMISSION_RULES, after, old=before, operation=Operation.UPDATE, there=[SHUT]) == ""
    gone = group(queue="nowhere")
    assert (
        refusal(ADMISSION_RULES, {**gone, "status": {"phase": "Running"}}, old=gone, operation=Operation.UPDATE) == ""
    )


def pod(annotations: dict[str, str], scheduler: str = "volcano") -> dict[str, Any]:
    document = api_object(Pod, "p", "ml", spec={"schedulerName": scheduler})
    document["metadata"]["annotations"] = annotations
    return document


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"volcano.sh/jdb-min-available": "3"}, ""),
        ({"volcano.sh/jdb-max-unavailable": "50%"}, ""),
        (
            {"volcano.sh/jdb-min-available": "0"},
            'invalid value <"0"> for volcano.sh/jdb-min-available, it must be a positive integer',
        ),
        (
            {"volcano.sh/jdb-min-available": "9" * 5000},
            f'invalid value <"{"9" * 5000}"> for volcano.sh/jdb-min-available, it must be a positive integer',
        ),
        (
            {"volcano.sh/jdb-max-unavailable": "²"},
            'invalid value strconv.Atoi: parsing "²": invalid syntax for volcano.sh/jdb-max-unavailable',
        ),
        (
            {"volcano.sh/jdb-min-available": "100%"},
            'invalid value <"100%"> for volcano.sh/jdb-min-available, it must be a valid percentage which between 1% ~ 99%',
        ),
        (
            {"volcano.sh/jdb-max-unavailable": "5%0%"},
            'invalid value strconv.Atoi: parsing "5%0": invalid syntax for volcano.sh/jdb-max-unavailable',
        ),
        (
            {"volcano.sh/jdb-min-available": "1", "volcano.sh/jdb-max-unavailable": "1"},
            "not allow configure multiple annotations <[volcano.sh/jdb-min-available volcano.sh/jdb-max-unavailable]> at "
            "same time",
        ),
    ],
)
def test_a_pods_disruption_budget_makes_sense(annotations: dict[str, str], sentence: str) -> None:
    denied = 'admission webhook "validatepod.volcano.sh" denied the request: '
    assert refusal(ADMISSION_RULES, pod(annotations)) == (denied + sentence if sentence else "")
    assert refusal(ADMISSION_RULES, pod(annotations, "another")) == ""


def test_the_queue_allocation_gate_is_added_once_where_it_is_asked_for() -> None:
    asked = pod({"scheduling.volcano.sh/queue-allocation-gate": "true"})
    gated = admit(ADMISSION_RULES, admit(ADMISSION_RULES, asked))
    assert gated["spec"]["schedulingGates"] == [{"name": "scheduling.volcano.sh/queue-allocation-gate"}]
    others = (
        pod({"scheduling.volcano.sh/queue-allocation-gate": "false"}),
        pod({}),
        pod(asked["metadata"]["annotations"], "another"),
    )
    for other in others:
        assert "schedulingGates" not in admit(ADMISSION_RULES, other)["spec"]


@pytest.mark.parametrize(
    ("flows", "sentence"),
    [
        ([("a", []), ("b", ["a"])], ""),
        ([("a", ["a"])], "jobflow Flow is not DAG"),
        ([("a", ["b"]), ("b", ["a"])], "jobflow Flow is not DAG"),
        ([("a", ["z"])], "jobflow Flow is not DAG: vertex is not defined: z"),
        ([("a", []), ("b", ["c"]), ("c", ["d"]), ("d", ["b"])], "jobflow Flow is not DAG"),
        (
            [("a", []), ("b", []), ("b", ["a"])],
            'spec.flows: Duplicate value: "b": flow names must be unique; a template that is to run twice needs a copy',
        ),
    ],
)
def test_a_flow_that_waits_for_itself_or_for_nothing_is_refused(flows: list[Any], sentence: str) -> None:
    spec = {"flows": [{"name": name, "dependsOn": {"targets": targets}} for name, targets in flows]}
    said = refusal(ADMISSION_RULES, api_object(JobFlow, "f", "ml", spec=spec))
    assert said == (
        'admission webhook "validatejobflow.volcano.sh" denied the request: ' + sentence if sentence else ""
    )


TASK = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "python"}]}}}


def hourly(task: dict[str, Any] = TASK, name: str = "c", suspend: bool = False, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"tasks": [task], **spec}}
    return api_object(CronJob, name, "ml", spec={"schedule": "@hourly", "suspend": suspend, "jobTemplate": template})


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (hourly(), ""),
        (hourly(queue="nowhere"), 'unable to find job queue: queue.scheduling.volcano.sh "nowhere" not found;'),
        (hourly(minAvailable=2), "job 'minAvailable' should not be greater than total replicas in tasks;"),
        (hourly({**TASK, "template": {"spec": {}}}), "spec.task[0].template.spec.containers: Required value."),
        (
            hourly({**TASK, "name": "worker"}, name="c" * 52),
            f"create pod with name {'c' * 52}-00000000-worker-0 validate failed [name part must be no more than 63 bytes];",
        ),
    ],
)
def test_a_template_of_which_no_job_can_be_made_is_refused_with_its_cron_job(
    document: dict[str, Any], sentence: str
) -> None:
    denied = 'admission webhook "validatecronjob.volcano.sh" denied the request: '
    assert refusal(ADMISSION_RULES, document, there=[queue("default")]) == (denied + sentence if sentence else "")


def test_a_cron_job_may_be_suspended_although_its_queue_is_closed() -> None:
    shut = {**queue("shut"), "status": {"state": "Closed"}}
    old, new = hourly(queue="shut"), hourly(queue="shut", suspend=True)
    assert refusal(ADMISSION_RULES, new, old=old, operation=Operation.UPDATE, there=[shut]) == ""
    changed = hourly(queue="shut", maxRetry=7)
    assert "status is `Closed`" in refusal(ADMISSION_RULES, changed, old=old, operation=Operation.UPDATE, there=[shut])


@pytest.mark.parametrize(
    ("name", "spec", "sentence"),
    [
        ("c", {"schedule": "*/5 * * * *", "timeZone": "Europe/Berlin"}, ""),
        ("c", {"schedule": "@every 1h30m"}, ""),
        ("c", {"schedule": "@daily"}, ""),
        ("c", {"schedule": ""}, "schedule is required, but got empty"),
        ("c", {"schedule": "* * * *"}, "schedule is not a valid cron expression"),
        ("c", {"schedule": "0 0 0 * * *"}, "schedule is not a valid cron expression"),
        ("c", {"schedule": "0 0 * * 7"}, "schedule is not a valid cron expression"),
        ("c", {"schedule": "R * * * *"}, "schedule is not a valid cron expression"),
        (
            "c",
            {"schedule": "TZ=UTC 0 * * * *"},
            "schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field",
        ),
        ("c", {"schedule": "@hourly", "timeZone": ""}, "timeZone must be nil or non-empty string, got empty string"),
        (
            "c",
            {"schedule": "@hourly", "timeZone": "Local"},
            "timeZone can't be Local, and must be defined in https://www.iana.org/time-zones",
        ),
        ("c", {"schedule": "@hourly", "timeZone": "Mars/Crater"}, "invalid timeZone"),
        ("c", {"schedule": "@hourly", "timeZone": "../etc"}, "unknown timeZone invalid timeZone"),
        (
            "c" * 53,
            {"schedule": "@hourly"},
            "cronJob name must be no more than 52 characters to accommodate job name suffix (max 63 total)",
        ),
    ],
)
def test_a_cron_job_that_could_never_run_is_refused(name: str, spec: dict[str, Any], sentence: str) -> None:
    document = api_object(CronJob, name, "ml", spec={"jobTemplate": {"spec": {"tasks": [TASK]}}, **spec})
    said = refusal(ADMISSION_RULES, document, there=[queue("default")])
    assert said == (
        'admission webhook "validatecronjob.volcano.sh" denied the request: ' + sentence if sentence else ""
    )


def test_a_hyper_node_has_members_and_patterns_that_compile() -> None:
    denied = 'admission webhook "validatehypernodes.volcano.sh" denied the request: '
    none = api_object(HyperNode, "h", spec={"tier": 1, "members": []})
    assert refusal(ADMISSION_RULES, none) == denied + (
        "spec.members: Invalid value: null: member must have at least one member"
    )
    members = [{"type": "Node", "selector": {"regexMatch": {"pattern": "node-("}}}]
    broken = refusal(ADMISSION_RULES, api_object(HyperNode, "h", spec={"tier": 1, "members": members}))
    assert broken.startswith(
        denied
        + 'spec.members.selector.regexMatch.pattern: Invalid value: "node-(": member regexMatch pattern is invalid: '
    )
