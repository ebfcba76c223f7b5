"""`hekla-sdk` against a whole platform: what forks and sleepers keep of files and variables."""

import shutil
import subprocess
import time

import pytest

import hekla_sdk
from hekla.testing.platform import PlatformProcess

LIMIT_S = 60.0


def refuses_namespaces():
    made = shutil.which("unshare") and subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode
    return made != 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(refuses_namespaces(), reason="this host lets nobody make namespaces, so no sandbox runs"),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    flags = ("--agents-port", "0", "--router-port", "0")
    directory = tmp_path_factory.mktemp("sdk") / "h"
    with PlatformProcess(directory, without=("workloads", "serving", "router"), flags=flags) as running:
        end = time.monotonic() + LIMIT_S
        while not (running.data_dir / "agents.url").exists():
            assert time.monotonic() < end, running.log[-2000:]
            time.sleep(0.05)
        yield running


@pytest.fixture
def data_dir(platform, monkeypatch):
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "all_proxy",
        "HEKLA_AGENTS_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    return platform.data_dir


def test_forks_have_files_and_variables_and_go_their_own_ways(data_dir):
    with hekla_sdk.Session.create(timeout=300, data_dir=data_dir) as session:
        session.run_code("x = 41\nopen('a.txt', 'w').write('before')")
        for one in session.fork(2):
            with one:
                assert one.run_code("x += 1; x, open('a.txt').read()").text == "(42, 'before')"
                one.run_code("open('a.txt', 'w').write('of the fork')")
        assert session.run_code("x, open('a.txt').read()").text == "(41, 'before')"


async def test_a_session_that_was_frozen_or_paused_goes_on_where_it_was(data_dir):
    async with hekla_sdk.AsyncSession.create(timeout=300, data_dir=data_dir) as session:
        await session.run_code("x = 41\nopen('a.txt', 'w').write('kept')")
        assert (await session.freeze()).state == "frozen"
        assert (await session.run_code("x + 1")).text == "42"
        assert (await session.pause(memory=False)).state == "paused"
        assert (await session.run_code("x + 1, open('a.txt').read()")).text == "(42, 'kept')"
        assert (await session.usage()).cpu_s > 0


def test_a_snapshot_is_where_another_session_begins(data_dir):
    with hekla_sdk.Session.create(timeout=300, data_dir=data_dir) as session:
        session.files.write("a.txt", "kept")
        kept = session.snapshot()
        session.files.write("a.txt", "after")
        with hekla_sdk.Session.create(snapshot=kept.id, timeout=300, data_dir=data_dir) as other:
            assert other.files.read_text("a.txt") == "kept"
        hekla_sdk.Session.delete_snapshot(kept.id, data_dir=data_dir)
