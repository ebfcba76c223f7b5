import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Protocol

import pytest

from hekla.testing.kubectl import Kubectl, Said

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 90.0


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: wrong}
spec:
  minAvailable: 2
  schedulerName: volcano
  tasks:
  - name: w
    replicas: 2
    template: {spec: {restartPolicy: Never, containers: [{name: c, image: any, command: ["true"]}]}}
"""
UNKNOWN = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: unknown}\ndata: {a: b}\ndate: {c: d}\n"


def pod(name: str, *containers: dict[str, object], **spec: object) -> str:
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec}
    listed = [{"name": f"c{number}", "image": "any", **one} for number, one in enumerate(containers)]
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**whole, "containers": listed}}
    )


@pytest.fixture
def unchanged(kubectl: Kubectl) -> Iterator[None]:
    """Nothing is there after the test that was not there before."""
    kinds = "configmaps,pods,vcjob,podgroups,services,queues"
    before = kubectl("get", kinds, "-A", "-o", "name").out.split()
    yield
    after = kubectl("get", kinds, "-A", "-o", "name").out.split()  # what earlier tests left may have gone meanwhile
    assert not set(after) - set(before)


@pytest.fixture
def tidy(kubectl: Kubectl) -> Iterator[None]:
    yield
    kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=90s")


def refused(kubectl: Kubectl, hekla: Hekla, manifest: str, sentence: str) -> None:
    assert sentence in kubectl("apply", "-f", "-", stdin=manifest, code=1).err
    assert sentence in hekla("apply", "-f", "-", stdin=manifest, code=1).err


@pytest.mark.usefixtures("unchanged")
def test_what_is_no_yaml_is_said_with_its_line(kubectl: Kubectl, hekla: Hekla, tmp_path: Path) -> None:
    place = tmp_path / "broken.yaml"
    place.write_text("kind: [1, 2\nb: {")
    said = hekla("apply", "-f", str(place), code=1)
    assert said.err == f"hekla: {place}: is no YAML: line 2, column 2: did not find expected ',' or ']'\n"
    assert "error converting YAML to JSON" in kubectl("apply", "-f", str(place), code=1).err
    place.write_text("just text")
    assert hekla("apply", "-f", str(place), code=1).err.startswith(f"hekla: {place}: is a str, not an object with ")
    place.write_text("")
    assert "no objects found" in hekla("apply", "-f", str(place), code=1).err
    assert "no such file or directory" in hekla("apply", "-f", str(tmp_path / "absent.yaml"), code=1).err
    url = kubectl("create", "--raw", "/api/v1/namespaces/default/pods", "-f", "-", stdin="{nonsense", code=1)
    assert "invalid character" in url.err


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_field_is_refused_warned_about_or_dropped(kubectl: Kubectl, hekla: Hekla) -> None:
    misnamed = JOB.replace("minAvailable", "minAvailible")
    told = (
        'it has no field "date"; did you mean "data"?',
        'spec has no field "minAvailible"; did you mean "minAvailable"?',
    )
    for manifest, field, sentence in zip((UNKNOWN, misnamed), ("date", "spec.minAvailible"), told, strict=True):
        assert f'unknown field "{field}"' in kubectl("apply", "-f", "-", stdin=manifest, code=1).err
        applied = hekla(
            "apply", "-f", "-", stdin=manifest, code=1
        )  # by the server, whose words are "field not declared in schema"
        assert sentence in applied.err
    warned = kubectl("create", "--validate=warn", "-f", "-", stdin=UNKNOWN)
    assert warned.err == 'Warning: unknown field "date"\n'
    assert "date" not in kubectl("get", "configmap", "unknown", "-o", "json").json
    kubectl("delete", "configmap", "unknown")
    assert kubectl("create", "--validate=ignore", "-f", "-", stdin=UNKNOWN).err == ""
    kubectl("delete", "configmap", "unknown")


@pytest.mark.usefixtures("unchanged")
def test_a_job_that_could_never_start_is_refused(kubectl: Kubectl, hekla: Hekla) -> None:
    told = 'admission webhook "validatejob.volcano.sh" denied the request: '
    more = JOB.replace("minAvailable: 2", "minAvailable: 5")
    refused(kubectl, hekla, more, told + "job 'minAvailable' should not be greater than total replicas in tasks")
    queue = JOB.replace("schedulerName: volcano", "queue: nowhere")
    refused(kubectl, hekla, queue, told + 'unable to find job queue: queue.scheduling.volcano.sh "nowhere" not found')
    bare = re.sub(r"containers: \[.*\]}}", "containers: []}}", JOB)
    refused(kubectl, hekla, bare, "template.spec.containers: Required value")
    twice = JOB.replace(
        "tasks:", "tasks:\n  - {name: w, replicas: 1, template: {spec: {containers: [{name: c, image: x}]}}}"
    )
    refused(kubectl, hekla, twice, "duplicated task name w")


@pytest.mark.usefixtures("unchanged")
def test_a_pod_that_could_never_be_is_refused(kubectl: Kubectl, hekla: Hekla) -> None:
    refused(kubectl, hekla, pod("none"), "spec.containers: Required value")
    refused(kubectl, hekla, pod("Big_Name", {}), 'metadata.name: Invalid value: "Big_Name"')
    wrong = pod("quantity", {"resources": {"requests": {"cpu": "many"}}})
    refused(kubectl, hekla, wrong, "quantities must match the regular expression")
    refused(kubectl, hekla, pod("mount", {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), 'Not found: "v"')
    assert 'the server doesn\'t have a resource type "nonsense"' in hekla("get", "nonsense", code=None).err
    kind = "apiVersion: example.com/v1\nkind: Nonsense\nmetadata: {name: x}\n"
    assert 'no matches for kind "Nonsense"' in kubectl("apply", "-f", "-", stdin=kind, code=1).err
    assert "Nonsense" in hekla("apply", "-f", "-", stdin=kind, code=1).err


@pytest.mark.usefixtures("tidy")
def test_a_pod_that_no_node_can_hold_waits_and_says_why(kubectl: Kubectl, hekla: Hekla) -> None:
    large = {"resources": {"requests": {"cpu": "100"}, "limits": {"nvidia.com/gpu": "9"}}}
    hekla("apply", "-f", "-", stdin=pod("large", large))
    kubectl("wait", "pod/large", "--for=condition=PodScheduled=False", "--timeout=90s")
    why = "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient nvidia.com/gpu."
    deadline = monotonic() + PATIENCE_S
    while (
        why not in kubectl("describe", "pod", "large").out
    ):  # of nodes that are not ready yet another sentence is true first
        assert monotonic() < deadline, kubectl("describe", "pod", "large").out
    assert why in hekla("describe", "pod", "large").out
    assert kubectl("get", "pod", "large", "--no-headers").out.split()[2] == "Pending"
    late = hekla("wait", "pod/large", "--for=condition=Ready", "--timeout=1s", code=124)
    assert late.err == (
        "hekla: timed out after 1s waiting for condition=Ready on pod/large; pod/large has no condition Ready, but PodScheduled\n"
    )


@pytest.mark.usefixtures("tidy")
def test_a_command_that_does_not_exist_is_named(kubectl: Kubectl, hekla: Hekla) -> None:
    why = 'exec: "no-such-program": executable file not found in $PATH'
    hekla("apply", "-f", "-", stdin=pod("absent", {"command": ["no-such-program"]}))
    kubectl("wait", "pod/absent", "--for=jsonpath={.status.phase}=Failed", "--timeout=90s")
    [state] = kubectl("get", "pod", "absent", "-o", "json").json["status"]["containerStatuses"]
    assert (state["state"]["terminated"]["exitCode"], state["state"]["terminated"]["reason"]) == (128, "StartError")
    assert why in state["state"]["terminated"]["message"]
    assert why in kubectl("describe", "pod", "absent").out
    assert why in hekla("describe", "pod", "absent").out
    assert "StartError" in hekla("get", "pods").out
    inside = kubectl("exec", "absent", "--", "true", code=1)
    assert "cannot exec into a container in a completed pod; current phase is Failed" in inside.err


@pytest.mark.usefixtures("tidy")
def test_a_port_that_is_taken_fails_whom_it_concerns(kubectl: Kubectl) -> None:
    serve = {"command": ["python3", "-u", "-m", "http.server", "8123"]}
    late = {"command": ["sh", "-c", "sleep 1; exec python3 -u -m http.server 8123"]}
    kubectl("create", "-f", "-", stdin=pod("pair", serve, late))
    kubectl(
        "wait", "pod/pair", "--for=jsonpath={.status.containerStatuses[1].state.terminated.exitCode}=1", "--timeout=90s"
    )
    assert "Address already in use" in kubectl("logs", "pair", "-c", "c1").out
    states = kubectl("get", "pod", "pair", "-o", "json").json["status"]["containerStatuses"]
    assert "running" in states[0]["state"]
    kubectl("create", "-f", "-", stdin=pod("beside", serve))  # another pod has an address, and so ports, of its own
    kubectl("wait", "pod/beside", "--for=condition=Ready", "--timeout=90s")
    with_port = {**serve, "ports": [{"containerPort": 8123, "hostPort": 18123}]}
    for name in ("one", "two", "three"):
        kubectl("create", "-f", "-", stdin=pod(name, with_port))
    kubectl("wait", "pod/three", "--for=condition=PodScheduled=False", "--timeout=90s")
    assert "2 node(s) didn't have free ports for the requested pod ports" in kubectl("describe", "pod", "three").out


def test_a_platform_whose_port_is_taken_chooses_another_and_says_so(cli: Hekla, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = str(tmp_path / "p")
        said = cli("up", "--detach", "--data-dir", place, "--port", str(port), "--nodes", "0")
        url = re.search(r"hekla is ready at https://127\.0\.0\.1:(\d+)", said.out)
        assert url is not None
        assert url[1] != str(port)
        assert f"https://127.0.0.1:{url[1]}" in cli("status", "--data-dir", place).out
        cli("down", "--data-dir", place)


def test_a_data_directory_that_cannot_be_used_is_refused_with_the_way_out(cli: Hekla, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "version").write_text("99\n")
    file = tmp_path / "file"
    file.write_text("not a directory")
    for place, sentence in (
        (
            newer,
            f"{newer} was written by a newer Hekla (layout 99, this one knows 1); upgrade Hekla, or choose another",
        ),
        (file, f"{file} cannot be made (File exists); choose another with --data-dir"),
        (file / "below", f"{file / 'below'} cannot be made (Not a directory); choose another with --data-dir"),
    ):
        for flags in ((), ("--detach",)):
            said = cli("up", *flags, "--data-dir", str(place), "--port", "0", "--nodes", "0", code=1)
            assert sentence in said.err
            assert said.err.count("\n") == 1, said.err
    assert sorted(one.name for one in newer.iterdir()) == ["version"]
    assert file.read_text() == "not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; test_ordinary_user.py asks as somebody else")
def test_a_data_directory_without_permission_is_refused(cli: Hekla, tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    said = cli("up", "--detach", "--data-dir", str(place), code=1)
    assert f"{place} may not be written by you" in said.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--nodes", "-1"), "--nodes is -1; it must be 0 or more"),
        (("--port", "70000"), "--port is 70000; a port lies between 0 (any) and 65535"),
        (("--without", "everything"), '--without names "everything", which is no component; choose from '),
        (("--cpu-per-node", "many"), '--cpu-per-node is "many"'),
        (("--memory-per-node", "lots"), '--memory-per-node is "lots"'),
        (("--log-level", "loud"), '--log-level is "loud"; use debug, info, warning or error'),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_made(
    cli: Hekla, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    said = cli("up", "--data-dir", str(tmp_path / "p"), *flags, code=2)
    assert sentence in said.err
    assert not (tmp_path / "p").exists()


def test_an_unknown_command_or_flag_is_named(cli: Hekla) -> None:
    assert "frobnicate" in cli("frobnicate", code=2).err
    assert "--frob" in cli("get", "--frob", code=2).err
    nobody = cli("get", "pods", code=3)
    assert "start one with `hekla up --detach`" in nobody.err, nobody
