"""`hekla job`, `hekla queue`, `hekla jobflow` and Volcano's own programs against a server: what they ask for and print."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.app.data_directory import DataDirectory
from hekla.cli.main import CommandError, command_paths, main
from hekla.cli.volcano.amounts import parse_amounts
from hekla.testing.programs import started

from .conftest import JOBS, PODS, QUEUES, Volcano

JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: filed, namespace: research}
spec:
  tasks:
  - replicas: 2
    template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}
"""
TEMPLATE = JOB.replace("batch.volcano.sh/v1alpha1", "flow.volcano.sh/v1alpha1").replace(
    "kind: Job", "kind: JobTemplate"
)
FLOW = """
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: nightly}
spec: {jobRetainPolicy: retain, flows: [{name: first}, {name: second, dependsOn: {targets: [first]}}]}
"""


def job(volcano: Volcano, name: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = volcano.ask("GET", f"{JOBS}/{name}")
    return found


def phase(volcano: Volcano, name: str, phase: str, **counts: int) -> None:
    volcano.status(f"{JOBS}/{name}", {"state": {"phase": phase}, **counts})


def pod(volcano: Volcano, name: str, of: str, *, node: str = "", phase: str = "Pending", **more: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    metadata = {"name": name, "labels": {"volcano.sh/job-name": of, "volcano.sh/queue-name": "default"} | more}
    spec: dict[str, Any] = {"containers": [container], **({"nodeName": node} if node else {})}
    volcano.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    volcano.status(f"{PODS}/{name}", {"phase": phase})


# ---- run


def test_run_makes_a_gang_of_equal_pods(volcano: Volcano) -> None:
    words = ("-r", "4", "-R", "cpu=2,nvidia.com/gpu=1", "-q", "default", "--", "python", "train.py", "--lr", "1")
    assert volcano.out("job", "run", "train", *words) == "job.batch.volcano.sh/train created\n"
    spec = job(volcano)["spec"]
    task = spec["tasks"][0]
    container = task["template"]["spec"]["containers"][0]
    assert (spec["minAvailable"], spec["schedulerName"], task["replicas"]) == (4, "volcano", 4)
    assert container["command"] == ["python", "train.py", "--lr", "1"]
    assert container["resources"]["requests"] == {"cpu": "2", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}, "devices need the same limit"


def test_vcctl_run_has_the_peers_defaults(volcano: Volcano) -> None:
    assert volcano.out("job", "run", "-N", "train", program="vcctl") == "run job train successfully\n"
    spec = job(volcano)["spec"]
    template = spec["tasks"][0]["template"]
    container = template["spec"]["containers"][0]
    assert (spec["minAvailable"], spec["tasks"][0]["replicas"], spec["schedulerName"]) == (1, 1, "volcano")
    assert template["metadata"]["labels"] == {"job.volcano.sh": "train"}
    assert template["spec"]["restartPolicy"] == "Never"
    assert (container["name"], container["image"], container["imagePullPolicy"]) == ("train", "busybox", "IfNotPresent")
    assert container["resources"] == {key: {"cpu": "1000m", "memory": "100Mi"} for key in ("requests", "limits")}


def test_vsub_turns_name_and_namespace_round_and_reads_its_environment(
    volcano: Volcano, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLCANO_SCHEDULER_NAME", "other")
    monkeypatch.setenv("VOLCANO_DEFAULT_IMAGE", "alpine")
    monkeypatch.setenv("VOLCANO_DEFAULT_JOB_NAMESPACE", "kube-public")
    assert volcano.out("-n", "a", "-c", "echo 'one two'", program="vsub") == "run job a successfully\n"
    made = volcano.ask("GET", JOBS.replace("default", "kube-public") + "/a")["spec"]
    container = made["tasks"][0]["template"]["spec"]["containers"][0]
    assert (made["schedulerName"], container["image"]) == ("other", "alpine")
    assert container["command"] == ["echo", "one two"]
    volcano.out("-n", "b", "-N", "default", "-i", "busybox", "-S", "volcano", program="vsub")
    assert job(volcano, "b")["spec"]["schedulerName"] == "volcano"


def test_a_file_with_a_namespace_is_run_there(volcano: Volcano) -> None:
    """vcctl itself sends it to the namespace of its flag, which the server refuses (issue 5480)."""
    volcano.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "research"}})
    file = volcano.folder / "job.yaml"
    file.write_text(JOB)
    assert volcano.out("job", "run", "-f", str(file), program="vcctl") == "run job filed successfully\n"
    assert volcano.ask("GET", JOBS.replace("default", "research") + "/filed")["metadata"]["namespace"] == "research"
    said = volcano.refusal("job", "run", "-f", str(file), "-n", "kube-public")
    assert "does not match" in said
    file.write_text(FLOW)
    said = volcano.refusal("job", "run", "-f", str(file))
    assert said == (
        f"{file} holds flow.volcano.sh/v1alpha1 JobFlow; it must hold one batch.volcano.sh/v1alpha1 Job, "
        "or use `hekla apply`"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-m", "3", "-r", "2"), 'job "x": --min is 3 but --replicas is 2; lower --min or raise --replicas'),
        (("-r", "0", "-m", "0"), 'job "x": --replicas is 0; use 1 or more'),
        (("-m", "-1"), 'job "x": --min is -1; use 0 or more'),
        (("-R", "cpu"), '--requests is "cpu": "cpu" is not RESOURCE=AMOUNT; write for instance cpu=1000m,memory=100Mi'),
        (
            ("-L", "cpu=1,memory=ten"),
            '--limits is "cpu=1,memory=ten": memory has amount "ten", which is no quantity; '
            "write a number such as 2, 500m, 100Mi or 1e3",
        ),
        (("-R", "cpu=-1"), '--requests is "cpu=-1": cpu is -1; an amount is not negative'),
        (("-R", "cpu=1,cpu=2"), '--requests is "cpu=1,cpu=2": cpu is given twice; leave one of them out'),
    ],
)
def test_wrong_flags_are_told_before_anything_is_sent(volcano: Volcano, words: tuple[str, ...], sentence: str) -> None:
    assert volcano.refusal("job", "run", "x", *words, code=2) == sentence
    assert volcano.refusal("job", "run", "-N", "x", *words, program="vcctl", code=2) == sentence
    assert volcano.ask("GET", JOBS)["items"] == []


def test_run_needs_a_name_or_a_file_and_a_name_that_is_free(volcano: Volcano) -> None:
    assert volcano.refusal("job", "run", code=2) == "say either NAME, for a job from flags, or -f FILE"
    assert volcano.refusal("job", "run", program="vcctl", code=2) == "no job is named; say which with --name NAME"
    assert volcano.refusal("-n", "x", "-c", "echo 'a", program="vsub", code=2) == (
        '--command is "echo \'a": no closing quotation; close the quotes'
    )
    volcano.out("job", "run", "train")
    assert volcano.refusal("job", "run", "train") == (
        'job "train" exists already in namespace "default"; choose another name, or delete that one'
    )


def test_amounts_are_read_with_spaces_and_without() -> None:
    assert parse_amounts("cpu=1, memory=2Gi", "-R") == {"cpu": "1", "memory": "2Gi"}
    assert parse_amounts("", "-R") == {}
    with pytest.raises(CommandError, match="is not RESOURCE=AMOUNT"):
        parse_amounts("cpu=1,", "-R")


# ---- lists


def test_vcctl_lists_jobs_in_the_peers_columns(volcano: Volcano) -> None:
    volcano.out("job", "run", "train", "-r", "3")
    phase(volcano, "train", "Running", running=2, pending=1, minAvailable=3, retryCount=1)
    created = job(volcano)["metadata"]["creationTimestamp"][:10]
    head, row = volcano.out("job", "list", program="vcctl").splitlines()
    starts = [0, 8, 23, 35, 47, 59, 65, 75, 85, 97, 107, 119]
    titles = [
        "Name",
        "Creation",
        "Phase",
        "JobType",
        "Replicas",
        "Min",
        "Pending",
        "Running",
        "Succeeded",
        "Failed",
        "Unknown",
        "RetryCount",
    ]
    assert [head.index(title) for title in titles] == starts
    cells = [row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert [*cells[:1], *cells[2:]] == ["train", "Running", "Batch", "3", "3", "1", "2", "0", "0", "0", "1"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", cells[1])
    assert cells[1][:7] == created[:7]
    assert volcano.out(program="vjobs") == f"{head}\n{row}\n"


def test_lists_are_narrowed_by_queue_scheduler_and_part_of_the_name(volcano: Volcano) -> None:
    volcano.out("queue", "create", "research")
    volcano.status(f"{QUEUES}/research", {"state": "Open"})
    volcano.out("job", "run", "train-a", "-q", "research")
    volcano.out("job", "run", "train-b", "-S", "other")

    def names(*words: str, program: str = "vcctl") -> list[str]:
        return [line.split()[0] for line in volcano.out(*words, program=program).splitlines()[1:]]

    assert names("job", "list", "-q", "research") == ["train-a"]
    assert names("job", "list", "-S", "other") == ["train-b"]
    assert names("job", "list", "--selector", "-b") == ["train-b"]
    assert names("job", "list", "-q", "research", program="hekla") == ["train-a"]
    assert names("--selector", "a-", program="vjobs") == []
    assert volcano.out("job", "list", "-n", "kube-public", program="vcctl") == "No resources found\n"
    assert volcano.run("job", "list", "-n", "kube-public", "-q", "reserch")[2] == (
        'No resources found in kube-public namespace.\nhekla: there is no queue "reserch"; did you mean "research"?\n'
    )
    assert volcano.run("job", "list", "-n", "kube-public") == (0, "", "No resources found in kube-public namespace.\n")
    everywhere = volcano.out("job", "list", "--all-namespaces", program="vcctl").splitlines()
    assert everywhere[0].split()[:2] == ["Namespace", "Name"]
    assert everywhere[1].split()[:2] == ["default", "train-a"]


def test_our_lists_come_wide_and_as_documents(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    assert volcano.out("job", "list").split("\n")[0].split() == (
        ["NAME", "PHASE", "QUEUE", "REPLICAS", "MIN", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "AGE"]
    )
    wide = volcano.out("job", "list", "-A", "-o", "wide").split("\n")[0]
    assert wide.startswith("NAMESPACE ")
    assert wide.split()[-5:] == ["RETRIES", "PRIORITY", "CLASS", "SCHEDULER", "TYPE"]
    assert [one["metadata"]["name"] for one in json.loads(volcano.out("job", "list", "-o", "json"))["items"]] == [
        "train"
    ]
    assert yaml.safe_load(volcano.out("queue", "get", "default", "-o", "yaml"))["kind"] == "Queue"
    assert volcano.out("queue", "list", "-o", "name").split() == [
        "queue.scheduling.volcano.sh/default",
        "queue.scheduling.volcano.sh/root",
    ]
    assert volcano.refusal("job", "view", "train", "-o", "xml", code=2).startswith('-o "xml" is not known')


def test_a_watched_list_shows_changes_under_the_columns_of_the_first(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    command = [sys.executable, "-m", "hekla.cli.main", "job", "list", "-w", "--kubeconfig", str(volcano.kubeconfig)]
    with started(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        head = watching.stdout.readline()
        first = watching.stdout.readline()
        phase(volcano, "train", "Running", running=1)
        assert select.select([watching.stdout], [], [], 30)[0]
        later = watching.stdout.readline()
    assert first.split()[:2] == ["train", "default"]
    assert later.split()[:2] == ["train", "Running"]
    assert later.index("Running") == head.index("PHASE")


def test_queues_are_counted_from_their_gangs(volcano: Volcano) -> None:
    """Volcano's controllers stopped counting into the status; its command counts for itself."""
    for number, said in enumerate(["Running", "Running", "Inqueue", "Pending", "Completed", "Unknown", ""]):
        volcano.group(f"g{number}", "default", said)
    lines = volcano.out("queue", "list", program="vcctl").splitlines()
    titles = ["Name", "Weight", "State", "Parent", "Inqueue", "Pending", "Running", "Unknown", "Completed"]
    assert [lines[0].index(title) for title in titles] == [0, 25, 33, 41, 49, 57, 65, 73, 81]
    assert lines[1].split() == ["default", "1", "Open", "1", "2", "2", "1", "1"]
    assert volcano.out("queue", "get", "-n", "default", program="vcctl").splitlines() == lines[:2]
    short = volcano.out("-n", "default", program="vqueues").splitlines()
    assert short[0].split() == ["Name", "Weight", "State", "Inqueue", "Pending", "Running", "Unknown"]
    assert short[1].split() == ["default", "1", "Open", "1", "2", "2", "1"]


def test_pods_are_listed_by_job_and_by_queue(volcano: Volcano) -> None:
    assert volcano.out("pod", "list", program="vcctl") == "No resources found\n"
    pod(volcano, "a-0", "a", phase="Running")
    pod(volcano, "b-0", "b", **{"volcano.sh/queue-name": "research"})
    bare = {"name": "bare", "annotations": {"scheduling.volcano.sh/queue-name": "research"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    volcano.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": bare, "spec": spec})

    def names(*words: str) -> list[str]:
        return [line.split()[0] for line in volcano.out("pod", "list", *words, program="vcctl").splitlines()[1:]]

    head, first, *_ = volcano.out("pod", "list", program="vcctl").splitlines()
    assert head.split() == ["Name", "Ready", "Status", "Restart", "Age"]
    assert first.split()[:4] == ["a-0", "0/1", "Running", "0"]
    assert [head.index(title) for title in ("Ready", "Status", "Restart")] == [11, 22, 37]
    assert names() == ["a-0", "b-0"]
    assert names("-j", "b") == ["b-0"]
    assert names("-q", "research") == ["b-0", "bare"]
    assert volcano.refusal("pod", "list", "-j", "b", "-q", "default", program="vcctl") == (
        'job "b" is in queue "research", not in "default"; leave one of --job and --queue out'
    )


def test_a_view_tells_of_spec_status_and_events(volcano: Volcano) -> None:
    volcano.out("job", "run", "train", "-r", "2", "--", "sleep", "9")
    phase(volcano, "train", "Running", running=2, version=1, minAvailable=2)
    event = {
        "metadata": {"name": "train.1"}, "type": "Normal", "reason": "CommandIssued", "message": "it was told",
        "involvedObject": {"kind": "Job", "name": "train"}, "source": {"component": "vc-controller-manager"},
        "count": 3, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    volcano.ask("POST", "/api/v1/namespaces/default/events", {"apiVersion": "v1", "kind": "Event"} | event)
    text = volcano.out("job", "view", "-N", "train", program="vcctl")
    assert text == volcano.out("job", "view", "train") == volcano.out("-n", "train", program="vjobs")
    told = [line.strip() for line in text.splitlines()]
    for line in (
        "Name:       \ttrain",
        "Min Available:     \t2",
        "Replicas:\t2",
        "Running:      \t2",
        "Phase:\tRunning",
    ):
        assert line in told, line
    assert "sleep" in told
    assert "Cpu:   \t1" in told, "amounts are written as Kubernetes writes them"
    assert re.search(r"Normal +\tCommandIssued +\t\d+d \(x3 over \d+d\) +\tvc-controller-manager +\tit was told", text)


# ---- orders


def test_suspend_and_resume_send_orders_that_their_job_owns(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    phase(volcano, "train", "Running")
    assert volcano.out("job", "suspend", "train") == "job.batch.volcano.sh/train suspended\n"
    assert volcano.out("job", "suspend", "-N", "train", program="vcctl") == ""
    assert volcano.out("-n", "train", program="vsuspend") == ""
    phase(volcano, "train", "Aborted")
    assert volcano.out("job", "resume", "train") == "job.batch.volcano.sh/train resumed\n"
    assert volcano.out("-n", "train", "-N", "default", program="vresume") == ""
    orders = volcano.orders()
    assert sorted(one["action"] for one in orders) == ["AbortJob"] * 3 + ["ResumeJob"] * 2
    target = orders[0]["target"]
    assert (target["kind"], target["name"], target["uid"]) == ("Job", "train", job(volcano)["metadata"]["uid"])
    assert orders[0]["metadata"]["ownerReferences"] == [target]
    assert orders[0]["metadata"]["name"].startswith("train-abortjob-")


@pytest.mark.parametrize("found", ["Completed", "Failed", "Terminated", "Aborted", "Aborting"])
def test_what_has_ended_or_rests_is_not_suspended(volcano: Volcano, found: str) -> None:
    volcano.out("job", "run", "train")
    phase(volcano, "train", found)
    said = volcano.refusal("job", "suspend", "train")
    assert said == f'job "train" is {found}; only a job that waits or runs can be suspended'
    assert volcano.orders() == []


def test_only_what_rests_is_resumed(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    sentence = 'job "train" is Pending; only a job that is Aborted or Aborting can be resumed'
    assert volcano.refusal("job", "resume", "train") == sentence
    assert volcano.refusal("-n", "train", program="vresume") == sentence


def test_an_unknown_job_is_named_with_a_hint(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    for command in ("view", "suspend", "resume", "delete", "logs"):
        said = volcano.refusal("job", command, "trian")
        assert said == 'job "trian" does not exist in namespace "default"; did you mean "train"?'
    assert volcano.refusal("job", "delete", "-N", "zzz", program="vcctl") == (
        'job "zzz" does not exist in namespace "default"; `hekla job list -n default` shows those that do'
    )
    assert volcano.refusal("queue", "get", "reserch") == (
        'queue "reserch" does not exist; `hekla queue list` shows those that do'
    )


def test_deleting_says_so(volcano: Volcano) -> None:
    for name in ("a", "b", "c"):
        volcano.out("job", "run", name)
    assert volcano.out("job", "delete", "a") == "job.batch.volcano.sh/a deleted\n"
    assert volcano.out("job", "delete", "-N", "b", program="vcctl") == "delete job b successfully\n"
    assert volcano.out("-n", "c", program="vcancel") == "cancel job c successfully\n"
    assert volcano.ask("GET", JOBS)["items"] == []


# ---- queues


def test_a_queue_is_created_operated_and_deleted(volcano: Volcano) -> None:
    words = ("--weight", "3", "--capability", "cpu=4", "--guarantee", "cpu=1", "--deserved", "cpu=2")
    assert volcano.out("queue", "create", "research", *words) == "queue.scheduling.volcano.sh/research created\n"
    spec = volcano.ask("GET", f"{QUEUES}/research")["spec"]
    assert (spec["weight"], spec["capability"], spec["guarantee"]) == (3, {"cpu": "4"}, {"resource": {"cpu": "1"}})
    assert volcano.out("queue", "operate", "-n", "research", "-a", "update", "-w", "7", program="vcctl") == ""
    assert volcano.ask("GET", f"{QUEUES}/research")["spec"]["weight"] == 7
    assert volcano.out("queue", "operate", "research", "-a", "close").endswith("research closed\n")
    assert volcano.out("queue", "operate", "research", "-a", "open").endswith("research opened\n")
    assert sorted(one["action"] for one in volcano.orders()) == ["CloseQueue", "OpenQueue"]
    assert volcano.out("queue", "delete", "research") == "queue.scheduling.volcano.sh/research deleted\n"


def test_vcctl_creates_a_queue_named_test_and_closes_one_that_is_to_be_closed(volcano: Volcano) -> None:
    assert volcano.out("queue", "create", program="vcctl") == ""
    assert volcano.ask("GET", f"{QUEUES}/test")["spec"]["weight"] == 1
    volcano.out("queue", "create", "-n", "shut", "-S", "Closed", program="vcctl")
    assert [(one["action"], one["target"]["name"]) for one in volcano.orders()] == [("CloseQueue", "shut")]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("create", "x", "-w", "0"), 2, 'queue "x": --weight is 0; use a number from 1 to 65535'),
        (("create", "x", "-S", "Ajar"), 2, 'queue "x": --state is "Ajar"; use Open or Closed'),
        (("create", "default"), 1,
         'queue "default" exists already; `hekla queue operate default --action update` changes its weight'),
        (("operate", "default"), 2, 'queue "default": --action is missing; use open, close or update'),
        (("operate", "default", "-a", "shut"), 2, 'queue "default": --action is "shut"; use open, close or update'),
        (("operate", "default", "-a", "update"), 2, 'queue "default": --weight is 0; use a number from 1 to 65535'),
        (("operate", "root", "-a", "close"), 1,
         'queue "root" cannot be closed: every queue is below it; close the queues that you mean'),
        (("operate", "none", "-a", "close"), 1, 'queue "none" does not exist; `hekla queue list` shows those that do'),
    ],
)  # fmt: skip
def test_what_a_queue_cannot_have_done_is_told(
    volcano: Volcano, words: tuple[str, ...], code: int, sentence: str
) -> None:
    assert volcano.refusal("queue", *words, code=code) == sentence
    assert volcano.orders() == []


def test_a_queue_with_children_or_jobs_stays(volcano: Volcano) -> None:
    volcano.out("queue", "create", "research")
    volcano.status(f"{QUEUES}/research", {"state": "Open"})
    volcano.out("queue", "create", "vision", "--parent", "research")
    assert volcano.refusal("queue", "delete", "research") == (
        'queue "research" cannot be deleted: it is the parent of vision; delete or move those first'
    )
    volcano.status(f"{QUEUES}/vision", {"state": "Open"})
    volcano.out("job", "run", "train", "-q", "vision")
    volcano.group("other", "vision", "Running")
    sentence = volcano.refusal("queue", "delete", "-n", "vision", program="vcctl")
    assert sentence.startswith(
        'queue "vision" cannot be deleted: 2 jobs in it have not ended, default/other, default/train; close it and wait'
    )
    phase(volcano, "train", "Completed")
    volcano.ask("DELETE", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups/other")
    assert volcano.out("queue", "delete", "-n", "vision", program="vcctl") == ""
    assert "can not be deleted" in volcano.refusal("queue", "delete", "default")


def test_a_queue_with_jobs_is_deleted_by_force(volcano: Volcano) -> None:
    volcano.out("queue", "create", "research")
    volcano.group("left", "research", "Running")
    assert volcano.refusal("queue", "delete", "research").startswith(
        'queue "research" cannot be deleted: 1 job in it has not ended, default/left;'
    )
    assert volcano.out("queue", "delete", "research", "--force") == "queue.scheduling.volcano.sh/research deleted\n"


def test_a_child_is_not_opened_below_a_closed_parent(volcano: Volcano) -> None:
    volcano.out("queue", "create", "research")
    volcano.out("queue", "create", "vision", "--parent", "research")
    volcano.status(f"{QUEUES}/research", {"state": "Closed"})
    assert volcano.refusal("queue", "operate", "vision", "-a", "open") == (
        'queue "vision" cannot be opened: its parent "research" is Closed; open that first'
    )


# ---- flows


@pytest.mark.parametrize(
    ("word", "text"), [("jobflow", FLOW), ("jobtemplate", TEMPLATE.replace(", namespace: research", ""))]
)
def test_flows_and_templates_are_created_listed_described_and_deleted(volcano: Volcano, word: str, text: str) -> None:
    kind = {"jobflow": "JobFlow", "jobtemplate": "JobTemplate"}[word]
    name = yaml.safe_load(text)["metadata"]["name"]
    file = volcano.folder / "flow.yaml"
    file.write_text(text + "---\n" + text.replace(f"name: {name}", "name: other"))
    said = volcano.out(word, "create", "-f", str(file), program="vcctl")
    assert said == f"Created {kind}: default/{name}\nCreated {kind}: default/other\n"
    code, out, err = volcano.run(word, "create", "-f", str(file))
    assert (code, out) == (1, "")
    assert err.count(f"Failed to create {kind}: Error from server (AlreadyExists)") == 2
    assert err.endswith("hekla: 2 of 2 objects were refused; the reasons are above\n")

    titles = {"jobflow": ["Name", "Namespace", "Phase", "Age"], "jobtemplate": ["Name", "Namespace"]}[word]
    listed = volcano.out(word, "list", "--all-namespaces", program="vcctl").splitlines()
    assert listed[0].split() == titles
    assert [line.split()[0] for line in listed[1:]] == sorted([name, "other"])
    assert volcano.out(word, "get", "-N", name, program="vcctl").splitlines()[1].split()[:2] == [name, "default"]
    assert yaml.safe_load(volcano.out(word, "describe", "-N", name, program="vcctl"))["metadata"]["name"] == name
    assert json.loads(volcano.out(word, "describe", name, "-o", "json"))["kind"] == kind
    assert volcano.out(word, "describe").count(f"kind: {kind}\n") == 2
    assert volcano.out(word, "get", name, "-o", "wide").split()[0] == "NAME"

    assert volcano.refusal(word, "get", "-N", "zzz", program="vcctl").startswith(f'{word} "zzz" does not exist')
    assert volcano.refusal(word, "delete", code=2).startswith(f"say which {word} to delete")
    assert volcano.out(word, "delete", "-N", "other", program="vcctl") == f"Deleted {kind}: default/other\n"
    file.write_text(text)
    assert volcano.out(word, "delete", "-f", str(file)) == f"Deleted {kind}: default/{name}\n"
    assert volcano.run(word, "list")[2] == "No resources found in default namespace.\n"


def test_a_file_of_another_kind_is_told_and_nothing_is_created(volcano: Volcano) -> None:
    file = volcano.folder / "flow.yaml"
    file.write_text(FLOW + "---" + JOB)
    assert volcano.refusal("jobflow", "create", "-f", str(file)) == (
        f"{file} (document 2) holds a batch.volcano.sh/v1alpha1 Job, not a flow.volcano.sh/v1alpha1 JobFlow"
    )
    assert volcano.refusal("jobflow", "create", code=2) == "no file is named; say with -f FILE which jobflow you mean"
    assert volcano.run("jobflow", "list")[1] == ""


# ---- top


def test_top_shows_who_holds_what_the_largest_first(volcano: Volcano) -> None:
    for name in ("small", "large", "over"):
        volcano.out("job", "run", name)
    pod(volcano, "small-0", "small", node="n", phase="Running")
    pod(volcano, "large-0", "large", node="n", phase="Running")
    pod(volcano, "large-1", "large", node="m", phase="Running")
    pod(volcano, "large-2", "large")
    pod(volcano, "large-3", "large", node="n", phase="Succeeded")
    phase(volcano, "over", "Completed")
    summary, head, *rows = volcano.out("job", "top").splitlines()
    assert summary == "2 jobs; pods: 3 running, 1 pending, 1 succeeded; cpu 1500m; memory 3Gi"
    assert head.split() == ["NAMESPACE", "JOB", "QUEUE", "PHASE", "PODS", "CPU", "MEMORY", "OTHERS", "NODES", "AGE"]
    assert re.split(r" {2,}", rows[0])[:9] == [
        "default", "large", "default", "Pending", "2 running, 1 pending, 1 succeeded", "1", "2Gi", "-", "2",
    ]  # fmt: skip
    assert re.split(r" {2,}", rows[1])[:2] == ["default", "small"]
    assert len(rows) == 2
    assert "over" in volcano.out("job", "top", "--ended")
    assert volcano.out("job", "top", "-n", "kube-public").startswith("0 jobs; pods: none")


def test_top_is_live_in_a_terminal_until_the_user_has_seen_enough(volcano: Volcano) -> None:
    volcano.out("job", "run", "train")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hekla.cli.main", "job", "top", "--interval", "0.1"]
    with started(
        [*command, "--kubeconfig", str(volcano.kubeconfig)], stdout=theirs, stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
    ) as watching:  # fmt: skip
        os.close(theirs)
        seen, is_told = b"", False
        while b"Completed" not in seen:
            assert select.select([ours], [], [], 30)[0], seen
            assert len(seen) < 2_000_000, seen[-4000:]
            seen += os.read(ours, 65536)
            if b"1 job; pods: none" in seen and not is_told:
                pod(volcano, "train-0", "train", node="n", phase="Running")
                phase(volcano, "train", "Completed")
                is_told = True
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # a terminal whose last program has gone cannot be read
            while select.select([ours], [], [], 30)[0]:
                os.read(ours, 65536)
        os.close(ours)
        assert watching.wait(30) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    assert b"1 running" in seen


# ---- the programs


def test_a_server_may_be_named_by_its_address(volcano: Volcano, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(volcano.folder / "home"))
    monkeypatch.setenv("HEKLA_DATA_DIR", str(volcano.folder / "data"))
    for address in (volcano.server.url, volcano.server.url.removeprefix("http://")):
        assert main(["queue", "list", "-s", address], program="vcctl") == 0
        assert "default" in volcano.capsys.readouterr().out
    assert main(["queue", "list", "-s", "127.0.0.1:1"], program="vcctl") == 3
    assert volcano.capsys.readouterr().err.startswith("vcctl: ")


def test_a_server_without_volcanos_kinds_is_told_apart_from_an_empty_one(tmp_path: Path, capsys: Any) -> None:
    from hekla.testing.api_server import LiveApiServer

    with LiveApiServer() as server:
        assert Volcano(server, tmp_path, capsys).refusal("job", "list") == (
            "the server has no jobs.batch.volcano.sh; install their definition with `kubectl apply -k deploy/`"
        )


def test_the_version_is_printed_in_the_peers_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"], program="vcctl") == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["API Version: v1alpha1", "Version: hekla 0.1.0"]


@pytest.mark.parametrize("words", [words for words in command_paths() if len(words) > 1], ids=" ".join)
def test_every_command_of_a_group_explains_itself(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: hekla {' '.join(words)}" in shown
    is_group = any(len(other) > len(words) and other[: len(words)] == words for other in command_paths())
    assert is_group or "Examples:" in shown


def test_programs_are_called_by_their_own_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("vcctl", "vsub", "vjobs", "vcancel", "vsuspend", "vresume", "vqueues"):
        assert main(["--help"], program=name) == 0
        assert capsys.readouterr().out.startswith(f"Usage: {name} ")


def test_the_status_of_any_cluster_is_told_by_its_kubeconfig(volcano: Volcano) -> None:
    volcano.out("job", "run", "train", "--", "true")
    volcano.status(f"{JOBS}/train", {"state": {"phase": "Running"}})
    lines = volcano.out("status").splitlines()
    assert lines[0].startswith("a Kubernetes v")
    assert lines[1:] == ["nodes:  0 of 0 ready", "pods:   none", "jobs:   1 Running", "queues: 2 Open"]
    assert json.loads(volcano.out("status", "-o", "json"))["jobs"] == {"Running": 1}
    assert volcano.out("status", "-o", "jsonpath={.queues.Open}") == "2"
    said = volcano.refusal("status", "--data-dir", str(volcano.folder), code=2)
    assert said == "--data-dir and --kubeconfig each name a platform; give one of them"


def test_nodes_that_have_not_joined_a_platform_yet_are_told(
    volcano: Volcano, capsys: pytest.CaptureFixture[str]
) -> None:
    DataDirectory(volcano.folder).publish(volcano.server.url, "0", nodes=3)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for joined, told in (
        (0, "0 of 3 ready, 3 still joining"),
        (1, "1 of 3 ready, 2 still joining"),
        (2, "2 of 3 ready, 1 still joining"),
        (3, "3 of 3 ready"),
        (4, "4 of 4 ready"),
    ):
        if joined:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{joined}"}}
            volcano.ask("POST", "/api/v1/nodes", node)
            volcano.status(f"/api/v1/nodes/node-{joined}", ready)
        assert main(["status", "--data-dir", str(volcano.folder)]) == 0
        assert capsys.readouterr().out.splitlines()[1] == f"nodes:  {told}"


def test_a_file_is_deleted_from_its_end_so_that_children_go_before_their_parents(volcano: Volcano) -> None:
    file = volcano.folder / "tree.yaml"
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    documents = [
        queue | {"metadata": {"name": "research"}, "spec": {}},
        queue | {"metadata": {"name": "nlp"}, "spec": {"parent": "research"}},
    ]
    file.write_text("\n---\n".join(json.dumps(one) for one in documents))
    volcano.out("apply", "-f", str(file))
    assert volcano.out("delete", "-f", str(file)).splitlines() == [
        'queue.scheduling.volcano.sh "nlp" deleted', 'queue.scheduling.volcano.sh "research" deleted',
    ]  # fmt: skip


APPLIED = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: applied}
spec:
  tasks:
  - {name: worker, replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}
"""


def test_a_job_that_is_applied_again_is_no_new_generation(volcano: Volcano, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(APPLIED)
    assert volcano.out("apply", "-f", str(file)) == "job.batch.volcano.sh/applied created\n"
    first = volcano.ask("GET", f"{JOBS}/applied")
    assert first["spec"]["tasks"][0]["minAvailable"] == 2  # which the manifest leaves out, in a list that is one value
    assert volcano.out("apply", "-f", str(file)) == "job.batch.volcano.sh/applied unchanged\n"
    assert volcano.ask("GET", f"{JOBS}/applied") == first
    file.write_text(APPLIED.replace("replicas: 2", "replicas: 3, minAvailable: 2"))
    assert volcano.out("apply", "-f", str(file)) == "job.batch.volcano.sh/applied configured\n"
    assert volcano.ask("GET", f"{JOBS}/applied")["metadata"]["generation"] == 2
