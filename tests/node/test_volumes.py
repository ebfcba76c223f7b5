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


@pytest.mark.parametrize("kind", ["Directory", "File", "Socket"])
def test_a_host_path_of_the_wrong_type_is_refused(tmp_path, kind):
    source = HostPathVolumeSource(path=str(tmp_path / "absent"), type=kind)
    with pytest.raises(VolumeError, match="hostPath type check failed"):
        VolumeMaker(Path(), None, lambda claim: None).make(Volume(name="v", host_path=source), None)


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
