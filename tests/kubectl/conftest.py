"""One whole platform for all tests that let kubectl see pods run; each test has a namespace of its own."""

import re
import shutil
from collections.abc import Iterator

import pytest

from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import PlatformProcess, running_platform

FLAGS = ("--nodes", "2", "--gpus-per-node", "8", "--cpu-per-node", "32")


@pytest.fixture(scope="session")
def whole_platform() -> Iterator[PlatformProcess]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with running_platform(without=(), flags=FLAGS) as platform:
        yield platform


@pytest.fixture(scope="session")
def administrator(whole_platform: PlatformProcess, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    kubectl = Kubectl(whole_platform.kubeconfig, home=tmp_path_factory.mktemp("kubectl-home"))
    for node in ("node/node-1", "node/node-2"):  # kubectl waits for the creation of one thing only
        kubectl("wait", node, "--for=create", "--timeout=30s")
    kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=30s")
    return kubectl


@pytest.fixture
def kubectl(administrator: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl in a namespace that is this test's own, ready for pods."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    namespace = words[:40].strip("-") + "-ns"
    administrator("create", "namespace", namespace)
    own = administrator.within(namespace)
    own("wait", "--for=create", "serviceaccount/default", "--timeout=20s")
    yield own
    administrator("delete", "namespace", namespace, "--wait=false")
