import pytest

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.controlplane.stateful_set import MAX_BURST, REVISION_LABEL, reconcile_stateful_set
from hekla.controlplane.templates import revision_hash
from hekla.controlplane.views import ControllerRevision, StatefulSet
from hekla.kube.commands import Create, target_of
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own
from hekla.testing.world import FakeWorld


def stateful_set(image="x", replicas=3, **spec):
    template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "replicas": replicas,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": template,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            **spec,
        },
    }


class Cluster:
    def __init__(self, now, **spec):
        self.world = FakeWorld(stateful_set(**spec))
        self.now = now

    def step(self):
        one = self.world.get(StatefulSet, "default", "db")
        self.world.execute(list(reconcile_stateful_set.decide(one, self.world, self.now)))

    def settle(self):
        for _ in range(60):
            before = self.world.documents()
            self.step()
            self.make_ready()
            if before == self.world.documents():
                return
        raise AssertionError("it never settles")

    def make_ready(self):
        for pod in self.world.list(Pod):
            if pod.metadata.deletion_timestamp:
                self.world.remove(Pod, "default", pod.metadata.name)
            elif pod.status.phase != "Running":
                condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                self.world.change(
                    Pod, "default", pod.metadata.name,
                    {"spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": [condition]}},
                )  # fmt: skip

    @property
    def names(self):
        return [pod.metadata.name for pod in self.world.list(Pod)]

    @property
    def images(self):
        return [pod.spec.containers[0].image for pod in self.world.list(Pod)]

    @property
    def status(self):
        return self.world.get(StatefulSet, "default", "db").status


def test_the_next_pod_starts_when_the_one_before_is_ready(now):
    cluster = Cluster(now)
    cluster.step()
    cluster.step()
    assert cluster.names == ["db-0"]
    cluster.make_ready()
    cluster.step()
    cluster.step()
    assert cluster.names == ["db-0", "db-1"]
    cluster.settle()
    assert cluster.names == ["db-0", "db-1", "db-2"]
    pod = cluster.world.get(Pod, "default", "db-1")
    assert (pod.spec.hostname, pod.spec.subdomain) == ("db-1", "db")
    assert pod.metadata.labels["apps.kubernetes.io/pod-index"] == "1"


def test_parallel_pods_start_at_once(now):
    cluster = Cluster(now, podManagementPolicy="Parallel")
    cluster.step()
    assert cluster.names == ["db-0", "db-1", "db-2"]


def test_pods_leave_from_the_highest_ordinal_one_by_one(now):
    cluster = Cluster(now)
    cluster.settle()
    cluster.world.change(StatefulSet, "default", "db", {"spec": {"replicas": 1}})
    cluster.step()
    leaving = [pod.metadata.name for pod in cluster.world.list(Pod) if pod.metadata.deletion_timestamp]
    assert leaving == ["db-2"]
    cluster.settle()
    assert cluster.names == ["db-0"]


def test_an_update_goes_down_from_the_highest_ordinal_to_the_partition(now):
    cluster = Cluster(now)
    cluster.settle()
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    cluster.world.change(StatefulSet, "default", "db", {"spec": stateful_set("y", updateStrategy=strategy)["spec"]})
    cluster.settle()
    assert cluster.images == ["x", "x", "y"]
    assert cluster.status.current_revision != cluster.status.update_revision
    assert (cluster.status.current_replicas, cluster.status.updated_replicas) == (2, 1)
    cluster.world.change(
        StatefulSet, "default", "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
    )
    cluster.settle()
    assert cluster.images == ["y", "y", "y"]
    assert cluster.status.current_revision == cluster.status.update_revision


def test_a_pod_below_the_partition_comes_back_as_it_was(now):
    cluster = Cluster(now)
    cluster.settle()
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    cluster.world.change(StatefulSet, "default", "db", {"spec": stateful_set("y", updateStrategy=strategy)["spec"]})
    cluster.settle()
    cluster.world.remove(Pod, "default", "db-0")
    cluster.settle()
    assert cluster.images == ["x", "x", "y"]


def test_a_failed_pod_is_replaced_under_its_name(now):
    cluster = Cluster(now, replicas=1)
    cluster.settle()
    cluster.world.change(Pod, "default", "db-0", {"status": {"phase": "Failed"}})
    cluster.settle()
    assert cluster.world.get(Pod, "default", "db-0").status.phase == "Running"


def test_each_pod_has_a_claim_of_its_own_that_outlives_it(now):
    claims = [{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]
    cluster = Cluster(now, replicas=2, volumeClaimTemplates=claims)
    cluster.settle()
    assert [one.metadata.name for one in cluster.world.list(PersistentVolumeClaim)] == ["data-db-0", "data-db-1"]
    pod = cluster.world.document(Pod, "default", "db-1")
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}}]
    cluster.world.change(StatefulSet, "default", "db", {"spec": {"replicas": 0}})
    cluster.settle()
    assert len(cluster.world.list(PersistentVolumeClaim)) == 2


def test_old_revisions_are_forgotten(now):
    cluster = Cluster(now, replicas=1, revisionHistoryLimit=1)
    for number in range(5):
        cluster.world.change(
            StatefulSet, "default", "db", {"spec": stateful_set(f"x:{number}", 1, revisionHistoryLimit=1)["spec"]}
        )
        cluster.settle()
    assert len(cluster.world.list(ControllerRevision)) == 2
    assert cluster.world.get(Pod, "default", "db-0").metadata.labels[REVISION_LABEL] == cluster.status.update_revision


def test_a_revision_has_the_name_that_a_real_cluster_gives_it():
    # Recorded from Kubernetes 1.36 (tests/kubetruth/controllers.jsonl).
    container = {
        "name": "c", "image": "x", "resources": {}, "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File", "imagePullPolicy": "Always",
    }  # fmt: skip
    template = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {
            "containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler",
        },
        "$patch": "replace",
    }  # fmt: skip
    assert revision_hash({"spec": {"template": template}}, 0) == "768cb9d5bd"


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_the_properties_of_all_reconcilers_hold(now, policy):
    def world():
        return FakeWorld(stateful_set(podManagementPolicy=policy))

    assert_converges(reconcile_stateful_set, world(), "default", "db", now=now)
    assert_heals(reconcile_stateful_set, world, "default", "db", now=now)
    assert_touches_only_its_own(reconcile_stateful_set, world(), "default", "db", now=now)


def test_events_and_revisions_say_what_kubernetes_says(now):
    document = stateful_set(replicas=1)
    document["metadata"]["annotations"] = {"kubernetes.io/change-cause": "first"}
    world = FakeWorld(document)
    made = list(reconcile_stateful_set.decide(world.list(StatefulSet)[0], world, now))
    (pod,) = [one for one in made if isinstance(one, Create) and one.kind is Pod]
    name = document["metadata"]["name"]
    assert pod.announced_as == (
        f"Create Pod {name}-0 in StatefulSet {name} successful",
        f"Create Pod {name}-0 in StatefulSet {name} failed error",
    )
    (revision,) = [one for one in made if isinstance(one, Create) and one.kind is ControllerRevision]
    assert revision.document["metadata"]["annotations"] == {"kubernetes.io/change-cause": "first"}


def test_a_claim_that_is_refused_says_for_which_pod(now):
    document = stateful_set(replicas=1, volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": {}}])
    world = FakeWorld(document)
    made = list(reconcile_stateful_set.decide(world.list(StatefulSet)[0], world, now))
    (claim,) = [one for one in made if isinstance(one, Create) and one.kind is PersistentVolumeClaim]
    name = document["metadata"]["name"]
    assert claim.announced_to == target_of(world.list(StatefulSet)[0])
    assert claim.announced_as == (
        f"Create Claim data-{name}-0 Pod {name}-0 in StatefulSet {name} success",
        f"Create Claim data-{name}-0 for Pod {name}-0 in StatefulSet {name} failed error",
    )


def test_two_billion_replicas_are_made_a_part_at_a_time(now):
    """Whoever may write one StatefulSet stood the platform still, until its memory was full."""
    cluster = Cluster(now, replicas=2_000_000_000, podManagementPolicy="Parallel")
    cluster.step()
    assert len(cluster.names) == MAX_BURST
    cluster.step()
    assert len(cluster.names) == 2 * MAX_BURST
    assert cluster.status.replicas == MAX_BURST  # counted before those of this round


def test_the_pods_behind_a_gap_that_is_being_filled_are_looked_after(now):
    cluster = Cluster(now, replicas=2 * MAX_BURST, podManagementPolicy="Parallel")
    cluster.step()
    cluster.step()
    last = f"db-{2 * MAX_BURST - 1}"
    for ordinal in range(MAX_BURST + 10):
        cluster.world.remove(Pod, "default", f"db-{ordinal}")
    cluster.world.change(Pod, "default", last, {"status": {"phase": "Failed"}})
    cluster.step()
    assert last not in cluster.names
    assert f"db-{MAX_BURST - 1}" in cluster.names
    assert f"db-{MAX_BURST}" not in cluster.names


@pytest.mark.parametrize("policy", ["Parallel", "OrderedReady"])
def test_pods_beyond_billions_of_ordinals_go(now, policy):
    cluster = Cluster(now, replicas=3, podManagementPolicy=policy)
    cluster.settle()
    cluster.world.change(StatefulSet, "default", "db", {"spec": {"replicas": 2_000_000_000, "ordinals": {"start": 2}}})
    cluster.step()
    leaving = {pod.metadata.name for pod in cluster.world.list(Pod) if pod.metadata.deletion_timestamp}
    assert leaving == (
        {"db-0", "db-1"} if policy == "Parallel" else set()
    )  # the other waits for its missing ones first
