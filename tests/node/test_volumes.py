import os
from pathlib import Path

import pytest

from hekla.api.volumes import HostPathVolumeSource, Volume, VolumeMount
from hekla.node.runtimes import ConfigError, VolumeError
from hekla.node.volumes import File, VolumeMaker, mounts_of, write_atomically


def files(directory):
    return {
        path.name: path.read_text() for path in directory.iterdir() if path.is_file() and not path.name.startswith("..")
    }


def test_files_change_all_at_once_and_nothing_old_stays(tmp_path):
    assert write_atomically(tmp_path, {"a": File(b"1", 0o644), "b": File(b"2", 0o600)})
    assert files(tmp_path) == {"a": "1", "b": "2"}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert write_atomically(tmp_path, {"a": File(b"3", 0o644)})
    assert files(tmp_path) == {"a": "3"}
    assert len([each for each in os.listdir(tmp_path) if each.startswith("..version")]) == 1


def test_writing_the_same_again_changes_nothing(tmp_path):
    payload = {"deep/a": File(b"1", 0o644)}
    assert write_atomically(tmp_path, payload)
    assert not write_atomically(tmp_path, payload)
    assert (tmp_path / "deep" / "a").read_text() == "1"


def test_a_sub_path_may_not_leave_its_volume(tmp_path):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "out").symlink_to("/etc")
    places = {"v": tmp_path / "v"}
    for sub_path in ("../x", "/etc", "out"):
        with pytest.raises(ConfigError, match="leads out of"):
            mounts_of([VolumeMount(name="v", mount_path="/data", sub_path=sub_path)], places, lambda text: text)
    (mount,) = mounts_of(
        [VolumeMount(name="v", mount_path="/data", sub_path_expr="$(A)/b")], places, lambda text: "a/b"
    )
    assert mount.source == tmp_path / "v" / "a" / "b"


def test_a_mount_of_a_volume_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match='volume "v" is mounted but not declared'):
        mounts_of([VolumeMount(name="v", mount_path="/data")], {}, lambda text: text)


def made(path, kind=""):
    """The volume of a hostPath."""
    volume = Volume(name="v", host_path=HostPathVolumeSource(path=str(path), type=kind))
    return VolumeMaker(Path(), None, lambda claim: None).make(volume, None)


KINDS = {
    "Directory": "directory", "File": "file", "Socket": "socket file", "CharDevice": "character device", "BlockDevice": "block device",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "words"), KINDS.items())
def test_a_host_path_of_the_wrong_type_is_refused_as_by_a_kubelet(tmp_path, kind, words):
    """In the sentences of 1.36.2. Of what is missing nothing is made: a BlockDevice became a directory."""
    wrong = tmp_path / "wrong"
    wrong.touch() if kind == "Directory" else wrong.mkdir()
    for path in (tmp_path / "absent", wrong):
        with pytest.raises(VolumeError, match=f'volume "v": hostPath type check failed: {path} is not a {words}$'):
            made(path, kind)
    assert not (tmp_path / "absent").exists()
    if kind == "CharDevice":
        assert made("/dev/null", kind) == Path("/dev/null")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("DirectoryOrCreate", "a directory"), ("FileOrCreate", "a file"), ("Else", "invalid volume type")],
)
def test_what_may_be_made_is_of_its_type_if_it_is_there(tmp_path, kind, words):
    wrong = tmp_path / "wrong"
    wrong.mkdir() if kind == "FileOrCreate" else wrong.touch()
    with pytest.raises(VolumeError, match=f"is (not|an) {words}$"):
        made(wrong, kind)


def test_what_is_made_for_a_host_path_is_its_owners_to_write(tmp_path):
    """Whatever the umask of the agent; of no type what is missing is made too: containerd does it, if kubelets do not."""
    before = os.umask(0)
    try:
        made(tmp_path / "a" / "b", "DirectoryOrCreate")
        made(tmp_path / "c" / "d")
        made(tmp_path / "f", "FileOrCreate")
        with pytest.raises(VolumeError, match="No such file or directory"):
            made(tmp_path / "no" / "f", "FileOrCreate")
    finally:
        os.umask(before)
    assert {str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o7777) for path in tmp_path.rglob("*")} == {
        "a": "0o755", "a/b": "0o755", "c": "0o755", "c/d": "0o755", "f": "0o644",
    }  # fmt: skip


def test_a_claim_that_is_not_bound_is_waited_for(tmp_path):
    from hekla.api.volumes import PersistentVolumeClaimVolumeSource

    volume = Volume(name="v", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name="data"))
    with pytest.raises(VolumeError, match='persistentvolumeclaim "data" is not bound yet'):
        VolumeMaker(tmp_path, None, lambda claim: None).make(volume, None)


@pytest.mark.parametrize("path", ["secret", "secret/below", "link", "plain/../secret"])
def test_a_host_path_into_what_is_the_nodes_own_is_refused(tmp_path, path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    volume = Volume(name="v", host_path=HostPathVolumeSource(path=str(tmp_path / path)))
    maker = VolumeMaker(tmp_path, None, lambda claim: None, hidden=(tmp_path / "secret",))
    with pytest.raises(VolumeError, match="is the node agent's own; no pod may mount it"):
        maker.make(volume, None)
    assert not (tmp_path / "secret").exists()


def test_a_link_that_is_put_into_the_way_while_a_sub_path_is_made_is_not_followed(tmp_path, monkeypatch):
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    real = Path.exists

    def swapped(path, **options):
        if path.is_relative_to(volume) and not (volume / "a").is_symlink():
            (volume / "a").symlink_to(outside)
            return False
        return real(path, **options)

    monkeypatch.setattr(Path, "exists", swapped)
    with pytest.raises(ConfigError, match="leads out of its volume"):
        mounts_of([VolumeMount(name="v", mount_path="/v", sub_path="a/made")], {"v": volume}, str)
    assert list(outside.iterdir()) == []


def test_a_sub_path_through_a_link_makes_nothing_outside_its_volume(tmp_path):
    """The agent is root: a pod that leads a link out of its volume would have directories made anywhere."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "a").symlink_to(outside)
    mount = VolumeMount(name="v", mount_path="/v", sub_path="a/made")
    with pytest.raises(ConfigError, match="leads out of its volume"):
        mounts_of([mount], {"v": volume}, str)
    assert list(outside.iterdir()) == []
