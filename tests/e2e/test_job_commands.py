"""What people type at Volcano's jobs and queues, against real processes: run, list, suspend, resume, close, open, delete."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from hekla.testing.kubectl import Said
from hekla.testing.platform import PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Hekla(Protocol):
    def __call__(self, *arguments: str, program: str = "hekla", code: int = 0) -> Said: ...


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    flags = ("--nodes", "2", "--gpus-per-node", "8", "--cpu-per-node", "32")
    with running_platform(without=(), flags=flags) as found:
        yield found


@pytest.fixture
def hekla(platform: PlatformProcess, tmp_path: Path) -> Hekla:
    """`hekla`, `vcctl` and the others as programs of their own."""
    start = (
        "import sys; from hekla.cli.peer_programs import run_by_name; sys.argv = sys.argv[1:]; sys.exit(run_by_name())"
    )
    environment = os.environ | {"KUBECONFIG": str(platform.kubeconfig), "HOME": str(tmp_path)}

    def run(*arguments: str, program: str = "hekla", code: int = 0) -> Said:
        done = subprocess.run(
            [sys.executable, "-c", start, program, *arguments],
            capture_output=True, text=True, timeout=200, check=False, env=environment,
        )  # fmt: skip
        said = Said(done.returncode, done.stdout, done.stderr)
        assert said.code == code, f"{program} {' '.join(arguments)}: {said}"
        assert "Traceback" not in said.out + said.err, said
        return said

    return run


@pytest.fixture
def name() -> str:
    return f"train-{uuid.uuid4().hex[:6]}"


def row_of(said: Said, name: str) -> list[str]:
    return next(line.split() for line in said.out.splitlines() if name in line.split())


def test_a_jobs_life_by_our_commands(hekla: Hekla, name: str) -> None:
    queue = f"queue-of-{name}"
    hekla("queue", "create", queue, "--weight", "3")
    hekla("wait", f"queue/{queue}", "--for", "jsonpath={.status.state}=Open", "--timeout", "90s")
    words = ("-r", "2", "-q", queue, "-R", "cpu=1,nvidia.com/gpu=2", "--", "sh", "-c", "echo begun; sleep 600")
    assert hekla("job", "run", name, *words).out == f"job.batch.volcano.sh/{name} created\n"
    hekla("wait", f"vcjob/{name}", "--for", "phase=Running", "--timeout", "90s")

    assert row_of(hekla("job", "list", "-q", queue), name)[:7] == [name, "Running", queue, "2", "2", "0", "2"]
    top = hekla("job", "top")
    assert "nvidia.com/gpu 4 of 16" in top.out.splitlines()[0]
    assert row_of(top, name)[:8] == ["default", name, queue, "Running", "2", "running", "2", "-"]
    assert "nvidia.com/gpu=4" in top.out
    # the scheduler's next cycle counts it
    hekla("wait", f"queue/{queue}", "--for", "jsonpath={.status.running}=1", "--timeout", "90s")
    assert row_of(hekla("queue", "list"), queue)[:7] == [queue, "root", "Open", "3", "0", "0", "1"]
    assert "1 job in it has not ended" in hekla("queue", "delete", queue, code=1).err

    hekla("job", "suspend", name)
    hekla("wait", f"vcjob/{name}", "--for", "phase=Aborted", "--timeout", "90s")
    assert "is Aborted; only a job that waits or runs can be suspended" in hekla("job", "suspend", name, code=1).err
    assert hekla("job", "top", "-n", "default").out.count(name) == 0, "what rests holds nothing"
    hekla("job", "resume", name)
    hekla("wait", f"vcjob/{name}", "--for", "phase=Running", "--timeout", "90s")
    assert re.search(r"CommandIssued .*ResumeJob", hekla("job", "view", name).out)

    hekla("queue", "operate", queue, "--action", "close")
    hekla("wait", f"queue/{queue}", "--for", "jsonpath={.status.state}=Closing", "--timeout", "90s")
    said = hekla("job", "run", "late", "-q", queue, code=1).err
    assert queue in said
    assert "Closing" in said
    hekla("job", "delete", name)
    hekla("wait", f"queue/{queue}", "--for", "jsonpath={.status.state}=Closed", "--timeout", "90s")
    hekla("queue", "operate", queue, "--action", "open")
    hekla("wait", f"queue/{queue}", "--for", "jsonpath={.status.state}=Open", "--timeout", "90s")
    hekla("queue", "delete", queue)
    assert "does not exist" in hekla("queue", "get", queue, code=1).err


def test_a_jobs_life_by_volcanos_commands(hekla: Hekla, name: str) -> None:
    hekla("-n", name, "-r", "2", "-m", "2", "-c", "sh -c 'echo begun; sleep 600'", program="vsub")
    hekla("wait", f"vcjob/{name}", "--for", "phase=Running", "--timeout", "90s")
    assert row_of(hekla("job", "list", program="vcctl"), name)[2:8] == ["Running", "Batch", "2", "2", "0", "2"]
    pods = hekla("pod", "list", "-j", name, program="vcctl").out.splitlines()
    assert [line.split()[1:4] for line in pods[1:]] == [["1/1", "Running", "0"]] * 2
    hekla("-n", name, program="vsuspend")
    hekla("wait", f"vcjob/{name}", "--for", "phase=Aborted", "--timeout", "90s")
    hekla("job", "resume", "-N", name, program="vcctl")
    hekla("wait", f"vcjob/{name}", "--for", "phase=Running", "--timeout", "90s")
    assert "Phase:\tRunning" in hekla("-n", name, program="vjobs").out
    assert hekla("-n", name, program="vcancel").out == f"cancel job {name} successfully\n"


def test_followed_logs_come_from_every_pod_until_the_job_ends(hekla: Hekla, name: str) -> None:
    script = "for i in 1 2 3; do echo step $i; sleep 0.3; done"
    hekla("job", "run", name, "-r", "2", "--", "sh", "-c", script)
    expected = [f"[{name}-default0-{pod}] step {step}" for pod in (0, 1) for step in (1, 2, 3)]
    # from before its first pod: it waits for them, and ends when the job has
    assert sorted(hekla("job", "logs", "-f", name).out.splitlines()) == expected
    assert sorted(hekla("job", "logs", name).out.splitlines()) == expected
    assert hekla("job", "logs", name, "--tail", "1").out.count("step 3") == 2
    assert row_of(hekla("job", "list"), name)[1] == "Completed"
    hekla("job", "delete", name)
