"""The platform of somebody who is not root, in a tree whose path has a space, with and without user namespaces."""

import os
import platform
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hekla.testing.kubectl import Kubectl, Said

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TRAINING = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  schedulerName: volcano
  plugins: {env: [], svc: []}
  tasks:
  - name: w
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        containers:
        - name: c
          image: any
          workingDir: /work
          env: [{name: COLOUR, valueFrom: {configMapKeyRef: {name: paint, key: colour}}}]
          volumeMounts: [{name: work, mountPath: /work}, {name: paint, mountPath: /etc/paint}]
          command:
          - python3
          - -c
          - |
            import os, pathlib, socket, time
            pathlib.Path("/work/mine").write_text(os.environ["COLOUR"])
            rank = int(os.environ["VC_TASK_INDEX"])
            if rank == 0:
                with socket.create_server(("0.0.0.0", 29777)) as server:
                    peer, _ = server.accept()
                    print("heard", peer.recv(100).decode())
            else:
                for _ in range(200):
                    try:
                        peer = socket.create_connection(("gang-w-0.gang", 29777))
                        break
                    except OSError:
                        time.sleep(0.05)
                peer.sendall(f"from {rank} in {os.environ['COLOUR']}".encode())
                print("said", os.getuid())
        volumes: [{name: work, emptyDir: {}}, {name: paint, configMap: {name: paint}}]
"""


@dataclass(frozen=True)
class Ordinary:
    """Somebody who is not root: how to run a command as them."""

    home: Path
    python: str
    uid: int
    gid: int
    path: str = "/usr/local/bin:/usr/bin:/bin"

    def __call__(self, *arguments: str, before: tuple[str, ...] = (), code: int | None = 0) -> Said:
        environment = {
            "PATH": self.path,
            "HOME": str(self.home),
            "PYTHONPATH": f"{self.home / 'src'}:{sysconfig.get_path('platlib')}",
        }
        done = subprocess.run(
            [*before, self.python, "-m", "hekla.cli.main", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False, cwd=self.home,
            env=environment, **self.identity,
        )  # fmt: skip
        said = Said(done.returncode, done.stdout, done.stderr)
        assert code is None or said.code == code, said
        assert "Traceback" not in said.out + said.err, said
        return said

    @property
    def identity(self) -> dict[str, object]:
        """Who subprocess shall be."""
        return {} if os.geteuid() == self.uid else {"user": self.uid, "group": self.gid, "extra_groups": []}


@pytest.fixture
def ordinary(repository: Path) -> Iterator[Ordinary]:
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with tempfile.TemporaryDirectory(prefix="hekla e2e ") as folder:  # pytest's own is closed to others
        home = Path(folder)
        shutil.copytree(repository / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("forbid_user_namespaces.py"), home)
        os.chown(home, account.pw_uid, account.pw_gid)
        user = Ordinary(home, _python_for(account), account.pw_uid, account.pw_gid)
        yield user
        user("down", "--data-dir", str(home / "data"), code=None)


def _python_for(account: pwd.struct_passwd) -> str:
    """An interpreter that this user may run, for which our packages were built."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    packages = sysconfig.get_path("platlib")
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        try:
            tried = subprocess.run(
                [python, "-c", "import msgspec, numpy, uvloop"],
                check=False, capture_output=True, cwd="/", env={"PYTHONPATH": packages}, **identity,
            )  # fmt: skip
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    pytest.skip(f"no {version} that the user {account.pw_name} may run finds our packages in {packages}")


def isolation(kubectl: Kubectl) -> str:
    kubectl("wait", "node/node-1", "--for=create", "--timeout=90s")
    kubectl("wait", "node/node-1", "--for=condition=Ready", "--timeout=90s")
    path = "jsonpath={.status.conditions[?(@.type=='Isolation')].message}"
    return kubectl("get", "node", "node-1", "-o", path).out


def runs_a_gang(kubectl: Kubectl, uid: int) -> None:
    kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=90s")
    kubectl("create", "configmap", "paint", "--from-literal=colour=blue")
    kubectl("apply", "-f", "-", stdin=TRAINING)
    try:
        kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.state.phase}=Completed", "--timeout=90s")
    except AssertionError:
        raise AssertionError(
            kubectl("describe", "pods").out + kubectl("logs", "-l", "volcano.sh/job-name=gang", code=None).out
        ) from None
    assert kubectl("logs", "gang-w-0").out == "heard from 1 in blue\n"
    assert kubectl("logs", "gang-w-1").out.startswith("said ")
    kubectl(
        "run", "shell", "--image=any", "--restart=Never", "--", "sh", "-c", "echo hi > /tmp/x && cat /tmp/x; sleep 3600"
    )
    kubectl("wait", "pod/shell", "--for=condition=Ready", "--timeout=90s")
    assert kubectl("exec", "-i", "shell", "--", "cat", stdin="typed").out == "typed"
    seen = kubectl("exec", "shell", "--", "sh", "-c", "cat /proc/self/uid_map; touch /etc/hekla-was-here", code=None)
    assert not Path("/etc/hekla-was-here").exists()
    assert seen.code != 0, "the host's files are not writable"


def no_process_left(uid: int, home: Path) -> list[str]:
    left = []
    for place in Path("/proc").iterdir():
        try:
            said = (place / "environ").read_bytes() + (place / "cmdline").read_bytes() if place.name.isdigit() else b""
            if os.fsencode(home) in said and int(place.name) != os.getpid():
                left.append(said.decode(errors="replace")[:200])
        except OSError:
            continue
    return left


@pytest.mark.parametrize("allowed", [True, False], ids=["with-user-namespaces", "without-user-namespaces"])
def test_an_ordinary_user_runs_a_gang_and_is_told_the_rung(ordinary: Ordinary, tmp_path: Path, allowed: bool) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    if allowed and _refuses_user_namespaces(ordinary):
        pytest.skip("this host refuses user namespaces to ordinary users")
    if not allowed and platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no filter is written for {platform.machine()}")
    before = () if allowed else (ordinary.python, str(ordinary.home / "forbid_user_namespaces.py"))
    data = ordinary.home / "data"
    ordinary("up", "--detach", "--data-dir", str(data), "--port", "0", before=before)
    kubectl = Kubectl(data / "kubeconfig", home=tmp_path)
    told = isolation(kubectl)
    if allowed:
        assert "rung user-namespaces" in told
    else:
        assert "rung process-group" in told
        assert "user-namespaces refused: " in told
    runs_a_gang(kubectl, ordinary.uid)
    limits = kubectl("get", "node", "node-1", "-o", "jsonpath={.status.conditions[?(@.type=='Limits')].message}").out
    assert "rlimit" in limits or "cgroup" in limits
    ordinary("down", "--data-dir", str(data))
    assert no_process_left(ordinary.uid, ordinary.home) == []


def _refuses_user_namespaces(user: Ordinary) -> bool:
    command = ["unshare", "--user", "--map-root-user", "true"]
    return subprocess.run(command, check=False, capture_output=True, **user.identity).returncode != 0


def test_a_directory_of_somebody_else_is_refused_with_its_owner(ordinary: Ordinary, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of somebody else")
    theirs = ordinary.home / "theirs"
    theirs.mkdir(mode=0o755)
    for flags in ((), ("--detach",)):
        said = ordinary("up", *flags, "--data-dir", str(theirs), code=1)
        assert (
            said.err
            == f"hekla: {theirs} may not be written by you; it belongs to root: choose another with --data-dir\n"
        )
        said = ordinary("up", *flags, "--data-dir", str(theirs / "below"), code=1)
        assert (
            said.err
            == f"hekla: {theirs / 'below'} cannot be made (Permission denied); choose another with --data-dir\n"
        )
    assert list(theirs.iterdir()) == []


def test_neither_git_nor_a_terminal_is_needed(ordinary: Ordinary) -> None:
    """An empty PATH, no standard input, nothing but Python."""
    alone = Ordinary(ordinary.home, ordinary.python, ordinary.uid, ordinary.gid, path="/nonexistent")
    data = str(ordinary.home / "data")
    alone("up", "--detach", "--data-dir", data, "--port", "0")
    assert "runs at https://127.0.0.1:" in alone("status", "--data-dir", data).out
    assert alone("version").out.startswith("hekla ")
    alone("down", "--data-dir", data)
