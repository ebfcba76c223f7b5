import json
import shutil
import socket

import pytest

from hekla.testing.platform import PlatformProcess, refusal_of


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A data directory that a platform has lived on, with one object in it."""
    folder = tmp_path_factory.mktemp("used") / "data"
    with PlatformProcess(folder) as platform:
        body = {"metadata": {"name": "kept"}}
        assert platform.ask("POST", "/api/v1/namespaces/default/configmaps", body).status == 201
    return folder


@pytest.fixture
def data(used, tmp_path):
    return shutil.copytree(used, tmp_path / "data")


def refused(data, *flags):
    status, said = refusal_of(data, *flags)
    assert status == 1
    assert "Traceback" not in said
    sentences = [line for line in said.splitlines() if line.startswith("hekla: ")]
    assert len(sentences) == 1, said
    return sentences[0]


def test_what_was_written_is_there_after_a_restart(data):
    with PlatformProcess(data) as platform:
        assert platform.ask("GET", "/api/v1/namespaces/default/configmaps/kept").status == 200


@pytest.mark.parametrize("damage", ["garbage", "truncated", "a torn middle"])
def test_a_corrupt_database_is_told_in_a_sentence(data, damage):
    database = data / "state" / "store.db"
    for beside in ("store.db-wal", "store.db-shm"):
        (data / "state" / beside).unlink(missing_ok=True)
    whole = database.read_bytes()
    broken = {
        "garbage": b"this is no database" * 1000,
        "truncated": whole[: len(whole) // 3],
        "a torn middle": whole[:4096] + b"\xff" * (len(whole) - 8192) + whole[-4096:],
    }
    database.write_bytes(broken[damage])
    assert str(database) in refused(data)
    assert database.read_bytes() == broken[damage], "nothing is thrown away"


def test_a_directory_of_a_newer_version_is_left_alone(data):
    (data / "version").write_text("999\n")
    said = refused(data)
    assert "written by a newer Hekla" in said
    assert "--data-dir" in said


def test_a_version_that_is_none_is_told(data):
    (data / "version").write_text("banana\n")
    assert "holds no version number" in refused(data)


def test_a_damaged_key_is_told(data):
    (data / "pki" / "ca.key").write_text("no key")
    assert str(data / "pki") in refused(data)


def test_a_second_platform_on_the_same_data_is_refused_and_says_where_the_first_is(data):
    with PlatformProcess(data) as first:
        said = refused(data)
        assert str(first.pid) in said
        assert first.url in said
        assert first.ask("GET", "/readyz").status == 200


def test_a_port_that_is_taken_makes_it_choose_another(data):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with PlatformProcess(data, port=port) as platform:
            assert platform.port != port
            assert platform.ask("GET", "/readyz").status == 200
            assert f":{platform.port}" in platform.kubeconfig.read_text()


def test_a_stale_record_of_a_platform_that_is_gone_is_no_obstacle(data):
    record = {"pid": 1, "start_ticks": 1, "url": "https://127.0.0.1:1", "version": "0"}
    (data / "platform.json").write_text(json.dumps(record))
    with PlatformProcess(data) as platform:
        assert platform.ask("GET", "/readyz").status == 200


def test_a_file_instead_of_a_directory_is_told(tmp_path):
    (tmp_path / "data").write_text("")
    assert str(tmp_path / "data") in refused(tmp_path / "data")


def test_secrets_of_the_platform_are_for_its_owner_only(data):
    with PlatformProcess(data) as platform:
        assert platform.kubeconfig.stat().st_mode & 0o077 == 0
        keys = [path for path in (data / "pki").iterdir() if path.suffix == ".key"]
        assert keys
        assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
