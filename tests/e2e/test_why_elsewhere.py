"""`hekla why`, `hekla snapshot` and `hekla scheduler config` about a scheduler that is a process of its own, over HTTPS with
RBAC on: the API server passes questions on, and everybody hears what they may.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hekla.api.explanation import EXPLANATION, SNAPSHOT
from hekla.app.scheduler_elsewhere import API_SERVICE
from hekla.cli.main import main
from hekla.scheduler.snapshot import unpacked
from hekla.testing.components import Cluster, gang
from hekla.testing.platform import running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    flags = ("--nodes", "2", "--cpu-per-node", "4", "--memory-per-node", "16Gi")
    with running_platform(without=("scheduler", "serving"), flags=flags) as platform:
        cluster = Cluster(platform.kubeconfig, tmp_path_factory.mktemp("home"))
        cluster.install()
        cluster.kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
        yield cluster


def said(capsys: pytest.CaptureFixture[str], kubeconfig: Path, *words: str, code: int = 0) -> str:
    assert main([*words, "--kubeconfig", str(kubeconfig)]) == code, capsys.readouterr().err
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def reader_of(cluster: Cluster, namespace: str) -> Path:
    """Somebody who may look at one namespace and no further."""
    cluster.ours("create", "serviceaccount", f"reads-{namespace}")
    cluster.kubectl(
        "create", "rolebinding", "reader", f"--namespace={namespace}", "--clusterrole=view",
        f"--serviceaccount=hekla-system:reads-{namespace}",
    )  # fmt: skip
    return cluster.kubeconfig_of(f"reads-{namespace}")


def test_the_scheduler_elsewhere_answers_everybody_what_they_may_hear(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    kubectl, admin = cluster.kubectl, cluster.kubeconfig
    with cluster.running("scheduler") as scheduler:
        scheduler.wait_for("event=answers", timeout_s=60)
        kubectl("create", "namespace", "theirs")
        kubectl("create", "priorityclass", "high", "--value", "10")
        # not by age alone: two jobs of one second go by their names
        kubectl.within("theirs")("apply", "-f", "-", stdin=gang("first", cpu="100", priorityClassName="high"))
        cluster.wait("vcjob/first -n theirs", "jsonpath={.status.state.reason}=NotEnoughResources")
        kubectl("apply", "-f", "-", stdin=gang("ours", cpu="100"))
        cluster.wait("vcjob/ours", "jsonpath={.status.state.reason}=NotEnoughResources")

        # a client certificate of the administrator's: nothing but the API server's word says who it is
        told = said(capsys, admin, "why", "vcjob/ours")
        assert "waits" in told
        assert "ahead: theirs/first" in told

        # a service account's token, with the role `view` in one namespace
        reader = reader_of(cluster, "default")
        told = said(capsys, reader, "why", "vcjob/ours", "-n", "default")
        assert "ahead: a job of another namespace" in told
        assert "theirs" not in told
        assert "forbidden" in said(capsys, reader, "why", "vcjob/first", "-n", "theirs", code=1)
        assert "forbidden" in said(capsys, reader, "snapshot", "-o", str(tmp_path / "no.hekla"), code=1)

        # kubectl needs no Hekla for it
        raw = kubectl("get", "--raw", EXPLANATION.path("default", "vcjob.ours")).json
        assert raw["verdict"] == "Waits"
        assert "does not exist" in said(capsys, admin, "why", "vcjob/nobody", code=1)

        # the decisions are in the snapshot, and a replay takes the same
        file = tmp_path / "now.hekla"
        assert "jobs wait" in said(capsys, admin, "snapshot", "-o", str(file))
        assert unpacked(file.read_bytes()).decisions
        assert main(["replay", str(file)]) == 0
        capsys.readouterr()
        assert "allocate" in said(capsys, admin, "scheduler", "config")

        assert not scheduler.refusals
        assert scheduler.stop() == 0
    assert "no scheduler runs here" in kubectl("get", "--raw", SNAPSHOT.path(name="volcano"), code=1).err


def test_nobody_but_an_api_server_is_answered(cluster: Cluster):
    """A user's certificate, signed by the cluster's own authority, opens no door that takes names on trust."""
    import ssl
    import urllib.request

    kubectl = cluster.kubectl
    with cluster.running("scheduler") as scheduler:
        url = scheduler.wait_for(r"event=answers address=(https://127.0.0.1:\d+)", timeout_s=60)
        registered = yaml.safe_load(kubectl("get", "apiservice", "v1.scheduling.hekla.dev", "-o", "yaml").out)
        assert registered["spec"]["service"]["name"] == "hekla-scheduler-answers"
        pki = cluster.kubeconfig.parent / "pki"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            url + SNAPSHOT.path(name="volcano"), headers={"X-Remote-User": "root", "X-Remote-Group": "system:masters"}
        )
        for pair in ("admin", ""):
            if pair:
                context.load_cert_chain(pki / f"{pair}.crt", pki / f"{pair}.key")
            with pytest.raises(OSError, match=r"alert|EOF|reset|closed|CERTIFICATE"):
                urllib.request.urlopen(request, context=context, timeout=30).read()


def test_a_scheduler_that_ends_takes_its_registration_back(cluster: Cluster):
    """On a real cluster no namespace can be deleted while a group is registered that nobody answers for."""
    kubectl = cluster.kubectl
    with cluster.running("scheduler") as first:
        first.wait_for("event=answers", timeout_s=60)
        kubectl("wait", f"apiservice/{API_SERVICE}", "--for=jsonpath={.spec.service.name}", "--timeout=30s")
        assert not first.refusals
        assert first.stop() == 0
    assert "NotFound" in kubectl("get", "apiservice", API_SERVICE, code=1).err
    with cluster.running("scheduler") as second:
        kubectl("wait", f"apiservice/{API_SERVICE}", "--for=create", "--timeout=30s")
        theirs = [{"op": "replace", "path": "/spec/caBundle", "value": "YW5vdGhlcg=="}]
        kubectl("patch", "apiservice", API_SERVICE, "--type=json", "-p", json.dumps(theirs))
        assert second.stop() == 0
    assert kubectl("get", "apiservice", API_SERVICE, "-o", "name").out, "another's registration was taken away"
