"""A world in which one ModelServing lives: the test plays nodes and users, the real reconciler plays itself.

world = ServingWorld(serving("llama", replicas=2, roles=[role("prefill"), role("decode", replicas=2, workers=1)]))
world.settle().run_all().settle()
assert world.status["availableReplicas"] == 2
world.fail("llama-0-decode-1-0").settle()
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hekla.api.apps import ControllerRevision
from hekla.api.core import Pod, Service
from hekla.api.kthena import ModelServing
from hekla.api.meta import Document
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Command
from hekla.serving.model_serving import reconcile_model_serving
from hekla.serving.serving_recovery import YOUNGEST_S
from hekla.testing.reconcilers import decide, writes
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = "default"


def serving(name: str = "llama", *, roles: list[Document] | None = None, replicas: int = 1, **spec: Any) -> Document:
    """A ModelServing as admission would leave it; `template` is merged with the roles."""
    given = dict(spec)
    metadata = {"name": name, "namespace": NAMESPACE, **given.pop("metadata", {})}
    template = {"roles": roles or [role("server")], **given.pop("template", {})}
    return {
        "apiVersion": ModelServing.kind_info.api_version,
        "kind": "ModelServing",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "schedulerName": "volcano",
            "recoveryPolicy": "RoleRecreate",
            "template": template,
            **given,
        },
    }


def role(name: str, *, replicas: int = 1, workers: int = 0, image: str = "engine:1", **more: Any) -> Document:
    """A role of one GPU a pod."""
    pod = {"metadata": {"labels": {"app": name}}, "spec": pod_spec(image)}
    made = {"name": name, "replicas": replicas, "entryTemplate": pod, "workerReplicas": workers}
    return {**made, **({"workerTemplate": {"spec": pod_spec(image)}} if workers else {}), **more}


def pod_spec(image: str = "engine:1") -> Document:
    """A pod of one container that asks for one GPU, under limits only."""
    resources = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    return {"containers": [{"name": "engine", "image": image, "resources": resources}]}


class ServingWorld:
    """A ModelServing, and everybody else's part."""

    def __init__(self, document: Document, *others: Document) -> None:
        self.name: str = document["metadata"]["name"]
        document["metadata"].setdefault("uid", f"uid-{self.name}")
        self.world = FakeWorld(document, *others)
        self.now = NOW

    # ---- what there is

    @property
    def serving(self) -> ModelServing:
        """The ModelServing as it is now."""
        found = self.world.get(ModelServing, NAMESPACE, self.name)
        assert found is not None
        return found

    @property
    def status(self) -> Document:
        """Its status, as written."""
        written: Document = self.world.document(ModelServing, NAMESPACE, self.name).get("status", {})
        return written

    @property
    def pods(self) -> dict[str, Pod]:
        """The pods that exist, by name."""
        return {pod.metadata.name: pod for pod in self.world.list(Pod, NAMESPACE)}

    @property
    def pod_groups(self) -> dict[str, PodGroup]:
        """The gangs that exist, by name."""
        return {one.metadata.name: one for one in self.world.list(PodGroup, NAMESPACE)}

    @property
    def services(self) -> list[str]:
        """The names of the services that exist."""
        return [one.metadata.name for one in self.world.list(Service, NAMESPACE)]

    @property
    def revisions(self) -> list[str]:
        """The names of the revisions that are remembered."""
        return [one.metadata.name for one in self.world.list(ControllerRevision, NAMESPACE)]

    def images(self) -> dict[str, str]:
        """By pod, the image that it was made with."""
        return {name: pod.spec.containers[0].image for name, pod in self.pods.items()}

    def condition(self) -> str:
        """The condition that holds."""
        return next((one["type"] for one in self.status.get("conditions", ()) if one["status"] == "True"), "")

    # ---- the controller

    def step(self, upto: int | None = None) -> list[Command]:
        """One round, or its first commands only, as if the controller had died after them."""
        commands = decide(reconcile_model_serving, self.world, NAMESPACE, self.name, now=self.now)[:upto]
        self.world.execute(commands)
        return commands

    def settle(self, rounds: int = 40, *, each_round: Callable[[], None] = lambda: None) -> "ServingWorld":
        """Rounds, with nodes letting go of pods that are deleted, until all is quiet."""
        for _ in range(rounds):
            if not writes(self.step()) and not self.let_go():
                return self
            each_round()
        raise AssertionError(f"{self.name} is not at rest after {rounds} rounds; it still wants {self.step()}")

    def roll(self, rounds: int = 60, *, each_round: Callable[[], None] = lambda: None) -> "ServingWorld":
        """Rounds in which nodes also run every new pod at once, until all is quiet."""
        for _ in range(rounds):
            changed = bool(writes(self.step()))
            each_round()
            changed = self.let_go() or changed
            if not self.start(*self.waiting()) and not changed:
                return self
        raise AssertionError(f"{self.name} is not at rest after {rounds} rounds")

    # ---- the others

    def waiting(self) -> list[str]:
        """Pods that no node has started yet."""
        return [name for name, pod in self.pods.items() if pod.status.phase in ("", "Pending")]

    def start(self, *names: str) -> bool:
        """A node runs these pods, and they are ready; whether there were any."""
        for name in names:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.world.change(Pod, NAMESPACE, name, {"spec": {"nodeName": "n1"}, "status": status})
        return bool(names)

    def run_all(self) -> "ServingWorld":
        """A node runs every pod that waits."""
        self.start(*self.waiting())
        return self

    def fail(self, name: str) -> "ServingWorld":
        """A pod fails that has served for a while."""
        self.later(YOUNGEST_S)
        self.world.change(Pod, NAMESPACE, name, {"status": {"phase": "Failed", "conditions": []}})
        return self

    def restart(self, name: str, *, is_ready: bool = False) -> "ServingWorld":
        """A container ended now and was started again, of a pod that has served for a while."""
        self.later(YOUNGEST_S)
        ended = {"terminated": {"exitCode": 1, "finishedAt": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"name": "engine", "restartCount": 1, "lastState": ended}],
        }
        self.world.change(Pod, NAMESPACE, name, {"spec": {"nodeName": "n1"}, "status": status})
        return self

    def slow_probe(self, name: str) -> "ServingWorld":
        """A pod whose container ended once, and that was ready since, is not ready now: its probe took too long."""
        stamp = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        [status] = self.pods[name].status.container_statuses
        assert status.last_state is not None
        assert status.last_state.terminated is not None
        running = {"running": {"startedAt": status.last_state.terminated.finished_at}}
        statuses = [
            {"name": "engine", "restartCount": 1, "state": running, "lastState": msgspec.to_builtins(status.last_state)}
        ]
        ready = [{"type": "Ready", "status": "False", "lastTransitionTime": stamp}]
        self.world.change(Pod, NAMESPACE, name, {"status": {"conditions": ready, "containerStatuses": statuses}})
        return self

    def delete(self, name: str) -> "ServingWorld":
        """Somebody asks for a pod's deletion; its node has not let it go yet."""
        stamp = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.world.change(Pod, NAMESPACE, name, {"metadata": {"deletionTimestamp": stamp}})
        return self

    def vanish(self, *names: str) -> "ServingWorld":
        """Pods are gone, at once, by somebody else's hand."""
        for name in names:
            self.world.remove(Pod, NAMESPACE, name)
        return self

    def let_go(self) -> bool:
        """Nodes let go of the pods that are deleted; whether there were any."""
        gone = [name for name, pod in self.pods.items() if pod.metadata.deletion_timestamp]
        self.vanish(*gone)
        return bool(gone)

    def change(self, **spec: Any) -> "ServingWorld":
        """A user changes the spec."""
        generation = self.serving.metadata.generation + 1
        self.world.change(ModelServing, NAMESPACE, self.name, {"metadata": {"generation": generation}, "spec": spec})
        return self

    def change_roles(self, *roles: Document) -> "ServingWorld":
        """A user changes the roles."""
        return self.change(template={"roles": list(roles)})

    def later(self, seconds: float) -> "ServingWorld":
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        return self


def groups_of(names: Iterable[str], serving_name: str = "llama") -> list[int]:
    """The ordinals of the groups that pods are of."""
    return sorted({int(name.removeprefix(f"{serving_name}-").split("-", 1)[0]) for name in names})
