import errno
import os

import pytest

from hekla.app.data_directory import file_trouble, owner_of
from hekla.cli.main import main


def refusal(capsys, *arguments):
    code = main(list(arguments))
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("hekla: ")
    assert "Traceback" not in said.err
    return code, said.err.removeprefix("hekla: ").strip()


@pytest.mark.parametrize("command", ["down", "status", "up"])
def test_a_record_that_cannot_be_read_is_named(tmp_path, capsys, command):
    (tmp_path / "platform.json").mkdir()
    flags = ["--port", "0", "--nodes", "0"] if command == "up" else []
    if command == "up":
        (tmp_path / "lock").mkdir()
    code, said = refusal(capsys, command, "--data-dir", str(tmp_path), *flags)
    named = tmp_path / ("lock" if command == "up" else "platform.json")
    assert (code, said.startswith(f"{named}: is a directory")) == (1, True), said


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_state_that_is_no_directory_is_named_whichever_way_the_platform_is_started(tmp_path, capsys, detach):
    (tmp_path / "state").write_text("no directory")
    code, said = refusal(capsys, "up", "--data-dir", str(tmp_path), "--nodes", "0", *detach)
    assert (code, str(tmp_path / "state") in said) == (1, True), said


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_version_that_is_a_folder_is_named(tmp_path, capsys, detach):
    (tmp_path / "version").mkdir()
    code, said = refusal(capsys, "up", "--data-dir", str(tmp_path), *detach)
    wanted = f"{tmp_path / 'version'}: is a directory; choose another place with --data-dir"
    assert (code, said) == (1, wanted)


def test_a_place_that_cannot_be_is_named(tmp_path, capsys):
    place = tmp_path / ("x" * 300)
    code, said = refusal(capsys, "up", "--detach", "--data-dir", str(place))
    assert (code, said) == (
        1,
        f"{place} cannot be made (File name too long); choose another with --data-dir",
    )


def test_a_kubeconfig_that_is_a_folder_is_named(tmp_path, capsys):
    (tmp_path / "kubeconfig").mkdir()
    code, said = refusal(capsys, "kubeconfig", "--data-dir", str(tmp_path))
    assert (code, said) == (1, f"{tmp_path / 'kubeconfig'}: is a directory")


def test_the_owner_is_named_where_permission_is_missing(tmp_path):
    path = tmp_path / "gone" / "state.db"
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    assert file_trouble(refused) == f"{path}: permission denied; it belongs to {owner_of(tmp_path)}"
    assert file_trouble(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))) == (
        f"{path}: no space left on device"
    )
    assert file_trouble(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == "no space left on device"
