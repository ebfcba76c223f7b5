import json
import os
import subprocess
import sys

import pytest

from hekla.app.data_directory import DataDirectory, DataDirectoryError, Running, start_ticks_of
from hekla.app.settings import Settings, SettingsError

HOLD = """
import sys
from pathlib import Path
from hekla.app.data_directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
with directory.claimed():
    directory.publish("https://127.0.0.1:1", "0")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def test_a_directory_is_made_private(tmp_path):
    directory = DataDirectory(tmp_path / "new" / "data")
    with directory.claimed():
        assert directory.root.stat().st_mode & 0o777 == 0o700


def test_a_second_platform_is_refused_with_the_way_out(tmp_path, holder):
    with pytest.raises(DataDirectoryError) as refused, DataDirectory(tmp_path).claimed():
        pass
    assert f"process {holder.pid} serves https://127.0.0.1:1 from it" in str(refused.value)
    assert f"hekla down --data-dir {tmp_path}" in str(refused.value)


def test_a_killed_platform_leaves_the_directory_free(tmp_path, holder):
    assert DataDirectory(tmp_path).running().pid == holder.pid
    holder.kill()
    holder.wait()
    assert DataDirectory(tmp_path).running() is None
    assert f"the last one, process {holder.pid}, was killed or died" in DataDirectory(tmp_path).nobody_runs()
    with DataDirectory(tmp_path).claimed():
        pass


def test_a_record_of_another_version_is_read_as_far_as_it_is_known(tmp_path):
    record = {"pid": os.getpid(), "start_ticks": start_ticks_of(os.getpid()), "url": "u", "version": "v"}
    for written in (record, {**record, "colour": "blue"}):
        (tmp_path / "platform.json").write_text(json.dumps(written))
        assert DataDirectory(tmp_path).running() == Running(**record, nodes=0)


def test_a_reused_pid_is_not_mistaken_for_the_platform(tmp_path):
    record = {"pid": os.getpid(), "start_ticks": 1, "url": "u", "version": "v"}
    (tmp_path / "platform.json").write_text(json.dumps(record))
    assert DataDirectory(tmp_path).running() is None
    assert Running(**{**record, "start_ticks": start_ticks_of(os.getpid())}).is_alive


def test_a_directory_of_a_newer_version_is_left_alone(tmp_path):
    (tmp_path / "version").write_text("99\n")
    with (
        pytest.raises(DataDirectoryError, match=r"written by a newer Hekla \(layout 99, this one knows 1\)"),
        DataDirectory(tmp_path).claimed(),
    ):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version"]


def test_what_is_no_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataDirectoryError, match=r"file/below cannot be made"),
        DataDirectory(tmp_path / "file" / "below").claimed(),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataDirectoryError, match="may not be written by you"), DataDirectory(tmp_path).claimed():
        pass


def test_a_directory_on_a_read_only_file_system_is_not_blamed_on_its_owner(tmp_path):
    """In namespaces of its own, where any user may mount."""
    place = tmp_path / "data"
    mounted = f'mount -t tmpfs none {tmp_path} && mkdir {place} && mount -o remount,ro {tmp_path} && exec "$@"'
    said = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mounted, "sh", sys.executable, "-c", HOLD, place],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare" in said.stderr or "mount:" in said.stderr:
        pytest.skip(f"no namespace with a mount of its own here: {said.stderr.strip()}")
    assert f"{place} may not be written by you; its file system is mounted read-only" in said.stderr


def test_a_directory_of_ours_tells_its_mode(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for any user but root
    with (
        pytest.raises(DataDirectoryError, match="it is yours, but its mode is 0500 and 0700 is needed"),
        DataDirectory(tmp_path).claimed(),
    ):
        pass


def test_a_half_written_record_means_nobody_runs(tmp_path):
    (tmp_path / "platform.json").write_text('{"pid": 1')
    assert DataDirectory(tmp_path).running() is None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"without": frozenset({"kubelet"})}, '--without names "kubelet", which is no component'),
        ({"nodes": -1}, "--nodes is -1; it must be 0 or more"),
        ({"gpus_per_node": -8}, "--gpus-per-node is -8"),
        ({"sandbox_grace_s": -1}, "--sandbox-grace-s is -1; it must be 0 or more"),
        ({"nodes": 5000}, "use --simulated-nodes for more"),
        ({"port": 70_000}, "a port lies between"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, sentence):
    with pytest.raises(SettingsError) as refused:
        Settings(**wrong)
    assert sentence in str(refused.value)


def test_every_setting_has_its_help():
    assert set(Settings.field_help()) == set(Settings.__dataclass_fields__)


def test_who_waits_for_the_gateways_address_finds_it_whole(tmp_path):
    """Its file came into being empty, and was written a moment later."""
    directory = DataDirectory(tmp_path)
    directory.agents_url.write_text("http://127.0.0.1:1\n")
    with directory.agents_url.open() as old:
        directory.publish_agents("http://127.0.0.1:2")
        assert old.read() == "http://127.0.0.1:1\n"  # another file took its place: this one was never cut short
    assert directory.agents_url.read_text() == "http://127.0.0.1:2\n"


def test_of_a_platform_that_ended_in_good_order_no_more_is_said(tmp_path):
    directory = DataDirectory(tmp_path)
    with directory.claimed():
        directory.publish("https://127.0.0.1:1", "0")
    assert directory.nobody_runs() == f"no platform runs on {tmp_path}"
    for broken in ("", "[]", "{}", '{"pid": "x"}'):
        directory.record.write_text(broken)
        assert directory.nobody_runs() == f"no platform runs on {tmp_path}"
