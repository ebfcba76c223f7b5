from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.controlplane.daemon_set import reconcile_daemon_set
from hekla.controlplane.views import DaemonSet
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own
from hekla.testing.world import FakeWorld


def node(name, *, labels=None, taints=()):
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
    }  # fmt: skip


def daemon_set(image="x", **spec):
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}], **spec}}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}}, "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        },
    }  # fmt: skip


class Cluster:
    def __init__(self, now, *objects):
        self.world, self.now = FakeWorld(*objects), now

    def step(self):
        one = self.world.get(DaemonSet, "default", "d")
        self.world.execute(list(reconcile_daemon_set.decide(one, self.world, self.now)))

    def run_pods(self):
        for pod in self.world.list(Pod):
            meta = pod.metadata
            if meta.deletion_timestamp:
                self.world.remove(Pod, "default", meta.name)
            elif not pod.spec.node_name:
                spec = self.world.document(Pod, "default", meta.name)["spec"]
                required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                name = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                condition = {"type": "Ready", "status": "True"}
                status = {"phase": "Running", "conditions": [condition]}
                self.world.change(Pod, "default", meta.name, {"spec": {"nodeName": name}, "status": status})

    def settle(self):
        for _ in range(40):
            before = self.world.documents()
            self.step()
            self.run_pods()
            if before == self.world.documents():
                return
        raise AssertionError("it never settles")

    @property
    def nodes(self):
        return sorted(pod.spec.node_name for pod in self.world.list(Pod))


def test_every_node_has_one_pod(now):
    cluster = Cluster(now, node("a"), node("b"), daemon_set())
    cluster.settle()
    assert cluster.nodes == ["a", "b"]
    cluster.world.put(node("c"))
    cluster.settle()
    assert cluster.nodes == ["a", "b", "c"]
    status = cluster.world.get(DaemonSet, "default", "d").status
    assert (status.desired_number_scheduled, status.number_ready, status.number_available) == (3, 3, 3)


def test_selector_and_taints_choose_the_nodes(now):
    taint = {"key": "mine", "effect": "NoSchedule"}
    cluster = Cluster(
        now, node("a", labels={"gpu": "yes"}), node("b"), node("c", labels={"gpu": "yes"}, taints=[taint]),
        daemon_set(nodeSelector={"gpu": "yes"}),
    )  # fmt: skip
    cluster.settle()
    assert cluster.nodes == ["a"]
    cluster.world.change(Node, "", "a", {"metadata": {"labels": {"gpu": "no"}}})
    cluster.settle()
    assert cluster.nodes == []


def test_a_cordoned_node_keeps_its_daemon(now):
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cluster = Cluster(now, node("a", taints=[taint]), daemon_set())
    cluster.settle()
    assert cluster.nodes == ["a"]


def test_an_update_takes_down_one_node_at_a_time(now):
    cluster = Cluster(now, node("a"), node("b"), node("c"), daemon_set())
    cluster.settle()
    cluster.world.change(DaemonSet, "default", "d", {"spec": daemon_set("y")["spec"]})
    for _ in range(12):
        cluster.step()
        running = [pod for pod in cluster.world.list(Pod) if pod.spec.node_name and not pod.metadata.deletion_timestamp]
        assert len(running) >= 2
        cluster.run_pods()
    assert {pod.spec.containers[0].image for pod in cluster.world.list(Pod)} == {"y"}


def test_the_properties_of_all_reconcilers_hold(now):
    def world():
        return FakeWorld(node("a"), node("b"), daemon_set())

    assert_converges(reconcile_daemon_set, world(), "default", "d", now=now)
    assert_heals(reconcile_daemon_set, world, "default", "d", now=now)
    assert_touches_only_its_own(reconcile_daemon_set, world(), "default", "d", now=now)
