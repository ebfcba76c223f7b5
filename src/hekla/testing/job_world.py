"""A world in which one Volcano Job lives: the test plays scheduler, node and user, the real reconciler plays itself.

world = JobWorld(job("train", tasks={"worker": 4}))
world.admit().settle()              # the scheduler lets the gang in, pods are created
world.run_all().settle()
world.end("train-worker-0", 137).settle()
assert world.phase == "Restarting"
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.volcano import Job, PodGroup
from hekla.kube.commands import Command, Create
from hekla.testing.reconcilers import decide, writes
from hekla.testing.world import FakeWorld
from hekla.workloads.job import reconcile_job
from hekla.workloads.job_view import pod_group_name

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = "default"


def job(name: str = "train", *, tasks: dict[str, int] | None = None, **spec: Any) -> Document:
    """A Job as admission would leave it: every task with its minimum, the job with their sum."""
    made = [_task(task, replicas) for task, replicas in (tasks or {"worker": 2}).items()]
    given = {**spec}
    made = given.pop("task_list", made)
    least = sum(task.get("minAvailable", task["replicas"]) for task in made)
    whole = {
        "minAvailable": least,
        "queue": "default",
        "schedulerName": "volcano",
        "maxRetry": 3,
        "tasks": made,
        **given,
    }
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": whole,
    }


def task(name: str, replicas: int, **more: Any) -> Document:
    """One task of a job."""
    return {**_task(name, replicas), **more}


def _task(name: str, replicas: int) -> Document:
    container = {"name": "main", "image": "python", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {"name": name, "replicas": replicas, "minAvailable": replicas, "maxRetry": 3, "template": template}


def order(action: str, job_name: str = "train", name: str = "order") -> Document:
    """A Command for a job."""
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": job_name, "uid": f"uid-{job_name}"}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": metadata,
        "action": action,
        "target": target,
    }


class JobWorld:
    """A job, an open queue, and everybody else's part."""

    def __init__(self, document: Document, *others: Document) -> None:
        self.name: str = document["metadata"]["name"]
        document["metadata"].setdefault("uid", f"uid-{self.name}")
        queue = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": "default"},
            "status": {"state": "Open"},
        }
        self.world = FakeWorld(document, queue, *others)
        self.now = NOW
        self.created: list[str] = []
        """Names of the pods that were created, in order, each time they were."""

    # ---- what there is

    @property
    def job(self) -> Job:
        """The job as it is now."""
        found = self.world.get(Job, NAMESPACE, self.name)
        assert found is not None
        return found

    @property
    def phase(self) -> str:
        """The job's phase."""
        return self.job.status.state.phase

    @property
    def pods(self) -> dict[str, Pod]:
        """The pods that exist, by name."""
        return {pod.metadata.name: pod for pod in self.world.list(Pod, NAMESPACE)}

    @property
    def group(self) -> PodGroup | None:
        """The job's gang."""
        return self.world.get(PodGroup, NAMESPACE, pod_group_name(self.job))

    # ---- the controller

    def decide(self) -> list[Command]:
        """What the reconciler wants now."""
        return decide(reconcile_job, self.world, NAMESPACE, self.name, now=self.now)

    def step(self, upto: int | None = None) -> list[Command]:
        """One round, or its first commands only, as if the controller had died after them."""
        commands = self.decide()[:upto]
        for command in commands:
            if isinstance(command, Create) and command.kind is Pod:
                name = command.document["metadata"]["name"]
                assert name not in self.pods, f"{name} is created although it exists"
                self.created.append(name)
        self.world.execute(commands)
        return commands

    def settle(self, rounds: int = 16) -> "JobWorld":
        """Rounds, with nodes letting go of pods that are deleted and the scheduler admitting gangs, until all is quiet."""
        for _ in range(rounds):
            if not writes(self.step()) and not self.let_go():
                return self
        raise AssertionError(f"job {self.name} is not at rest after {rounds} rounds; it still wants {self.decide()}")

    # ---- the others

    def admit(self) -> "JobWorld":
        """The scheduler lets the gang into its queue, which the controller must first have made."""
        if self.group is None:
            self.step()
        return self.group_phase("Inqueue")

    def group_phase(self, phase: str) -> "JobWorld":
        """The scheduler writes the gang's phase."""
        self.world.change(PodGroup, NAMESPACE, pod_group_name(self.job), {"status": {"phase": phase}})
        return self

    def run(self, *names: str) -> "JobWorld":
        """A node runs these pods."""
        for name in names:
            patch = {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
            self.world.change(Pod, NAMESPACE, name, patch)
        return self

    def run_all(self) -> "JobWorld":
        """A node runs every pod that is pending and stays."""
        return self.run(*(name for name, pod in self.pods.items() if pod.status.phase in ("", "Pending")))

    def end(self, name: str, exit_code: int = 0) -> "JobWorld":
        """A pod's container ends."""
        ended = {"exitCode": exit_code, "finishedAt": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        status = {
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
        }
        self.world.change(Pod, NAMESPACE, name, {"spec": {"nodeName": "n1"}, "status": status})
        return self

    def restarts(self, name: str, count: int) -> "JobWorld":
        """A pod's container has been restarted so often."""
        statuses = [{"name": "main", "restartCount": count}]
        self.world.change(Pod, NAMESPACE, name, {"status": {"containerStatuses": statuses}})
        return self

    def vanish(self, name: str) -> "JobWorld":
        """A pod is gone, at once, by somebody else's hand."""
        self.world.remove(Pod, NAMESPACE, name)
        return self

    def evict(self, name: str) -> "JobWorld":
        """Somebody asks for a pod's deletion; its node has not let it go yet."""
        patch = {"metadata": {"deletionTimestamp": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}}
        self.world.change(Pod, NAMESPACE, name, patch)
        return self

    def order(self, action: str) -> "JobWorld":
        """A user gives an order."""
        self.world.put(order(action, self.name))
        return self

    def later(self, seconds: float) -> "JobWorld":
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        return self

    def let_go(self) -> bool:
        """Nodes let go of the pods that are deleted; whether there were any."""
        gone = [name for name, pod in self.pods.items() if pod.metadata.deletion_timestamp]
        for name in gone:
            self.world.remove(Pod, NAMESPACE, name)
        return bool(gone)
