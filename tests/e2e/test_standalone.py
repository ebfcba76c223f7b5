"""Hekla's features as processes of their own, over HTTPS, against a server that has neither scheduler nor controllers of
ours, and with exactly the rights that the manifests grant.
"""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hekla.testing.components import DEVICES, ROOT, Cluster, gang
from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    flags = ("--nodes", "2", "--cpu-per-node", "4", "--memory-per-node", "16Gi")
    with running_platform(without=("scheduler", "workloads", "serving"), flags=flags) as platform:
        cluster = Cluster(platform.kubeconfig, tmp_path)
        cluster.install()
        yield cluster


COMPLETED = "jsonpath={.status.state.phase}=Completed"


def test_every_component_works_with_exactly_the_rights_of_the_manifests(cluster: Cluster):
    kubectl = cluster.kubectl
    with cluster.running("webhooks") as webhooks:
        cluster.lead_to(webhooks)
        with cluster.running("controllers") as controllers, cluster.running("scheduler") as scheduler:
            scheduler.wait_for("event=leads", timeout_s=60)
            kubectl("wait", "queue/default", "--for=jsonpath={.status.state}=Open", "--timeout=60s")

            # webhooks that API servers reach by the Service, with the authority that was published
            said = kubectl("apply", "-f", "-", stdin=gang("bad", queue="nope"), code=1).err
            assert 'admission webhook "validatejob.volcano.sh" denied the request: unable to find job queue' in said
            kubectl("create", "-f", "-", stdin=json.dumps({
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "fresh"},
                "spec": {"weight": 1},
            }))  # fmt: skip
            kubectl("apply", "-f", "-", stdin=gang("fresh", queue="fresh"))  # no cache need have seen it yet
            cluster.wait("vcjob/fresh", COMPLETED)
            for example in ("flow", "ttl", "deployment-gang", "cron", "suspend"):
                kubectl("apply", "-f", str(ROOT / "examples" / f"{example}.yaml"))
            cluster.wait("jobflow --all", "jsonpath={.status.state.phase}=Succeed")
            cluster.wait("deployment --all", "condition=Available")

            # a gang that waits is told why; one of higher rank evicts for room
            kubectl("delete", "deployment,cronvcjob,vcjob", "--all", "--cascade=foreground")
            kubectl("apply", "-f", "-", stdin=gang("wide", cpu="100"))
            cluster.wait("vcjob/wide", "jsonpath={.status.state.reason}=NotEnoughResources")
            kubectl("delete", "vcjob", "wide")
            preempting = (
                'actions: "enqueue, allocate, preempt, backfill"\n'
                "tiers:\n- plugins: [{name: priority}, {name: gang}]\n- plugins: [{name: predicates}, {name: proportion}]\n"
            )
            patch = {"data": {"volcano-scheduler.conf": preempting}}
            cluster.ours(
                "patch",
                "configmap",
                "volcano-scheduler-configmap",
                "--type=merge",
                "-p",
                json.dumps(patch),
            )
            scheduler.wait_for("scheduler configuration taken.*preempt")
            kubectl("create", "priorityclass", "urgent", "--value=1000")
            kubectl("apply", "-f", "-", stdin=gang("low", cpu="3", seconds=300, minAvailable=1))
            cluster.wait("vcjob/low", "jsonpath={.status.running}=2")
            kubectl("apply", "-f", "-", stdin=gang("high", cpu="3", minAvailable=1, priorityClassName="urgent"))
            cluster.wait("vcjob/high", COMPLETED)
            assert kubectl("get", "events", "--field-selector=reason=Evict", "-o", "name").out

            refusals = {
                one: each.refusals
                for one, each in (("scheduler", scheduler), ("controllers", controllers), ("webhooks", webhooks))
            }
            assert not any(refusals.values()), refusals
            assert (scheduler.stop(), controllers.stop()) == (0, 0)
            leases = cluster.ours("get", "leases", "-o", "json").json["items"]
            assert {one["metadata"]["name"]: one["spec"]["holderIdentity"] for one in leases} == {
                "vc-controller-manager": "", "volcano": "",
            }  # fmt: skip
        assert webhooks.stop() == 0


def test_devices_are_given_with_exactly_the_rights_of_the_manifest(cluster: Cluster):
    kubectl = cluster.kubectl
    kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
    with cluster.running("controllers") as controllers, cluster.running("scheduler") as scheduler:
        scheduler.wait_for("event=leads", timeout_s=60)
        kubectl("apply", "-f", "-", stdin=DEVICES.replace("NODE", "node-1"))
        cluster.wait("resourceclaim/gpu", "jsonpath={.status.reservedFor[0].name}=takes-gpu")
        kubectl("wait", "pod/takes-gpu", "--for=jsonpath={.spec.nodeName}=node-1", "--timeout=60s")
        assert not scheduler.refusals
        assert not controllers.refusals
        assert (scheduler.stop(), controllers.stop()) == (0, 0)


def test_kinds_that_are_missing_hold_up_nobody_else_and_are_followed_once_they_come(cluster: Cluster):
    kubectl = cluster.kubectl
    kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
    kubectl(
        "delete", "crd", "jobflows.flow.volcano.sh", "jobtemplates.flow.volcano.sh", "hypernodes.topology.volcano.sh"
    )
    with cluster.running("controllers") as controllers, cluster.running("scheduler") as scheduler:
        controllers.wait_for(r'event="cannot follow a kind".*kind=jobflows.flow.volcano.sh', timeout_s=60)
        scheduler.wait_for(r'event="cannot follow a kind".*kind=hypernodes.topology.volcano.sh', timeout_s=60)
        assert "hekla install --render" in controllers.printed
        kubectl("apply", "-f", "-", stdin=gang("plain"))
        cluster.wait("vcjob/plain", COMPLETED)
        cluster.install()
        kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
        controllers.wait_for(r'event="follows the kind now".*kind=jobflows.flow.volcano.sh', timeout_s=60)
        kubectl("apply", "-f", str(ROOT / "examples" / "flow.yaml"))
        cluster.wait("jobflow --all", "jsonpath={.status.state.phase}=Succeed")


def test_a_component_without_rights_says_so_and_goes_on_trying(cluster: Cluster):
    kubectl = cluster.kubectl
    cluster.ours("create", "serviceaccount", "nobody")
    with cluster.running("scheduler", "--no-leader-elect", account="nobody") as scheduler:
        told = scheduler.wait_for(r'event="cannot follow a kind"[^\n]*kind=pods [^\n]*', timeout_s=60)
        assert "is forbidden" in told
        assert "the account lacks the right" in told
        with cluster.running("scheduler", account="nobody") as candidate:
            assert "is forbidden" in candidate.wait_for(r'event="lease not taken"[^\n]*', timeout_s=60)
            assert candidate.process.poll() is None
            assert candidate.stop() == 0
        binding = (
            "clusterrolebinding",
            "nobody",
            "--clusterrole=cluster-admin",
            "--serviceaccount=hekla-system:nobody",
        )
        kubectl("create", *binding)
        scheduler.wait_for(r'event="follows the kind now"[^\n]*kind=pods', timeout_s=60)
        assert scheduler.stop() == 0


EVENTS = (
    "get", "pods", "--all-namespaces", "--watch", "--output-watch-events",
    '-o=jsonpath={.type} {.object.metadata.name} {.object.metadata.uid} [{.object.spec.nodeName}] {.object.status.phase}{"\\n"}',
)  # fmt: skip
EVENT = re.compile(r"(ADDED|MODIFIED|DELETED) (\S+) (\S+) \[(\S*)\] (\w+)")
TAKES_OVER_S, CPUS_PER_NODE = 20.0, 4


class Bindings:
    """Every revision of every pod that the server has told of, in order: who was bound where, and when how much was held."""

    def __init__(self, printed: str) -> None:
        self.node_of: dict[str, str] = {}
        self.bound_names: set[str] = set()
        self.moved: list[str] = []
        self.most_held: Counter[str] = Counter()
        held: dict[str, str] = {}
        for kind, name, uid, node, phase in EVENT.findall(printed):
            if node and self.node_of.setdefault(uid, node) != node:
                self.moved.append(name)
            if not node and uid in self.node_of:
                self.moved.append(name)
            if node:
                self.bound_names.add(name)
            is_over = kind == "DELETED" or phase in {"Succeeded", "Failed"}
            if node and not is_over and not name.startswith("late-"):  # which ask for next to nothing
                held[uid] = node
            else:
                held.pop(uid, None)
            self.most_held |= Counter(held.values())


def test_another_replica_takes_over_within_twenty_seconds_and_no_pod_is_bound_twice(cluster: Cluster):
    """Killed in the middle of its work. That no pod is bound twice is seen in the server's own log of revisions: no pod
    changes its node, and at no revision is a node overfull, which pods decided by two schedulers would make it.
    """
    kubectl = cluster.kubectl
    kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
    jobs = 30
    with (
        kubectl.running(*EVENTS) as watched,
        cluster.running("controllers") as controllers,
        cluster.running("scheduler") as first,
    ):
        first.wait_for("event=leads", timeout_s=60)
        with cluster.running("scheduler") as second:
            items = [json.loads(gang(f"g{number}", seconds=0.5)) for number in range(jobs)]
            kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
            cluster.wait("vcjob/g0", COMPLETED)
            first.process.kill()
            killed_s = time.monotonic()
            kubectl(
                "apply", "-f", "-", stdin=gang("late", cpu="10m", seconds=0.1, priorityClassName="system-node-critical")
            )
            watched.wait_for(r"late-w-1 \S+ \[node-\d\]", timeout_s=120)
            took_s = time.monotonic() - killed_s
            cluster.wait("vcjob --all", COMPLETED, timeout_s=120)
            assert not second.refusals
            assert not controllers.refusals
            seen = Bindings(watched.printed)
            assert seen.bound_names == {f"g{number}-w-{pod}" for number in range(jobs) for pod in (0, 1)} | {
                "late-w-0",
                "late-w-1",
            }
            assert len(seen.node_of) == 2 * jobs + 2, "a pod was made twice"
            assert not seen.moved, "a pod was bound twice"
            assert max(seen.most_held.values()) <= CPUS_PER_NODE, f"a node was overfull: {seen.most_held}"
            print(f"another replica had bound a pod {took_s:.1f} s after the first was killed")
            assert took_s < TAKES_OVER_S
            assert second.stop() == 0


def pods_of(kubectl: Kubectl, job: str) -> dict[str, str]:
    """The uid of each pod of a job, by name; those on their way out are not its own any more."""
    items = kubectl("get", "pods", "-l", f"volcano.sh/job-name={job}", "-o", "json").json["items"]
    return {
        one["metadata"]["name"]: one["metadata"]["uid"] for one in items if "deletionTimestamp" not in one["metadata"]
    }


def scheduled(kubectl: Kubectl) -> list[str]:
    """The uids of pods that were bound, as events tell, as often as they tell it."""
    events = kubectl("get", "events", "--field-selector=reason=Scheduled", "-o", "json").json["items"]
    return sorted(one["involvedObject"]["uid"] for one in events if one["involvedObject"]["kind"] == "Pod")


def test_jobs_run_on_while_controllers_and_scheduler_give_way_to_the_next_version(cluster: Cluster):
    kubectl = cluster.kubectl
    kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
    restart = [{"event": "PodFailed", "action": "RestartPod"}]
    with cluster.running("controllers") as controllers, cluster.running("scheduler") as scheduler:
        items = [
            json.loads(gang(name, cpu="500m", seconds=600, policies=restart)) for name in ("steady", "grows", "falls")
        ]
        items.append(json.loads(gang("waits", cpu="100")))
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for name in ("steady", "grows", "falls"):
            cluster.wait(f"vcjob/{name}", "jsonpath={.status.running}=2")
        cluster.wait("vcjob/waits", "jsonpath={.status.state.reason}=NotEnoughResources")
        before = {name: pods_of(kubectl, name) for name in ("steady", "grows", "falls")}
        assert (scheduler.stop(), controllers.stop()) == (0, 0)

    # nobody is there: one job is scaled, a pod of another fails, and a new one is asked for
    patch = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3}]
    kubectl("patch", "vcjob", "grows", "--type=json", "-p", json.dumps(patch))
    kubectl("exec", "falls-w-0", "--", "sh", "-c", "kill -9 $(pidof sleep)", code=None)
    cluster.wait("pod/falls-w-0", "jsonpath={.status.phase}=Failed")
    kubectl("apply", "-f", "-", stdin=gang("late"))

    with (
        cluster.running("controllers", version="99.0.0") as controllers,
        cluster.running("scheduler", version="99.0.0") as scheduler,
    ):
        cluster.wait("vcjob/late", COMPLETED)
        cluster.wait("vcjob/grows", "jsonpath={.status.running}=3")
        cluster.wait("vcjob/falls", "jsonpath={.status.retryCount}=1")
        cluster.wait("vcjob/falls", "jsonpath={.status.running}=2")
        after = {name: pods_of(kubectl, name) for name in before}
        assert after["steady"] == before["steady"]
        assert {name: after["grows"][name] for name in before["grows"]} == before["grows"]
        assert set(after["grows"]) == {"grows-w-0", "grows-w-1", "grows-w-2"}
        assert after["falls"]["falls-w-1"] == before["falls"]["falls-w-1"]
        assert after["falls"]["falls-w-0"] != before["falls"]["falls-w-0"]
        statuses = kubectl("get", "vcjob", "-o", "json").json["items"]
        state = {one["metadata"]["name"]: one["status"] for one in statuses}
        assert {name: one.get("retryCount", 0) for name, one in state.items()} == {
            "steady": 0, "grows": 0, "falls": 1, "waits": 0, "late": 0,
        }  # fmt: skip
        assert all(one.get("version", 0) == 0 for one in state.values())
        made = [*before.values(), *after.values(), pods_of(kubectl, "late")]
        wanted = {uid for pods in made for uid in pods.values()}
        until = time.monotonic() + 30.0
        while len(bound := scheduled(kubectl)) < len(wanted):  # events come late on a full machine
            assert time.monotonic() < until, f"{len(bound)} of {len(wanted)} pods were told as bound"
        assert bound == sorted(wanted), "a pod was made or bound twice"
        assert not scheduler.refusals
        assert not controllers.refusals
        assert (scheduler.stop(), controllers.stop()) == (0, 0)


def test_serving_works_with_exactly_the_rights_of_its_manifest(cluster: Cluster):
    kubectl = cluster.kubectl
    with (
        cluster.running("webhooks") as webhooks,
        cluster.running("scheduler") as scheduler,
        cluster.running("serving") as serving,
    ):
        cluster.lead_to(webhooks)
        scheduler.wait_for("event=leads", timeout_s=60)
        for example in ("booster", "leader-worker-set", "scale-to-zero"):
            kubectl("apply", "-f", str(ROOT / "examples" / "serving" / f"{example}.yaml"))
        cluster.wait("modelbooster/qwen", "condition=Active", timeout_s=180)
        cluster.wait("modelserving/ring", "condition=Available", timeout_s=180)
        wanted = f"serving.hekla.dev/wanted-at={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        kubectl("annotate", "modelserving", "lazy", wanted)
        cluster.wait("modelserving/lazy", "jsonpath={.status.availableReplicas}=1", timeout_s=180)
        assert kubectl("get", "events", "--field-selector=reason=Scaled", "-o", "name").out
        kubectl("delete", "modelbooster,leaderworkerset", "--all", "--cascade=foreground")
        assert not serving.refusals
        assert serving.stop() == 0
        leases = cluster.ours("get", "leases", "-o", "json").json["items"]
        assert {one["metadata"]["name"]: bool(one["spec"]["holderIdentity"]) for one in leases} == {
            "kthena.controller-manager": False, "volcano": True,
        }  # fmt: skip
