from typing import Any

import pytest

from hekla.api.volcano import Job, Queue
from hekla.apiserver.admission import Operation
from hekla.testing.admission import admit, api_object, refusal
from hekla.workloads.admission import ADMISSION_RULES

DENIED = 'admission webhook "validatejob.volcano.sh" denied the request: '
OPEN = api_object(Queue, "default", status={"state": "Open"})
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "python"}]}}
KNOWN = (
    " valid events are [* PodPending PodFailed PodEvicted Unknown TaskCompleted JobUpdated TaskFailed], valid actions are "
    "[AbortJob RestartJob RestartTask RestartPod RestartPartition TerminateJob CompleteJob ResumeJob];"
)


def task(name: str = "worker", replicas: int = 2, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "template": TEMPLATE, **more}


def job(*tasks: dict[str, Any], name: str = "train", **spec: Any) -> dict[str, Any]:
    return api_object(Job, name, "ml", spec={"tasks": list(tasks or (task(),)), **spec})


def test_a_new_job_is_completed_as_volcanos_webhook_does() -> None:
    bare = {"replicas": 3, "template": {"spec": {**TEMPLATE["spec"], "hostNetwork": True}}}
    parts = {"totalPartitions": 4, "partitionSize": 2, "minPartitions": 3}
    made = admit(
        ADMISSION_RULES, job(bare, task("b", 8, partitionPolicy=parts), plugins={"mpi": ["--master=b"]}), there=[OPEN]
    )
    spec = made["spec"]
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"], spec["minAvailable"]) == (
        "default",
        "volcano",
        3,
        9,
    )
    assert [(one["name"], one["minAvailable"], one["maxRetry"]) for one in spec["tasks"]] == [
        ("default0", 3, 3),
        ("b", 6, 3),
    ]
    assert spec["tasks"][0]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert spec["plugins"] == {"mpi": ["--master=b"], "svc": [], "ssh": []}


def test_the_master_of_mpi_may_be_named_in_two_words() -> None:
    admit(ADMISSION_RULES, job(task("lead"), plugins={"mpi": ["--master", "lead"]}), there=[OPEN])


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "min available over replicas": (
        job(minAvailable=3),
        "job 'minAvailable' should not be greater than total replicas in tasks;",
    ),
    "task min available over replicas": (
        job(task(minAvailable=3), minAvailable=2),
        "'minAvailable' is greater than 'replicas' in task: worker, job: train;",
    ),
    "no task": (api_object(Job, "train", "ml", spec={}), "No task specified in job spec"),
    "a queue that does not exist": (
        job(queue="nowhere"),
        'unable to find job queue: queue.scheduling.volcano.sh "nowhere" not found;',
    ),
    "a closed queue": (
        job(queue="shut"),
        "can only submit job to queue with state `Open`, queue `shut` status is `Closed`;",
    ),
    "the root queue": (job(queue="root"), "can not submit job to root queue;"),
    "a queue with children": (
        job(queue="research"),
        "can only submit job to leaf queue, queue `research` has 1 child queues;",
    ),
    "a task with no container": (
        job(task(template={"spec": {}})),
        "spec.task[0].template.spec.containers: Required value.",
    ),
    "a container without an image": (
        job(task(template={"spec": {"containers": [{"name": "Main"}]}})),
        'spec.task[0].template.spec.containers[0].name: Invalid value: "Main": a lowercase RFC 1123 label must consist of '
        "lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  "
        "or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?'). "
        "template.spec.containers[0].image: Required value.",
    ),
    "duplicate task names": (job(task(), task(), minAvailable=2), "duplicated task name worker;"),
    "an illegal pod name": (
        job(name="j" * 60),
        f"create pod with name {'j' * 60}-worker-0 validate failed [name part must be no more than 63 bytes];",
    ),
    "a mount of no volume": (
        job(
            task(
                template={
                    "spec": {
                        "containers": [{"name": "m", "image": "i", "volumeMounts": [{"name": "x", "mountPath": "/a"}]}]
                    }
                }
            )
        ),
        'spec.task[0].template.spec.containers[0].volumeMounts[0].name: Not found: "x".',
    ),
    "an unknown plug-in": (job(plugins={"tpu": []}), "unable to find job plugin: tpu;"),
    "mpi without a master": (job(plugins={"mpi": []}), "The specified mpi master task was not found"),
    "event and exit code": (
        job(policies=[{"event": "PodFailed", "exitCode": 1, "action": "AbortJob"}]),
        f"1 error occurred:\n\t* must not specify event and exitCode simultaneously\n\n{KNOWN}",
    ),
    "neither event nor exit code": (
        job(policies=[{"action": "AbortJob"}]),
        f"1 error occurred:\n\t* either event and exitCode should be specified\n\n{KNOWN}",
    ),
    "an event that is not for users": (
        job(policies=[{"event": "OutOfSync", "action": "AbortJob"}]),
        f'1 error occurred:\n\t* spec.policies: Invalid value: "OutOfSync": invalid policy event\n\n{KNOWN}',
    ),
    "an action that is not for users": (
        job(task(policies=[{"event": "PodFailed", "action": "SyncJob"}])),
        f'1 error occurred:\n\t* spec.tasks.policies: Invalid value: "SyncJob": invalid policy action\n\n{KNOWN}',
    ),
    "exit code zero": (
        job(policies=[{"exitCode": 0, "action": "AbortJob"}]),
        f"1 error occurred:\n\t* 0 is not a valid error code\n\n{KNOWN}",
    ),
    "an exit code twice": (
        job(policies=[{"exitCode": 3, "action": "AbortJob"}] * 2),
        f"1 error occurred:\n\t* duplicate exitCode 3\n\n{KNOWN}",
    ),
    "a timeout that is no duration": (
        job(policies=[{"event": "PodFailed", "action": "AbortJob", "timeout": "soon"}]),
        '1 error occurred:\n\t* spec.policies: Invalid value: "soon": time: invalid duration "soon"\n\n' + KNOWN,
    ),
    "an action that does not exist, for an exit code": (
        job(policies=[{"exitCode": 3, "action": "Nonsense"}]),
        f'1 error occurred:\n\t* spec.policies: Invalid value: "Nonsense": invalid policy action\n\n{KNOWN}',
    ),
    "a timeout before it began": (
        job(policies=[{"event": "PodFailed", "action": "AbortJob", "timeout": "-5s"}]),
        '1 error occurred:\n\t* spec.policies: Invalid value: "-5s": timeout must be greater than or equal to 0\n\n'
        + KNOWN,
    ),
    "an event twice": (
        job(policies=[{"event": "PodFailed", "action": "AbortJob"}] * 2),
        f"1 error occurred:\n\t* duplicate event PodFailed  across different policy\n\n{KNOWN}",
    ),
    "any event and another": (
        job(policies=[{"events": ["*", "PodFailed"], "action": "AbortJob"}]),
        f"1 error occurred:\n\t* if there's * here, no other policy should be here\n\n{KNOWN}",
    ),
    "a cycle of tasks": (
        job(task("a", 1, dependsOn={"name": ["b"]}), task("b", 1, dependsOn={"name": ["a"]})),
        "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);",
    ),
    "a dependency on nothing": (
        job(task("a", 1, dependsOn={"name": ["z"]})),
        "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);",
    ),
    "a dependency that is met sometimes": (
        job(task("a", 1), task("b", 1, dependsOn={"name": ["a"], "iteration": "sometimes"})),
        'spec.tasks[1].dependsOn.iteration: Unsupported value: "sometimes": supported values: "any", "all";',
    ),
    "partitions that do not add up": (
        job(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
        "'Replicas' are not equal to TotalPartitions*PartitionSize in task: worker, job: train",
    ),
    "a minimum that is no whole partition": (
        job(
            task(
                replicas=4,
                minAvailable=3,
                partitionPolicy={"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1},
            )
        ),
        "'MinAvailable' is not equal to MinPartitions*PartitionSize in task: worker, job: train",
    ),
    "a tier named twice": (
        job(networkTopology={"highestTierAllowed": 1, "highestTierName": "rack"}),
        "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously",
    ),
    "a mount path twice": (
        job(volumes=[{"mountPath": "/d", "volumeClaimName": "x"}] * 2),
        "duplicated mountPath: /d;",
    ),
    "a volume of nothing": (
        job(volumes=[{"mountPath": "/d"}]),
        "either VolumeClaim or VolumeClaimName must be specified;",
    ),
    "a claim both named and described": (
        job(volumes=[{"mountPath": "/d", "volumeClaimName": "x", "volumeClaim": {"storageClassName": "fast"}}]),
        "conflict: If you want to use an existing PVC, just specify VolumeClaimName."
        "If you want to create a new PVC, you do not need to specify VolumeClaimName",
    ),
    "a mount path that is missing": (
        job(volumes=[{"mountPath": "", "volumeClaimName": "x"}]),
        "mountPath is required;",
    ),
    "a claim whose name cannot be": (
        job(volumes=[{"mountPath": "/d", "volumeClaimName": "Mine"}]),
        "invalid VolumeClaimName Mine : [a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
        "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')]",
    ),
    "no partitions": (
        job(task(partitionPolicy={"totalPartitions": 0, "partitionSize": 2})),
        "'TotalPartitions' must be greater than 0 in task: worker, job: train",
    ),
    "partitions of nothing": (
        job(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 0})),
        "'PartitionSize' must be greater than 0 in task: worker, job: train",
    ),
    "a partition's tier named twice": (
        job(
            task(
                partitionPolicy={
                    "totalPartitions": 1,
                    "partitionSize": 2,
                    "networkTopology": {"highestTierAllowed": 1, "highestTierName": "rack"},
                }
            )
        ),
        "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously",
    ),
    "a task that waits for itself": (
        job(task("a", 1, dependsOn={"name": ["a"]})),
        "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);",
    ),
    "pods whose last number makes the name too long": (
        job(task("w", 101), name="j" * 58, minAvailable=1),
        f"create pod with name {'j' * 58}-w-100 validate failed [name part must be no more than 63 bytes];",
    ),
    "an event that only controllers raise": (
        job(policies=[{"event": "PodRunning", "action": "AbortJob"}]),
        f'1 error occurred:\n\t* spec.policies: Invalid value: "PodRunning": invalid policy event\n\n{KNOWN}',
    ),
    "an event that does not exist": (
        job(task(policies=[{"events": ["PodFailed", "Solstice"], "action": "AbortJob"}])),
        f'1 error occurred:\n\t* spec.tasks.policies: Invalid value: "Solstice": invalid policy event\n\n{KNOWN}',
    ),
    "several things at once": (
        job(minAvailable=9, plugins={"tpu": []}, queue="root"),
        "job 'minAvailable' should not be greater than total replicas in tasks; unable to find job plugin: tpu; "
        "can not submit job to root queue;",
    ),
    "half a processor under a NUMA policy": (
        job(
            task(
                topologyPolicy="restricted",
                template={
                    "spec": {"containers": [{"name": "m", "image": "i", "resources": {"limits": {"cpu": "1500m"}}}]}
                },
            )
        ),
        "the cpu request isn't an integer in spec.task[0] container[0].",
    ),
}
QUEUES = [
    OPEN,
    api_object(Queue, "root", status={"state": "Open"}),
    api_object(Queue, "shut", status={"state": "Closed"}),
    api_object(Queue, "research", status={"state": "Open"}),
    api_object(Queue, "nlp", spec={"parent": "research"}, status={"state": "Open"}),
]


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_job_is_refused_in_volcanos_words(case: str) -> None:
    document, sentence = CASES[case]
    assert refusal(ADMISSION_RULES, document, there=QUEUES) == DENIED + sentence.strip()


def test_a_right_job_is_let_in() -> None:
    policies = [{"event": "PodFailed", "action": "RestartJob"}, {"exitCode": 3, "action": "AbortJob"}]
    assert refusal(ADMISSION_RULES, job(policies=policies, plugins={"svc": [], "ray": []}), there=QUEUES) == ""


def test_a_template_on_the_nodes_network_with_bare_numbers_is_let_in_as_it_is() -> None:
    resources = {"requests": {"cpu": 2}}
    container = {"name": "m", "image": "i", "ports": [{"containerPort": 80}], "resources": resources}
    made = admit(
        ADMISSION_RULES, job(task(template={"spec": {"hostNetwork": True, "containers": [container]}})), there=QUEUES
    )
    assert made["spec"]["tasks"][0]["template"]["spec"]["containers"] == [container]


def test_a_queue_that_no_controller_has_seen_yet_is_as_good_as_open() -> None:
    assert refusal(ADMISSION_RULES, job(queue="new"), there=[api_object(Queue, "new")]) == ""


def test_defaults_leave_alone_what_has_not_even_the_shape_of_a_job() -> None:
    for spec in ({"tasks": "none"}, {"tasks": [1]}, {"plugins": []}, {"tasks": [{"template": {"spec": 3}}]}):
        document = api_object(Job, "train", "ml", spec=spec)
        rules = [rule for rule in ADMISSION_RULES if rule.name.startswith("mutate")]
        admit(rules, document)


def stored(*tasks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return admit(ADMISSION_RULES, job(*tasks, **spec), there=QUEUES)


UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "scaling": ({"tasks": [task(replicas=5, minAvailable=1, maxRetry=3)], "minAvailable": 1}, ""),
    "priority": ({"priorityClassName": "high"}, ""),
    "too few replicas": (
        {"tasks": [task(replicas=1, minAvailable=2, maxRetry=3)]},
        "'minAvailable' must be <= 'replicas' in task: worker",
    ),
    "min available over replicas": ({"minAvailable": 9}, "job 'minAvailable' must not be greater than total replicas"),
    "one more task": (
        {"tasks": [task(minAvailable=2, maxRetry=3), task("b")]},
        "job updates may not add or remove tasks",
    ),
    "partitions that do not add up": (
        {
            "tasks": [
                task(
                    replicas=2,
                    minAvailable=2,
                    maxRetry=3,
                    partitionPolicy={"totalPartitions": 2, "partitionSize": 2},
                )
            ]
        },
        "'Replicas' are not equal to TotalPartitions*PartitionSize in task: worker, job: train",
    ),
    "a tier named twice": (
        {"networkTopology": {"highestTierAllowed": 1, "highestTierName": "rack"}},
        "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously",
    ),
    "another image": (
        {
            "tasks": [
                task(
                    minAvailable=2,
                    maxRetry=3,
                    template={"spec": {"containers": [{"name": "main", "image": "python:4"}]}},
                )
            ]
        },
        "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` and `PriorityClassName`",
    ),
    "another queue": (
        {"queue": "research"},
        "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` and `PriorityClassName`",
    ),
}


@pytest.mark.parametrize("case", UPDATES)
def test_a_job_changes_in_few_ways_once_it_exists(case: str) -> None:
    changes, sentence = UPDATES[case]
    old = stored()
    new = {**old, "spec": {**old["spec"], **changes}}
    said = refusal(ADMISSION_RULES, new, old=old, operation=Operation.UPDATE, there=QUEUES)
    assert said == (DENIED + sentence if sentence else "")


def test_the_controller_may_name_the_claims_that_it_made() -> None:
    old = stored(volumes=[{"mountPath": "/d", "volumeClaim": {"storageClassName": "x"}}])
    named = [{**old["spec"]["volumes"][0], "volumeClaimName": "train-pvc-1"}]
    new = {**old, "spec": {**old["spec"], "volumes": named}}
    assert refusal(ADMISSION_RULES, new, old=old, operation=Operation.UPDATE) == ""


def test_a_manifest_may_be_applied_again() -> None:
    """Volcano completes new jobs only, so the second `kubectl apply` of a manifest looks like a forbidden change."""
    manifest = job(task(), task("b", 3))
    made = admit(ADMISSION_RULES, manifest, there=[OPEN])
    again = admit(ADMISSION_RULES, manifest, operation=Operation.UPDATE, old=made, there=[OPEN])
    assert again["spec"] == made["spec"]
    grown = job(task(), task("b", 5))
    assert (
        admit(ADMISSION_RULES, grown, operation=Operation.UPDATE, old=made, there=[OPEN])["spec"]["minAvailable"] == 7
    )


def test_a_zero_in_a_change_is_meant() -> None:
    made = admit(ADMISSION_RULES, job(), there=[OPEN])
    change = job(task(minAvailable=0), minAvailable=0)
    changed = admit(ADMISSION_RULES, change, operation=Operation.UPDATE, old=made, there=[OPEN])
    assert (changed["spec"]["minAvailable"], changed["spec"]["tasks"][0]["minAvailable"]) == (0, 0)
