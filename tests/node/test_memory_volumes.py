"""An emptyDir in memory is a tmpfs where one may be mounted, lies in /dev/shm where that has room, and says so where it is on disk."""

import os
import shutil

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.kube.clock import SystemClock
from hekla.node import memory_volumes
from hekla.node.memory_volumes import MemoryVolumes, _kind_of_file_system
from hekla.node.pod_lifecycle import Backoff
from hekla.node.runtimes.isolation import PROCESS_GROUP
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.simulated import SimulatedRuntime

EMPTY = {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}


def pod(uid="u1", volume=EMPTY, memory=""):
    limits = {"resources": {"limits": {"memory": memory}}} if memory else {}
    spec = {"containers": [{"name": "main", "image": "x", **limits}], "volumes": [volume]}
    return msgspec.convert({"metadata": {"name": "p", "uid": uid}, "spec": spec}, Pod)


def forbid_mounts(monkeypatch):
    def mount(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(memory_volumes.linux, "mount", mount)


def make(memory, directory, made, **more):
    return memory.make(directory, made, made.spec.volumes[0], is_running=False, **more)


@pytest.fixture
def shared(tmp_path):
    """A directory in memory that is ours."""
    place = memory_volumes.SHARED / f"hekla-test-{os.getpid()}"
    if not place.parent.is_dir():
        pytest.skip("this machine has no /dev/shm")
    place.mkdir()
    yield place
    shutil.rmtree(place)


def test_who_may_not_mount_gets_a_directory_in_dev_shm_that_goes_with_the_pod(tmp_path, shared, monkeypatch):
    forbid_mounts(monkeypatch)
    memory = MemoryVolumes("d", shared)
    place, why = make(memory, tmp_path, pod())
    assert (place.is_relative_to(shared), why) == (True, "")
    assert _kind_of_file_system(place) == memory_volumes.TMPFS_MAGIC
    assert (place.stat().st_mode & 0o777, place.parent.parent.stat().st_mode & 0o777) == (0o777, 0o700)
    (place / "kept").touch()
    assert make(memory, tmp_path, pod()) == (place, "")
    assert (place / "kept").exists()
    assert memory.leftovers() == ["u1"]
    memory.drop(tmp_path, "u1")
    assert not place.exists()
    assert memory.leftovers() == []


def test_where_dev_shm_has_no_room_the_volume_is_on_disk_with_a_sentence(tmp_path, shared, monkeypatch):
    forbid_mounts(monkeypatch)
    memory = MemoryVolumes("d", shared)
    for volume in ({"sizeLimit": "9E"}, {"sizeLimit": "1e400"}):
        asked = {"name": "fast", "emptyDir": {"medium": "Memory", **volume}}
        place, why = make(memory, tmp_path, pod(volume=asked))
        assert place == tmp_path / "volumes" / "fast"
        assert why.startswith(f"this node may mount no tmpfs (Operation not permitted), and {shared} has ")
    place, why = make(MemoryVolumes("d", tmp_path / "absent"), tmp_path / "b", pod())
    assert "is not there (No such file or directory)" in why
    monkeypatch.setattr(memory_volumes, "_kind_of_file_system", lambda path: 0xEF53)
    assert "is not in memory" in make(memory, tmp_path / "c", pod())[1]


def test_where_volumes_may_lie_in_dev_shm_no_container_sees_them(shared, monkeypatch):
    monkeypatch.setattr(memory_volumes, "_may_mount", lambda: False)
    memory = MemoryVolumes("d", shared)
    (hidden,) = memory.hidden()
    assert (hidden.is_dir(), hidden.parent) == (True, shared)
    memory.close()
    assert not hidden.exists()
    assert MemoryVolumes("d", shared / "absent").hidden() == ()
    monkeypatch.setattr(memory_volumes, "_may_mount", lambda: True)
    assert memory.hidden() == ()


def test_a_directory_of_somebody_else_in_dev_shm_is_not_used_and_keeps_no_volume_from_memory(
    tmp_path, shared, monkeypatch
):
    """Whoever made a directory of the name that can be guessed had every memory volume of the node fail."""
    forbid_mounts(monkeypatch)
    squatted = shared / f"hekla-{os.geteuid()}-d"
    squatted.mkdir(mode=0o755)
    memory = MemoryVolumes("d", shared)
    place, why = make(memory, tmp_path, pod())
    assert (place.is_relative_to(shared), place.is_relative_to(squatted), why) == (True, False, "")
    assert list(squatted.iterdir()) == []
    again = MemoryVolumes("d", shared)
    assert make(again, tmp_path, pod()) == (place, ""), "the node's next life finds it"
    assert again.leftovers() == ["u1"]
    again.drop(tmp_path, "u1")
    again.close()
    assert list(shared.iterdir()) == [squatted]


def test_a_name_that_is_taken_in_the_very_moment_is_told_and_another_is_used_next(tmp_path, shared, monkeypatch):
    forbid_mounts(monkeypatch)
    memory = MemoryVolumes("d", shared)
    squatted = memory._all()
    squatted.mkdir(mode=0o777)
    with pytest.raises(PermissionError, match="somebody else made this directory"):
        make(memory, tmp_path, pod())
    place, why = make(memory, tmp_path, pod())
    assert (place.is_relative_to(shared), place.is_relative_to(squatted), why) == (True, False, "")


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("mounts", [False, True])
def test_what_somebody_else_put_in_dev_shm_is_no_volume_is_not_hidden_and_not_removed(
    tmp_path, shared, monkeypatch, is_link, mounts
):
    """The name can be guessed, and all may write to /dev/shm."""
    monkeypatch.setattr(memory_volumes.linux, "mount", lambda *_: None)
    monkeypatch.setattr(memory_volumes, "_may_mount", lambda: mounts)
    elsewhere = (tmp_path if is_link else shared) / f"hekla-{os.geteuid()}-d"
    planted = elsewhere / "u1" / "fast" / "planted.so"
    planted.parent.mkdir(parents=True)
    planted.touch()
    elsewhere.chmod(0o777)
    if is_link:
        elsewhere.chmod(0o700)
        (shared / elsewhere.name).symlink_to(elsewhere)
    memory, own = MemoryVolumes("d", shared), tmp_path / "pod"
    hidden = memory.hidden()
    assert elsewhere not in hidden
    assert len(hidden) == (0 if mounts else 1)
    assert make(memory, own, pod()) == (own / "volumes" / "fast", "")
    memory.drop(own, "u1")
    memory.close()
    assert planted.exists()


def test_what_could_not_be_hidden_when_the_node_started_is_not_used_later(tmp_path, shared, monkeypatch):
    forbid_mounts(monkeypatch)
    monkeypatch.setattr(memory_volumes, "_may_mount", lambda: False)
    memory = MemoryVolumes("d", shared)
    other = memory._all()
    other.mkdir(mode=0o755)
    assert memory.hidden() == ()
    other.rmdir()
    place, why = make(memory, tmp_path, pod())
    assert (place, "was not ours to hide" in why) == (tmp_path / "volumes" / "fast", True)
    assert not other.exists()


@pytest.mark.parametrize(
    ("limit", "of_pod", "size"),
    [("1Mi", "", 1 << 20), ("", "2Mi", 2 << 20), ("3Mi", "2Mi", 2 << 20), ("0", "", 0), ("", "", 0), ("1e400", "", 0)],
)
def test_a_tmpfs_is_as_large_as_the_least_of_what_is_named(tmp_path, monkeypatch, limit, of_pod, size):
    told = []
    monkeypatch.setattr(memory_volumes.linux, "mount", lambda *told_: told.append(told_))
    made = pod(volume={"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}, memory=of_pod)
    make(MemoryVolumes("d"), tmp_path, made)
    assert told[0][4] == "mode=0777" + (f",size={size}" if size else "")


def test_what_containers_have_stays_where_it_is(tmp_path, monkeypatch):
    """Made by a release that knew no memory: a tmpfs over it would part the pod's containers."""
    monkeypatch.setattr(memory_volumes.linux, "mount", lambda *_: pytest.fail("mounted"))
    made, memory, own = pod(), MemoryVolumes("d"), tmp_path / "volumes" / "fast"
    assert memory.make(tmp_path, made, made.spec.volumes[0], is_running=True) == (own, "")
    (own / "data").touch()
    assert make(memory, tmp_path, made) == (own, "")


def may_mount(tmp_path):
    place = tmp_path / "tried"
    place.mkdir()
    try:
        memory_volumes._mount(place, 1 << 20)
    except OSError:
        return False
    memory_volumes.linux.unmount(str(place))
    return True


SHARES = {"volumes": [EMPTY], "restartPolicy": "Always"}


def containers(script):
    mount = {"name": "fast", "mountPath": "/fast"}
    writer = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": [mount]}
    reader = {**writer, "name": "reader", "command": ["sh", "-c", "until cat /fast/a; do sleep 0.1; done; sleep 1000"]}
    return {"containers": [writer, reader], **SHARES}


def places_of(cluster):
    (tracked,) = cluster.agent.pods
    return tracked.places["fast"]


def test_a_pod_writes_to_memory_up_to_the_limit_and_its_containers_share_it(live, tmp_path):
    if not may_mount(tmp_path):
        pytest.skip("no tmpfs may be mounted here")

    async def story(cluster):
        script = "echo here > /fast/a; head -c 4000000 /dev/zero > /fast/b || echo full; exec sleep 1000"
        await cluster.apply("p", containers(script))
        await cluster.running("p")
        place = places_of(cluster)
        assert os.path.ismount(place)
        while "full" not in await cluster.log("p") or await cluster.log("p", "reader") == "":
            await cluster.until("p", lambda pod: True)
        assert (place / "b").stat().st_size < 1 << 20
        await cluster.restart_agent()  # containers and memory end, as with a machine; the pod goes on
        await cluster.until("p", lambda pod: pod.status.container_statuses[0].restart_count >= 1)
        assert os.path.ismount(places_of(cluster))
        await cluster.client.delete(Pod, "p", "default", grace_s=1)
        await cluster.gone("p")
        assert not place.exists()

    live(story, backoff=Backoff(first_s=0.01, max_s=0.02))


def test_a_memory_volume_survives_an_agent_that_leaves_its_containers(live, tmp_path):
    if not may_mount(tmp_path):
        pytest.skip("no tmpfs may be mounted here")

    async def story(cluster):
        await cluster.apply("p", containers("echo here > /fast/a; exec sleep 1000"))
        await cluster.running("p")
        while not (places_of(cluster) / "a").exists():
            await cluster.until("p", lambda pod: True)
        await cluster.restart_agent(leaves_containers=True)
        (tracked,) = cluster.agent.pods
        await cluster.agent._actions.refresh_volumes(tracked)
        assert (tracked.places["fast"] / "a").read_text() == "here\n"

    live(story)


def test_on_the_lowest_rung_without_mounts_a_pod_writes_to_dev_shm(live, tmp_path, shared, monkeypatch):
    forbid_mounts(monkeypatch)

    async def story(cluster):
        object.__setattr__(cluster.agent._memory, "shared", shared)
        spec = containers("echo here > /fast/a; exec sleep 1000")
        await cluster.apply("p", {**spec, "restartPolicy": "Never"})
        await cluster.running("p")
        while await cluster.log("p", "reader") == "":
            await cluster.until("p", lambda pod: True)
        assert places_of(cluster).is_relative_to(shared)
        await cluster.client.delete(Pod, "p", "default", grace_s=1)
        await cluster.gone("p")
        assert list(shared.glob("*/*")) == []

    runtime = ProcessRuntime(tmp_path / "runtime", hidden=[tmp_path, shared], rung=PROCESS_GROUP)
    live(story, runtimes=[runtime, SimulatedRuntime(SystemClock())])


def test_a_volume_on_disk_that_was_to_be_memory_is_told(live, shared, monkeypatch):
    forbid_mounts(monkeypatch)

    async def story(cluster):
        object.__setattr__(cluster.agent._memory, "shared", shared / "absent")
        await cluster.apply("p", containers("exec sleep 1000"), node="n0")
        said = await cluster.event(memory_volumes.ON_DISK)
        assert said.startswith(
            'volume "fast" was to be in memory (medium: Memory) and is on disk: this node may mount no'
        )

    live(story)
