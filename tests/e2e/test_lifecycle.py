import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from hekla.testing.kubectl import Kubectl, Said
from hekla.testing.programs import started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

GANG = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  schedulerName: volcano
  policies: [{event: PodFailed, action: RestartJob}]
  tasks:
  - name: w
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 1
        containers:
        - name: c
          image: any
          volumeMounts: [{name: out, mountPath: /out}]
          command: [sh, -c, 'echo begun; while [ ! -e /out/go ]; do sleep 0.1; done; echo ended']
        volumes: [{name: out, hostPath: {path: PLACE}}]
"""


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


def marked(data_dir: Path) -> dict[int, str]:
    """The processes that belong to a platform: its command line, or a container's environment, names the directory."""
    found = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            said = (place / "cmdline").read_bytes() + b"\0" + (place / "environ").read_bytes()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if os.fsencode(data_dir) in said and state != "Z":
            found[int(place.name)] = said.replace(b"\0", b" ").decode(errors="replace")[:300]
    return found


def alive_among(processes: set[int]) -> set[int]:
    return {pid for pid in processes if _runs(pid)}


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def containers_below(spawner: int) -> set[int]:
    """Inits and their commands, and not what these start: the short sleeps of a gang that waits are gone in a moment, and one that its
    shell has not reaped yet, or that is not a sleep yet, cannot be told from a container by its command line.
    """
    return descendants(spawner, depth=2)


def descendants(pid: int, *, depth: int = 1000) -> set[int]:
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(place.name))
    found: set[int] = set()
    level = {pid}
    for _ in range(depth):
        level = {child for each in level for child in children.get(each, ())} - found
        if not level:
            break
        found |= level
    return found


def gone_within(processes: set[int], timeout_s: float = 10.0) -> set[int]:
    """Wait for processes to end; returns those that did not."""
    for pid in processes:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([handle], [], [], timeout_s)
        finally:
            os.close(handle)
    return alive_among(processes)


def pid_of(data_dir: Path) -> int:
    return int(json.loads((data_dir / "platform.json").read_text())["pid"])


def spawner_of(data_dir: Path) -> int:
    """The parent of all containers of plain pods."""
    [described] = (data_dir / "node/runtime/spawners").glob("*.json")
    return int(json.loads(described.read_text())["pid"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A data directory whose name holds what shells and URLs stumble over."""
    return tmp_path / "a data dir, 50% Ä"


def test_a_platform_is_started_asked_and_stopped(cli: Hekla, place: Path, tmp_path: Path) -> None:
    said = cli("up", "--detach", "--data-dir", str(place), "--port", "0", "--nodes", "1", "--gpus-per-node", "4")
    url = re.search(r"hekla is ready at (https://127\.0\.0\.1:\d+)\n", said.out)
    assert url is not None
    assert f"export KUBECONFIG='{place}/kubeconfig'" in said.out
    assert stat.S_IMODE((place / "kubeconfig").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert cli("kubeconfig", "--data-dir", str(place)).out == f"{place}/kubeconfig\n"
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "node/node-1", "--for=create", "--timeout=90s")
    kubectl("wait", "node/node-1", "--for=condition=Ready", "--timeout=90s")
    status = cli("status", "--data-dir", str(place)).out
    assert f"runs at {url[1]}" in status
    assert "nodes:  1 of 1 ready" in status
    assert re.fullmatch(r"hekla \d+\.\d+\.\d+.*\n", cli("version").out.splitlines(keepends=True)[0])
    pid = pid_of(place)
    again = cli("up", "--data-dir", str(place), code=1).err
    assert f"{place} is in use: process {pid} serves {url[1]} from it; stop it with `hekla down --data-dir" in again
    assert "is in use" in cli("up", "--detach", "--data-dir", str(place), code=1).err
    assert pid_of(place) == pid
    assert cli("down", "--data-dir", str(place)).out == f"stopping process {pid} ...\nstopped\n"
    assert marked(place) == {}
    assert cli("down", "--data-dir", str(place)).out == f"no platform runs on {place}\n"
    assert cli("status", "--data-dir", str(place), code=None).code != 0


def test_two_platforms_run_side_by_side(cli: Hekla, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli("up", "--detach", "--data-dir", str(tmp_path / name), "--nodes", "1")  # both ask for port 6443
    urls = {json.loads((tmp_path / name / "platform.json").read_text())["url"] for name in ("one", "two")}
    assert len(urls) == 2
    for name in ("one", "two"):
        kubectl = Kubectl(tmp_path / name / "kubeconfig", home=tmp_path)
        kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
        kubectl("run", name, "--image=any", "--restart=Never", "--", "sleep", "3600")
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=90s")
        assert kubectl("get", "pods", "-o", "name").out == f"pod/{name}\n"
    cli("down", "--data-dir", str(tmp_path / "one"))
    other = Kubectl(tmp_path / "two" / "kubeconfig", home=tmp_path)
    assert other("exec", "two", "--", "echo", "alive").out == "alive\n"


def test_without_nodes_and_scheduler_the_core_controllers_are_left(cli: Hekla, place: Path, tmp_path: Path) -> None:
    cli("up", "--detach", "--data-dir", str(place), "--port", "0", "--nodes", "0", "--without", "scheduler")
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("create", "deployment", "d", "--image=any", "--replicas=2")
    kubectl("wait", "deployment/d", "--for=jsonpath={.status.replicas}=2", "--timeout=90s")
    assert kubectl("get", "nodes", "-o", "name").out == ""
    pods = kubectl("get", "pods", "-o", "json").json["items"]
    assert [(one["status"]["phase"], one["spec"].get("nodeName")) for one in pods] == [("Pending", None)] * 2
    assert all("PodScheduled" not in json.dumps(one["status"]) for one in pods)
    name = pods[0]["metadata"]["name"]
    assert kubectl("logs", name).out == ""
    assert f"pod {name} does not have a host assigned" in kubectl("exec", name, "--", "true", code=1).err
    kubectl("delete", "deployment", "d", "--cascade=foreground", "--timeout=90s")
    assert kubectl("get", "pods,replicasets", "-o", "name").out == ""


def test_down_ends_every_process_of_every_pod(cli: Hekla, place: Path, tmp_path: Path) -> None:
    cli("up", "--detach", "--data-dir", str(place), "--port", "0", "--nodes", "2")
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    script = "trap '' TERM; sleep 3601 & setsid sleep 3602 & (setsid sleep 3603 &) ; while :; do sleep 3604; done"
    kubectl("run", "stubborn", "--image=any", "--grace-period=1", "--", "sh", "-c", script)
    kubectl("wait", "pod/stubborn", "--for=condition=Ready", "--timeout=90s")
    processes = descendants(pid_of(place)) | set(marked(place))
    assert len(processes) >= 5, processes
    cli("down", "--data-dir", str(place))
    assert gone_within(processes) == set()
    assert marked(place) == {}


def test_a_killed_platform_that_is_to_leave_nothing_leaves_no_orphan(cli: Hekla, place: Path, tmp_path: Path) -> None:
    cli("up", "--detach", "--data-dir", str(place), "--port", "0", "--nodes", "1", "--sandbox-grace-s", "0")
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    kubectl("run", "sleeps", "--image=any", "--", "sh", "-c", "setsid sleep 3605 & sleep 3606")
    kubectl("wait", "pod/sleeps", "--for=condition=Ready", "--timeout=90s")
    processes = {spawner_of(place)} | descendants(spawner_of(place))
    assert len(processes) >= 4, processes
    os.kill(pid_of(place), signal.SIGKILL)
    assert gone_within(processes) == set()
    assert "no platform runs" in cli("down", "--data-dir", str(place)).out


def test_a_killed_platform_leaves_its_containers_to_its_next_life_which_finishes_the_job(
    cli: Hekla, place: Path, tmp_path: Path
) -> None:
    up = ("up", "--detach", "--data-dir", str(place), "--port", "0", "--nodes", "2", "--sandbox-grace-s", "600")
    cli(*up)  # on a machine that is busy the next life does not begin within the usual minute
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    (tmp_path / "out").mkdir()
    kubectl("create", "deployment", "d", "--image=any", "--replicas=2", "--", "sleep", "3600")
    kubectl("rollout", "status", "deployment/d", "--timeout=90s")
    kubectl("apply", "-f", "-", stdin=GANG.replace("PLACE", str(tmp_path / "out")))
    kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.state.phase}=Running", "--timeout=90s")
    spawner = spawner_of(place)
    kept = ("get", "configmaps,deployments,jobs.batch.volcano.sh", "-A", "-o", "name")
    before = set(kubectl(*kept).out.split())
    containers = containers_below(spawner)
    processes = descendants(pid_of(place)) | set(marked(place))
    assert len(containers) >= 5, processes
    os.kill(pid_of(place), signal.SIGKILL)
    assert gone_within(processes - containers - {spawner}) == set()
    cli(*up)
    assert alive_among(containers) == containers
    assert before <= set(kubectl(*kept).out.split())  # a namespace may have got its kube-root-ca.crt only now
    (tmp_path / "out" / "go").touch()
    kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.state.phase}=Completed", "--timeout=90s")
    kubectl("rollout", "status", "deployment/d", "--timeout=90s")
    kubectl("wait", "pod", "-l", "app=d", "--for=condition=Ready", "--timeout=90s")
    pod = kubectl("get", "pods", "-l", "app=d", "-o", "name").out.split()[0]
    assert kubectl("exec", pod, "--", "echo", "alive").out == "alive\n"


def test_a_stopped_platform_takes_up_where_it_was(cli: Hekla, place: Path, tmp_path: Path) -> None:
    up = ("up", "--detach", "--data-dir", str(place), "--port", "0")
    cli(*up)
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    kubectl("create", "deployment", "d", "--image=any", "--", "sleep", "3600")
    kubectl("rollout", "status", "deployment/d", "--timeout=90s")
    authority = kubectl(
        "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}"
    ).out
    revision = int(kubectl("get", "deployment", "d", "-o", "jsonpath={.metadata.resourceVersion}").out)
    cli("down", "--data-dir", str(place))
    cli(*up)
    assert (
        kubectl("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}").out
        == authority
    )
    kubectl("rollout", "status", "deployment/d", "--timeout=90s")
    kubectl("wait", "pod", "-l", "app=d", "--for=condition=Ready", "--timeout=90s")
    kubectl("annotate", "deployment", "d", "seen=again")
    assert int(kubectl("get", "deployment", "d", "-o", "jsonpath={.metadata.resourceVersion}").out) > revision


def test_a_gang_outlives_the_platform_with_the_pods_it_had(cli: Hekla, place: Path, tmp_path: Path) -> None:
    up = ("up", "--detach", "--data-dir", str(place), "--port", "0")
    cli(*up)
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    lasting = GANG.replace("PLACE", str(out)).replace("restartPolicy: Never", "restartPolicy: OnFailure")
    kubectl("apply", "-f", "-", stdin=lasting)
    kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.running}=2", "--timeout=90s")
    uids = ("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    before = kubectl(*uids).out
    cli("down", "--data-dir", str(place))
    cli(*up)
    (out / "go").touch()
    kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.state.phase}=Completed", "--timeout=90s")
    assert kubectl(*uids).out == before, "a pod was made anew"
    status = kubectl("get", "vcjob", "gang", "-o", "json").json["status"]
    assert (status.get("retryCount", 0), status.get("version", 0), status["succeeded"]) == (0, 0, 2)
    starts = kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}").out
    assert starts.split() == ["1", "1"]


def test_an_interrupt_ends_the_foreground_platform_in_good_order(place: Path) -> None:
    command = [sys.executable, "-m", "hekla.cli.main", "up", "--data-dir", str(place), "--port", "0"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("hekla is ready at https://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert not (place / "platform.json").exists()
    assert marked(place) == {}


def test_nothing_listens_beyond_loopback(cli: Hekla, place: Path, tmp_path: Path) -> None:
    cli("up", "--detach", "--data-dir", str(place), "--port", "0")
    kubectl = Kubectl(place / "kubeconfig", home=tmp_path)
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    kubectl("run", "web", "--image=any", "--port=8456", "--expose", "--", "python3", "-m", "http.server", "8456")
    kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=90s")
    processes = {pid_of(place)} | descendants(pid_of(place))
    assert [address for address in listening(processes) if not address.startswith("127.")] == []
    assert any(address.startswith("127.0.0.1") for address in listening(processes))


def listening(processes: set[int]) -> list[str]:
    """Where these processes accept TCP connections."""
    sockets = set()
    for pid in processes:
        try:
            for one in Path(f"/proc/{pid}/fd").iterdir():
                sockets.add(os.readlink(one))
        except OSError:
            continue
    found = []
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        for row in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                packed = bytes.fromhex(fields[1].split(":")[0])
                words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
                found.append(socket.inet_ntop(family, b"".join(words)))
    return found


@pytest.mark.timeout(300)
def test_the_readme_works_as_it_stands(repository: Path) -> None:
    if not (repository / ".venv" / "bin" / "hekla").exists():
        pytest.skip("the README's commands start with `make`; there is no .venv in this checkout")
    done = subprocess.run(
        [sys.executable, str(repository / "tools" / "run_readme.py")],
        capture_output=True, text=True, check=False, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every command of README.md works as it stands\n")


@pytest.mark.timeout(240)
def test_the_demo_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "hekla.cli.main", "demo"],
        capture_output=True, text=True, check=False, timeout=200, stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert marked(tmp_path) == {}
    assert "\x1b" not in done.stdout, "no terminal, no escapes"
