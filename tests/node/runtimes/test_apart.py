"""Where a host lets nobody be set apart the node says so before anybody waits for a sandbox, whoever refuses."""

import asyncio
import shutil
import subprocess
import sys

import pytest

from hekla.node.runtimes.sandbox import apart

ASKED = "import asyncio; from hekla.node.runtimes.sandbox import apart; print(asyncio.run(apart.why_nothing_is_set_apart()))"


def test_what_no_file_says_is_found_by_trying():
    """As in a container without privileges: the node's user is root there, and may make no namespace all the same."""
    limited = 'echo 0 > /proc/sys/user/max_user_namespaces || exit 77; exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not there")
    told = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh", sys.executable, "-c", ASKED],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if told.returncode == 77 or told.stderr.startswith("unshare:"):
        pytest.skip("no user namespace can be made here, or not be kept from making more")
    assert told.stdout.startswith(
        "the host refuses new namespaces (no space left on device), as it does in a container"
    )
    assert "Docker: --privileged" in told.stdout


def test_a_trial_that_never_answers_is_given_up_and_says_nothing(monkeypatch):
    monkeypatch.setattr(apart, "PATIENCE_S", 0.01)
    monkeypatch.setattr(apart, "_TRIAL", "import time; time.sleep(1000)")
    assert asyncio.run(apart._answer()) == ""
