"""What an earlier release has stored goes on under this one: running jobs keep their pods, and nothing is made twice.

Nodes are nobody's here: their pods run on, as they do on a cluster while controllers and scheduler are replaced, and the test
writes what kubelets would.
"""

import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hekla.testing.platform import BARE, PlatformProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ARCHIVES = sorted((Path(__file__).parent / "upgrade").glob("*.tar.xz"))
FLAGS = ("--nodes", "0", "--simulated-nodes", "2")
PATIENCE_S = 90.0
BATCH = "/apis/batch.volcano.sh/v1alpha1/namespaces/default"
SCHEDULING = "/apis/scheduling.volcano.sh/v1beta1"
PLACES = {
    "jobs": f"{BATCH}/jobs", "pods": "/api/v1/namespaces/default/pods", "cron": f"{BATCH}/cronjobs",
    "groups": f"{SCHEDULING}/namespaces/default/podgroups", "queues": f"{SCHEDULING}/queues",
    "flows": "/apis/flow.volcano.sh/v1alpha1/namespaces/default/jobflows",
}  # fmt: skip
NEW = {
    "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "new"},
    "spec": {
        "schedulerName": "volcano", "queue": "research", "minAvailable": 2,
        "tasks": [{
            "name": "worker", "replicas": 2,
            "template": {
                "metadata": {"annotations": {"hekla.dev/simulated-duration": "1s"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "trainer"}]},
            },
        }],
    },
}  # fmt: skip


def there(platform: PlatformProcess, what: str) -> dict[str, Any]:
    """Objects by name."""
    items = platform.ask("GET", PLACES[what]).document["items"]
    return {one["metadata"]["name"]: one for one in items}


def uids(platform: PlatformProcess, what: str) -> dict[str, str]:
    return {name: one["metadata"]["uid"] for name, one in there(platform, what).items()}


def phase(platform: PlatformProcess, name: str) -> str:
    found: str = there(platform, "jobs")[name].get("status", {}).get("state", {}).get("phase", "")
    return found


def bound(platform: PlatformProcess, start: str) -> list[str]:
    """Pods that have a node, by the start of their names."""
    pods = there(platform, "pods").items()
    return [name for name, pod in pods if name.startswith(start) and pod["spec"].get("nodeName")]


def kubelet_says(platform: PlatformProcess, name: str, said: str) -> None:
    patch = {"status": {"phase": said}}
    told = platform.ask(
        "PATCH", f"{PLACES['pods']}/{name}/status", patch, Content_Type="application/strategic-merge-patch+json"
    )
    assert told.status == 200, told


def wait(platform: PlatformProcess, condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about"
        platform.ask("GET", f"{PLACES['pods']}?watch=true&timeoutSeconds=1")  # a second of whatever changes


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_a_platform_goes_on_where_an_earlier_release_stopped(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir(mode=0o700)
    with tarfile.open(archive) as packed:
        filtered: dict[str, Any] = (
            {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        )  # Debian 12's Python has none
        packed.extractall(home, **filtered)
    with PlatformProcess(home, without=BARE, flags=FLAGS) as asleep:
        before = {what: uids(asleep, what) for what in PLACES}
        phases = {name: phase(asleep, name) for name in before["jobs"]}
    assert phases == {
        "runs": "Running", "waits": "Pending", "ended": "Completed", "suspended": "Aborted", "flow-first": "Running",
    }  # fmt: skip

    with PlatformProcess(home, without=("node", "controlplane"), flags=FLAGS) as awake:
        # work that takes every controller and the scheduler: when it is done they have looked at the rest, too
        assert awake.ask("POST", PLACES["jobs"], NEW).status == 201
        wait(awake, lambda: len(bound(awake, "new-")) == 2, "the start of a new job")
        for name in bound(awake, "new-"):
            kubelet_says(awake, name, "Succeeded")
        wait(awake, lambda: phase(awake, "new") == "Completed", "its end")
        after = {what: uids(awake, what) for what in PLACES}
        kept = {name: uid for name, uid in after["pods"].items() if not name.startswith("new-")}
        assert kept == before["pods"], "a pod was lost, or made anew"
        for what in ("jobs", "cron", "queues", "flows", "groups"):
            assert before[what].items() <= after[what].items()
        assert {name: phase(awake, name) for name in phases} == phases
        jobs, pods = there(awake, "jobs"), there(awake, "pods")
        assert all("retryCount" not in jobs[name]["status"] for name in phases)
        running = [name for name, pod in pods.items() if pod["status"]["phase"] == "Running"]
        assert len(running) == 6, "three of the job, one of the flow, two of the deployment"
        assert jobs["waits"]["status"]["state"]["message"], "who waits is told why"

        kubelet_says(awake, "flow-first-worker-0", "Succeeded")
        wait(
            awake,
            lambda: len(bound(awake, "flow-second-")) == 1,
            "the next step of a flow that an earlier release began",
        )
        order = {
            "apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": {"name": "resume"},
            "action": "ResumeJob",
            "target": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "suspended", "uid": ""},
        }  # fmt: skip
        assert awake.ask("POST", "/apis/bus.volcano.sh/v1alpha1/namespaces/default/commands", order).status == 201
        wait(awake, lambda: len(bound(awake, "suspended-")) == 1, "the resumption of a job that was suspended before")
        kubelet_says(awake, "runs-worker-0", "Failed")
        wait(awake, lambda: phase(awake, "runs") != "Running", "the policy of a job that an earlier release started")
        assert there(awake, "jobs")["runs"]["status"]["retryCount"] == 1
