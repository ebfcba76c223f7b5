"""A real Kubernetes for each test session, with Hekla's manifests applied to it and kubelets that are played.

Skipped where its programs are not: HEKLA_KUBE_BIN names the directories of etcd, kube-apiserver and kube-controller-manager.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hekla.testing.components import Cluster, Component
from hekla.testing.kubelets import Kubelets
from hekla.testing.kubernetes import PROGRAMS, ControlPlane, host_address, missing
from realkube.rivals import Rivals, on_one_control_plane


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without nodes and without anything of ours."""
    if why := missing():
        pytest.skip(why)
    with ControlPlane(tmp_path_factory.mktemp("kubernetes")) as plane:
        yield plane


@pytest.fixture(scope="session")
def kubelets(kubernetes: ControlPlane) -> Iterator[Kubelets]:
    """Two nodes of 8 CPUs, `n1` and `n2`, whose pods run their commands here."""
    with Kubelets(kubernetes.kubeconfig) as played:
        for name in ("n1", "n2"):
            played.add(name)
        yield played


@pytest.fixture(scope="session")
def cluster(kubernetes: ControlPlane, kubelets: Kubelets, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster with everything applied that `deploy/` holds, and none of our components running."""
    found = Cluster(kubernetes.kubeconfig, tmp_path_factory.mktemp("home"), host_address())
    found.install()
    return found


@pytest.fixture(scope="session")
def training(cluster: Cluster) -> Iterator[dict[str, Component]]:
    """Webhooks, controllers and scheduler, each with the token of its service account."""
    with cluster.running("webhooks") as webhooks:
        cluster.lead_to(webhooks)
        with cluster.running("controllers") as controllers, cluster.running("scheduler") as scheduler:
            scheduler.wait_for("event=leads", timeout_s=60)
            for until in ("create", "jsonpath={.status.state}=Open"):
                cluster.wait("queue/default", until)
            yield {"webhooks": webhooks, "controllers": controllers, "scheduler": scheduler}


@pytest.fixture(scope="session")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    """Kubernetes' own scheduler and ours on a control plane of their own."""
    if why := missing(*PROGRAMS, "kube-scheduler"):
        pytest.skip(why)
    with on_one_control_plane(tmp_path_factory.mktemp("rivals")) as found:
        yield found


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, whose deletion is not waited for."""
    name = f"t-{abs(hash(request.node.nodeid)) % 10**8}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this suite is marked, and is one of a group: a control plane is too much for each worker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.realkube)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(pytest.mark.xdist_group("realkube"))
