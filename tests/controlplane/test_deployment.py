import random
from datetime import timedelta

import pytest

from hekla.api.pods import Pod
from hekla.controlplane.deployment import DESIRED, HASH_LABEL, REVISION, reconcile_deployment
from hekla.controlplane.replica_set import reconcile_replica_set, tell_refusal
from hekla.controlplane.rollout import ReplicaShare, grown, proportional, shrunk
from hekla.controlplane.views import Deployment, ReplicaSet
from hekla.kube.commands import Create
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own
from hekla.testing.world import FakeWorld


def deployment(image="x:1", replicas=3, surge="25%", unavailable="25%", **spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "progressDeadlineSeconds": 600,
            **spec,
        },
    }


class Rollout:
    """A deployment, its replica sets and their pods, moved on step by step."""

    def __init__(self, now, **spec):
        self.world = FakeWorld(deployment(**spec))
        self.now = now

    def step(self):
        commands = list(reconcile_deployment.decide(self.deployment, self.world, self.now))
        self.world.execute(commands)
        for one in self.sets:
            self.world.execute(list(reconcile_replica_set.decide(one, self.world, self.now)))

    def settle(self, ready=True):
        for _ in range(60):
            before = self.world.documents()
            self.step()
            if ready:
                self.make_ready()
            if before == self.world.documents():
                return
        raise AssertionError("it never settles")

    def make_ready(self, count=1000):
        for pod in self.pods:
            if pod.status.phase != "Running" and count:
                count -= 1
                condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                self.world.change(
                    Pod, "default", pod.metadata.name,
                    {"spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": [condition]}},
                )  # fmt: skip
        for pod in self.pods:
            if pod.metadata.deletion_timestamp:
                self.world.remove(Pod, "default", pod.metadata.name)

    def change(self, **spec):
        self.world.change(Deployment, "default", "web", {"spec": deployment(**spec)["spec"]})

    @property
    def deployment(self):
        return self.world.get(Deployment, "default", "web")

    @property
    def sets(self):
        return sorted(self.world.list(ReplicaSet), key=lambda one: int(one.metadata.annotations[REVISION]))

    @property
    def pods(self):
        return self.world.list(Pod)

    def condition(self, kind):
        return next(one for one in self.deployment.status.conditions if one.type == kind)


def test_a_deployment_makes_one_replica_set_named_by_its_template(now):
    rollout = Rollout(now)
    rollout.settle()
    (one,) = rollout.sets
    hashed = one.metadata.labels[HASH_LABEL]
    assert one.metadata.name == f"web-{hashed}"
    assert one.spec.template["metadata"]["labels"] == {"app": "web", HASH_LABEL: hashed}
    assert one.metadata.annotations[DESIRED] == "3"
    assert len(rollout.pods) == 3
    status = rollout.deployment.status
    assert (status.replicas, status.ready_replicas, status.available_replicas) == (3, 3, 3)
    assert rollout.condition("Available").status == "True"
    assert rollout.condition("Progressing").reason == "NewReplicaSetAvailable"


@pytest.mark.parametrize(("surge", "unavailable"), [("25%", "25%"), (1, 0), (0, 1), ("100%", 0), (2, 2)])
def test_a_rolling_update_keeps_its_bounds_at_every_step(now, surge, unavailable):
    dice = random.Random(4)
    replicas = 5
    rollout = Rollout(now, replicas=replicas, surge=surge, unavailable=unavailable)
    rollout.settle()
    rollout.change(image="x:2", replicas=replicas, surge=surge, unavailable=unavailable)
    largest = replicas + grown(ReplicaShare("", 0, 0), [], replicas=replicas, max_surge=100)
    for _ in range(80):
        rollout.step()
        total = sum(one.spec.replicas for one in rollout.sets)
        available = sum(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in rollout.pods)
        assert total <= largest
        assert available >= replicas - {"25%": 1, 0: 0, 1: 1, 2: 2}[unavailable]
        rollout.make_ready(dice.randrange(3))
    rollout.settle()
    old, new = rollout.sets
    assert (old.spec.replicas, new.spec.replicas) == (0, 5)
    assert rollout.condition("Progressing").reason == "NewReplicaSetAvailable"


def test_a_rollback_makes_the_old_replica_set_new_again(now):
    rollout = Rollout(now)
    rollout.settle()
    first = rollout.sets[0].metadata.name
    rollout.change(image="x:2")
    rollout.settle()
    rollout.change(image="x:1")
    rollout.settle()
    newest = rollout.sets[-1]
    assert newest.metadata.name == first
    assert newest.metadata.annotations[REVISION] == "3"
    assert newest.metadata.annotations["deployment.kubernetes.io/revision-history"] == "1"
    assert rollout.deployment.metadata.annotations[REVISION] == "3"


def test_recreate_starts_nothing_new_while_an_old_pod_runs(now):
    rollout = Rollout(now, strategy={"type": "Recreate"})
    rollout.settle()
    rollout.change(image="x:2", strategy={"type": "Recreate", "rollingUpdate": None})
    rollout.step()
    rollout.step()
    assert {pod.spec.containers[0].image for pod in rollout.pods} == {"x:1"}
    rollout.settle()
    assert {pod.spec.containers[0].image for pod in rollout.pods} == {"x:2"}


def test_a_paused_deployment_scales_but_does_not_roll(now):
    rollout = Rollout(now)
    rollout.settle()
    rollout.change(image="x:2", replicas=5, paused=True)
    rollout.settle()
    assert [pod.spec.containers[0].image for pod in rollout.pods] == ["x:1"] * 5
    assert rollout.condition("Progressing").reason == "DeploymentPaused"


def test_a_rollout_that_stands_still_misses_its_deadline(now):
    rollout = Rollout(now)
    rollout.settle(ready=False)
    assert rollout.condition("Progressing").status == "True"
    rollout.now = now + timedelta(seconds=601)
    rollout.settle(ready=False)
    progressing = rollout.condition("Progressing")
    assert (progressing.status, progressing.reason) == ("False", "ProgressDeadlineExceeded")
    rollout.settle()
    assert rollout.condition("Progressing").reason == "NewReplicaSetAvailable"


def test_history_is_kept_to_its_limit(now):
    rollout = Rollout(now, revisionHistoryLimit=2)
    for version in range(6):
        rollout.change(image=f"x:{version}", revisionHistoryLimit=2)
        rollout.settle()
    assert len(rollout.sets) == 3


def test_scaling_in_the_middle_of_a_rollout_keeps_the_proportion():
    shares = [ReplicaShare("old", 8, 8, 13), ReplicaShare("new", 5, 5, 13)]
    sizes = proportional(shares, replicas=20, max_surge=6)
    assert sum(sizes.values()) == 26
    assert sizes["old"] > sizes["new"] > 5


def test_broken_old_pods_go_first():
    sizes = shrunk(
        ReplicaShare("new", 2, 2), [ReplicaShare("a", 2, 0), ReplicaShare("b", 2, 2)], replicas=4, max_unavailable=1
    )
    assert sizes["a"] == 0


def test_the_properties_of_all_reconcilers_hold(now):
    def world():
        return FakeWorld(deployment())

    assert_converges(reconcile_deployment, world(), "default", "web", now=now)
    assert_heals(reconcile_deployment, world, "default", "web", now=now)
    assert_touches_only_its_own(reconcile_deployment, world(), "default", "web", now=now)


def test_a_deployment_repeats_why_its_pods_are_refused(now):
    rollout = Rollout(now)
    rollout.world.execute(list(reconcile_deployment.decide(rollout.deployment, rollout.world, now)))
    (one,) = rollout.sets
    rollout.world.execute(list(tell_refusal(one, Create(Pod, {}), "exceeded quota: q", rollout.world, now)))
    rollout.world.execute(list(reconcile_deployment.decide(rollout.deployment, rollout.world, now)))
    said = {one.type: one for one in rollout.deployment.status.conditions}
    assert (said["ReplicaFailure"].reason, said["ReplicaFailure"].message) == ("FailedCreate", "exceeded quota: q")
    assert said["Progressing"].reason == "NewReplicaSetCreated"
    assert said["Progressing"].message == f'Created new replica set "{one.metadata.name}"'
    rollout.settle()
    assert {one.type for one in rollout.deployment.status.conditions} == {"Available", "Progressing"}
