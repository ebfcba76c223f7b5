import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from hekla.api.volumes import VolumeMount
from hekla.node.runtimes import (
    ContainerKey,
    ContainerSpec,
    Limits,
    LogOptions,
    Mount,
    StartError,
    cgroups,
    confine,
    process_bound,
)
from hekla.node.runtimes.cgroups import NoCgroups
from hekla.node.runtimes.isolation import LADDER, PROCESS_GROUP, Rung
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.sweep import start_time
from hekla.node.shim import init, linux
from hekla.node.shim.init import children_of
from hekla.node.shim.landlock import MAX_SIBLINGS
from hekla.node.volumes import mounts_of
from hekla.testing.conformance.runtimes import Bench, eventually, output_of, processes_with

PID_MAX = Path("/proc/sys/kernel/pid_max")
RUNGS = [rung for rung in LADDER if os.geteuid() == 0 or rung.name != "namespaces"]

NODE = """
import asyncio, sys
from pathlib import Path
from hekla.node.runtimes import ContainerKey, ContainerSpec
from hekla.node.runtimes.isolation import LADDER
from hekla.node.runtimes import process_bound
from hekla.node.runtimes.process import ProcessRuntime

async def main():
    rung = next(each for each in LADDER if each.name == sys.argv[2])
    runtime = ProcessRuntime(Path(sys.argv[1]), rung=rung, grace_s=0)
    await runtime.open(lambda key, end: None)
    script = f"setsid sleep {sys.argv[3]} & sleep {sys.argv[3]} & wait"
    for name in ("a", "b"):
        await runtime.start(ContainerSpec(key=ContainerKey("u1", name, 0), argv=("sh", "-c", script)))
    print(runtime._spawners.current.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


UNDER_ONE_WHO_REAPS_NOBODY = """
import os, sys
from hekla.node.shim import init, linux
linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
os.close(1)
sys.stdin.read()
"""

WITH_A_COMMAND = NODE.replace(
    "    print(", '    await runtime.exec(ContainerKey("u1", "a", 0), ["sleep", sys.argv[3]])\n    print('
)


class Life:
    """A node process of its own that runs two containers of two sleeping processes each."""

    def __init__(self, state: Path, rung: Rung, seconds: str) -> None:
        self.mark = f"sleep\x00{seconds}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(state), rung.name, seconds], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.spawner = int(self.process.stdout.readline() or 0)

    def sleepers(self) -> list[int]:
        return processes_with(self.mark)

    def end(self) -> None:
        for pid in [self.process.pid, self.spawner, *self.sleepers()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_killed_node_leaves_no_orphan(tmp_path, rung):
    life = Life(tmp_path / "state", rung, "54321.1")
    try:
        asyncio.run(eventually(lambda: len(life.sleepers()) == 4))
        os.kill(life.process.pid, signal.SIGKILL)
        asyncio.run(eventually(lambda: life.sleepers() == []))
        asyncio.run(eventually(lambda: start_time(life.spawner) == 0))
    finally:
        life.end()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_spawner_under_one_who_reaps_nobody_ends_with_its_node(tmp_path, rung):
    """The init of a container waited for a command in it, whose parent had been killed and which nobody reaped."""
    argv = [UNDER_ONE_WHO_REAPS_NOBODY, WITH_A_COMMAND, str(tmp_path / "state"), rung.name, "54321.4"]
    above = subprocess.Popen([sys.executable, "-c", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with above:
        spawner = int(above.stdout.readline() or 0)
        try:
            asyncio.run(eventually(lambda: len(processes_with("sleep\x0054321.4")) == 5))
            [node] = children_of(above.pid)
            os.kill(node, signal.SIGKILL)
            asyncio.run(eventually(lambda: start_time(spawner) == 0))
            assert processes_with("sleep\x0054321.4") == []
        finally:
            for pid in [*processes_with("sleep\x0054321.4"), *children_of(above.pid), spawner]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            above.kill()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_killed_spawner_takes_its_containers_along(tmp_path, rung):
    life = Life(tmp_path / "state", rung, "54321.2")
    try:
        asyncio.run(eventually(lambda: len(life.sleepers()) == 4))
        os.kill(life.spawner, signal.SIGKILL)
        asyncio.run(eventually(lambda: life.sleepers() == []))
    finally:
        life.end()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_the_next_life_ends_what_even_a_kill_of_every_keeper_left(tmp_path, rung):
    life = Life(tmp_path / "state", rung, "54321.3")
    try:
        asyncio.run(eventually(lambda: len(life.sleepers()) == 4))
        inits = children_of(life.spawner)
        assert len(inits) == 2
        for pid in (life.process.pid, life.spawner, *inits):
            os.kill(pid, signal.SIGSTOP)
        for pid in (*inits, life.spawner, life.process.pid):
            os.kill(pid, signal.SIGKILL)

        async def next_life() -> None:
            runtime = ProcessRuntime(tmp_path / "state", rung=rung)
            await runtime.open(lambda key, end: None)
            assert life.sleepers() == []
            assert await runtime.observe() == {}
            await runtime.close()

        asyncio.run(next_life())
    finally:
        life.end()


def test_a_process_with_a_reused_id_is_left_alone(tmp_path):
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        (tmp_path / "spawners").mkdir()
        (tmp_path / "spawners/0.sock").touch()
        (tmp_path / "spawners/0.json").write_text(json.dumps({"pid": stranger.pid, "start": 1}))

        async def life() -> None:
            runtime = ProcessRuntime(tmp_path)
            await runtime.open(lambda key, end: None)
            await runtime.close()

        asyncio.run(life())
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def live(tmp_path, story, rung=None, hidden=()):
    async def told() -> None:
        runtime = ProcessRuntime(tmp_path / "state", rung=rung, hidden=hidden)
        bench = Bench(runtime, tmp_path)
        await runtime.open(bench.on_exit)
        try:
            await story(runtime, bench)
        finally:
            await runtime.close()

    asyncio.run(told())


def test_a_lost_spawner_ends_every_container_with_137_and_another_takes_its_place(tmp_path):
    async def story(runtime, bench):
        spec = bench.spec("main", "sleep 1000")
        await runtime.start(spec)
        os.kill(runtime._spawners.current.pid, signal.SIGKILL)
        assert (await bench.end_of(spec.key)).code == 137
        _, log = await bench.run(bench.spec("next", "echo again"))
        assert log == "again\n"

    live(tmp_path, story)


def test_a_container_that_eats_too_much_is_killed_for_memory(tmp_path):
    async def story(runtime, bench):
        if isinstance(runtime.cgroups, NoCgroups):
            pytest.skip(runtime.cgroups.describe())
        spec = ContainerSpec(
            key=ContainerKey("u1", "main", 0),
            argv=("python3", "-c", "x = bytearray(400 << 20)"),
            limits=Limits(memory_bytes=64 << 20),
        )
        end, _ = await bench.run(spec)
        assert (end.code, end.reason) == (137, "OOMKilled")

    live(tmp_path, story)


def test_without_control_groups_memory_is_limited_by_rlimit(tmp_path):
    async def story(runtime, bench):
        runtime.cgroups = NoCgroups("a test")
        runtime._confiner = runtime._confiner_for(runtime.isolation)
        spec = ContainerSpec(
            key=ContainerKey("u1", "main", 0),
            argv=("python3", "-c", "x = bytearray(400 << 20)"),
            limits=Limits(memory_bytes=200 << 20),
        )
        end, log = await bench.run(spec)
        assert end.code == 1
        assert "MemoryError" in log

    live(tmp_path, story)


BOMB = """
import os, time
count = 0
while count < 200:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError as problem:
        print(count, problem.strerror, flush=True)
        break
    count += 1
"""


def test_a_fork_bomb_leaves_the_machine_its_process_ids(tmp_path):
    async def story(runtime, bench):
        group = runtime.process_bound.group
        if group is None:
            pytest.skip(runtime.process_bound.describe())
        assert int((group / "pids.max").read_text()) == runtime.process_bound.most < int(PID_MAX.read_text())
        (group / "pids.max").write_text("60")
        key = ContainerKey("u1", "main", 0)
        end, log = await bench.run(ContainerSpec(key=key, argv=("python3", "-c", BOMB)))
        count, said = log.split(" ", 1)
        assert (end.code, said) == (0, "Resource temporarily unavailable\n")
        assert 20 < int(count) < 60
        assert subprocess.run(["true"], check=True).returncode == 0  # we are not held by it
        end, _ = await bench.run(bench.spec("after", "exit 3"))  # all of the bomb has gone with its container
        assert end.code == 3

    live(tmp_path, story)


def test_without_a_group_for_them_an_ordinary_users_processes_are_bounded_by_rlimit(tmp_path, monkeypatch):
    monkeypatch.setattr(process_bound, "MOUNT", tmp_path / "absent")
    bound = process_bound.find_bound("x")
    assert (bound.group, bound.rlimit) == (None, 0)
    assert bound.describe() == "the number of processes is not bounded (No such file or directory)"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(process_bound.resource, "getrlimit", lambda _: (400, 400))
    bound = process_bound.find_bound("x")
    assert bound.rlimit == 300
    assert bound.describe().startswith("all pods together have at most 300 processes, by rlimit (no control group: ")


def test_a_group_that_takes_no_spawner_is_no_bound(tmp_path):
    bound = process_bound.ProcessBound(tmp_path / "absent", 7)
    bound.take(1)
    assert (bound.group, bound.why) == (None, "No such file or directory")


def test_groups_of_nodes_that_never_came_back_go_once_they_are_old_and_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(process_bound, "MOUNT", tmp_path)
    own, old, young, other = (f"hekla-{letter * 12}" for letter in "abcd")
    for name in (own, old, young, other, "hekla-sandboxes-0123456789ab", "somebody"):
        (tmp_path / "pids" / name).mkdir(parents=True)
        if name != young:
            os.utime(tmp_path / "pids" / name, (1, 1))
    (tmp_path / "pids" / other / "busy").touch()
    os.utime(tmp_path / "pids" / other, (1, 1))
    process_bound.find_bound(own)
    left = {each.name for each in (tmp_path / "pids").iterdir()}
    assert left == {own, young, other, "hekla-sandboxes-0123456789ab", "somebody"}


def test_the_trees_of_nodes_that_never_came_back_go_with_the_groups_of_their_containers(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    dead, living = (f"hekla-{letter * 12}" for letter in "bc")
    for hierarchy in ("memory", "cpu"):
        for name in (f"{dead}/u1-main-0", dead, f"{living}/u1-main-0", living):
            (tmp_path / hierarchy / name).mkdir(parents=True, exist_ok=True)
            os.utime(tmp_path / hierarchy / name, (1, 1))
        (tmp_path / hierarchy / living / "u2-main-0").mkdir()  # made a moment ago, and not joined yet
        os.utime(tmp_path / hierarchy / living, (1, 1))
    (tmp_path / "memory" / "memory.limit_in_bytes").touch()
    cgroups.find_cgroups(f"hekla-{'a' * 12}")
    for hierarchy in ("memory", "cpu"):
        assert not (tmp_path / hierarchy / dead).exists()
        assert (tmp_path / hierarchy / living / "u2-main-0").exists()


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({"pid_max": "4194304", "threads-max": "127000", "node/pids.max": "max"}, 95_250),
        ({"pid_max": "32768", "threads-max": "127000"}, 24_576),
        ({"pid_max": "32768", "threads-max": "127000", "pids.max": "max", "node/pids.max": "400"}, 300),
    ],
)  # fmt: skip
def test_the_bound_lies_below_every_limit_of_the_machine_and_of_the_groups_above(tmp_path, monkeypatch, told, most):
    group = tmp_path / "node" / "pods"
    group.mkdir(parents=True)
    for name, text in told.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(process_bound, "KERNEL", tmp_path)
    assert process_bound.find_bound("x", group).most == most


def test_in_version_2_the_spawner_has_a_leaf_of_its_own(tmp_path):
    bound = process_bound.find_bound("x", tmp_path)
    bound.take(4711)
    assert (tmp_path / "spawner" / "cgroup.procs").read_text() == "4711"
    assert int((tmp_path / "pids.max").read_text()) == bound.most


def test_the_nodes_own_directory_cannot_be_seen(tmp_path):
    async def story(runtime, bench):
        (tmp_path / "state" / "secret").write_text("key")
        end, log = await bench.run(bench.spec("main", f"cat {tmp_path}/state/secret"))
        assert end.code != 0
        assert "key" not in log

    live(tmp_path, story)


def test_credentials_of_the_node_are_seen_neither_in_place_nor_through_a_volume(tmp_path):
    """A file is covered as a directory is; a hostPath of what lies above shows neither, and a link to them leads nowhere."""

    async def story(runtime, bench):
        if not runtime.isolation.rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        script = f"cat {tmp_path}/kept/a.key {tmp_path}/kept/token/t; cat /v/a.key /v/token/t; cat /v/plain"
        above = Mount(source=tmp_path / "kept", target="/v", is_read_only=True)
        _, log = await bench.run(replace(bench.spec("main", script), mounts=(above,)))
        assert ("key" in log.split(), "plain" in log.split()) == (False, True)
        (tmp_path / "link").symlink_to(tmp_path / "kept/token")
        led = replace(bench.spec("led", "cat /v/t"), mounts=(Mount(source=tmp_path / "link", target="/v"),))
        with pytest.raises(StartError, match="leads to what containers must not see"):
            await runtime.start(led)

    (tmp_path / "kept/token").mkdir(parents=True)
    for name, text in (("a.key", "key"), ("token/t", "key"), ("plain", "plain")):
        (tmp_path / "kept" / name).write_text(text + "\n")
    live(tmp_path, story, hidden=(tmp_path / "kept/a.key", tmp_path / "kept/token"))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_credentials_that_are_renewed_by_a_rename_stay_covered_in_a_running_container(tmp_path, rung):
    """A file renamed over a mount point takes the mount away; a link is led elsewhere; one that was missing comes."""
    kept, own = tmp_path / "kept", tmp_path / "own"
    own.mkdir()

    async def story(runtime, bench):
        if runtime.isolation.rung is not rung or not (rung.has_mounts or runtime.isolation.uses_landlock):
            pytest.skip(runtime.isolation.sentence)
        # two slashes, so that the lowest rung does not take the path for one of the container's own /tmp
        places = [f"/{kept}/{name}" for name in ("a.key", "current", "second", "late", "first", "b.key")]
        seen = [*places, *(each.replace(f"/{kept}", "/v") for each in places)] if rung.has_mounts else places
        spec = bench.spec(
            "main",
            "sleep 1000",
            mounts=(Mount(source=kept, target="/v", is_read_only=True),) if rung.has_mounts else (),
        )
        await runtime.start(spec)
        for name in ("a.key", "b.key", "late", "second"):
            (kept / "fresh").write_text("key\n")
            (kept / "fresh").rename(kept / name)
        (kept / "link").symlink_to("second")
        (kept / "link").rename(kept / "current")
        command = await runtime.exec(spec.key, ["cat", *seen, "/v/plain" if rung.has_mounts else f"/{kept}/plain"])
        output, _, _ = await output_of(command)
        assert output.split() == ["plain"]
        if rung.has_mounts:  # over what is left out a volume is as writable as elsewhere
            over = replace(
                bench.spec("over", f"echo x > {kept}/x && cat {kept}/x"), mounts=(Mount(source=own, target=str(kept)),)
            )
            assert (await bench.run(over))[1] == "x\n"
        await runtime.stop(spec.key, grace_s=0)

    kept.mkdir()
    for name in ("a.key", "b.key", "first"):
        (kept / name).write_text("key\n")
    (kept / "plain").write_text("plain\n")
    (kept / "current").symlink_to("first")
    live(tmp_path, story, rung, hidden=[kept / name for name in ("a.key", "b.key", "current", "late")])


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("named", ["key", "certs/current/key"])
@pytest.mark.parametrize("store", ["", "../store/"])
def test_credentials_that_are_renewed_by_leading_a_directory_elsewhere_stay_covered(tmp_path, rung, named, store):
    """As Secrets of Kubernetes and certbot renew them: another directory is made, and a link on the way leads there."""
    kept = tmp_path / "kept"
    certs = kept / "certs"
    held = certs / (store or ".")

    async def story(runtime, bench):
        if runtime.isolation.rung is not rung or not (rung.has_mounts or runtime.isolation.uses_landlock):
            pytest.skip(runtime.isolation.sentence)
        ways = ["key", "certs/current/key", *(os.path.normpath(f"certs/{store}{each}/key") for each in ("v1", "v2"))]
        seen = [f"/{kept}/{each}" for each in ways]
        if rung.has_mounts:
            seen += [f"/v/{each}" for each in ways]
        spec = bench.spec(
            "main",
            "sleep 1000",
            mounts=(Mount(source=kept, target="/v", is_read_only=True),) if rung.has_mounts else (),
        )
        await runtime.start(spec)
        (held / "v2").mkdir()
        (held / "v2/key").write_text("RENEWED\n")
        (certs / "next").symlink_to(f"{store}v2")
        (certs / "next").rename(certs / "current")
        command = await runtime.exec(
            spec.key, ["cat", *seen, "/v/other/plain" if rung.has_mounts else f"/{kept}/other/plain"]
        )
        output, _, _ = await output_of(command)
        assert output.split() == ["plain"]
        await runtime.stop(spec.key, grace_s=0)

    certs.mkdir(parents=True)
    (held / "v1").mkdir(parents=True)
    (kept / "other").mkdir()
    (kept / "other/plain").write_text("plain\n")
    (held / "v1/key").write_text("key\n")
    (certs / "current").symlink_to(f"{store}v1")
    (kept / "key").symlink_to("certs/current/key")
    live(tmp_path, story, rung, hidden=[kept / named])


def test_a_volume_stays_writable_or_is_refused_where_a_credential_of_the_node_lies_in_it(tmp_path):
    kept = tmp_path / "above/kept"

    async def story(runtime, bench):
        if not runtime.isolation.rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        told = replace(bench.spec("told", "echo"), mounts=(Mount(source=kept, target="/v"),))
        with pytest.raises(StartError, match="holds a credential of the node; mount it read-only") as refused:
            await runtime.start(told)
        assert str(kept) in str(refused.value)
        # above it all is writable but the directory of the credential, and what may come some day seals nothing
        script = "echo x > /v/x && cat /v/x; cat /v/kept/key; echo y > /v/kept/y"
        above = replace(bench.spec("above", script), mounts=(Mount(source=tmp_path / "above", target="/v"),))
        end, log = await bench.run(above)
        assert log.split()[0] == "x"
        assert ("SECRET" in log, end.code) == (False, 2)

    kept.mkdir(parents=True)
    (kept / "key").write_text("SECRET\n")
    live(tmp_path, story, hidden=(kept / "key", tmp_path / "above/token"))


def test_a_node_says_at_its_start_which_directories_are_too_crowded_for_a_credential(tmp_path, monkeypatch):
    monkeypatch.setattr("hekla.node.shim.mounts.MAX_SHADOWED", 3)
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("key", "a", "b", "c"):
        (kept / name).touch()

    async def story(runtime, bench):
        pass

    with structlog.testing.capture_logs() as told:
        live(tmp_path, story, hidden=(kept / "key",))
    [warning] = [each for each in told if "too many entries" in each["event"]]
    assert (warning["directory"], warning["entries"], warning["log_level"]) == (str(kept), 4, "warning")


def test_a_volume_that_could_be_shown_only_in_part_on_the_lowest_rung_is_refused(tmp_path):
    """Which entries were missing was chance."""
    kept = tmp_path / "above/kept"
    kept.mkdir(parents=True)
    for number in range(MAX_SIBLINGS + 1):
        (kept / f"{number}.key").touch()

    async def story(runtime, bench):
        if not runtime.isolation.uses_landlock:
            pytest.skip(runtime.isolation.sentence)
        told = replace(bench.spec("told", "echo"), mounts=(Mount(source=tmp_path / "above", target="/v"),))
        with pytest.raises(StartError, match=f"{kept} holds what containers must not see, and 4097 entries"):
            await runtime.start(told)
        end, _ = await bench.run(bench.spec("other", "true"))
        assert end.code == 0

    live(tmp_path, story, PROCESS_GROUP, hidden=(kept / "7.key",))


def test_a_root_that_is_read_only_shows_nothing_of_the_hosts_private_places(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        spec = replace(bench.spec("main", "ls -A /run; echo x > /run/x; echo x > /tmp/x"), is_root_read_only=True)
        end, log = await bench.run(spec)
        assert end.code != 0
        assert {line.rpartition(": ")[2] for line in log.splitlines()} == {"Read-only file system"}

    live(tmp_path, story)


def test_on_the_lowest_rung_landlock_keeps_the_nodes_directory_from_being_read(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.uses_landlock:
            pytest.skip(runtime.isolation.sentence)
        (tmp_path / "state" / "secret").write_text("key")
        script = f"cat {tmp_path}/state/secret; cat /etc/hostname >/dev/null && echo fine; echo x > {tmp_path}/out"
        _, log = await bench.run(bench.spec("main", script))
        assert "key" not in log
        assert "fine" in log
        assert not (tmp_path / "out").exists()

    live(tmp_path, story, PROCESS_GROUP)


def test_the_settings_of_the_hosts_kernel_cannot_be_written(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        # what is there already, so that nothing changes should it succeed
        script = (
            "for each in kernel/core_pattern vm/swappiness kernel/hostname; do"
            ' now=$(cat /proc/sys/$each); echo "$now" > /proc/sys/$each && echo "wrote $each"; done;'
            " cat /proc/self/comm"
        )
        _, log = await bench.run(bench.spec("main", script))
        assert "wrote" not in log
        assert "cat" in log.splitlines()  # the two streams' lines arrive in either order

    live(tmp_path, story)


def test_a_mount_call_is_refused_inside(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.has_seccomp:
            pytest.skip(runtime.isolation.sentence)
        script = (
            "import ctypes, os; l = ctypes.CDLL(None, use_errno=True); print(l.unshare(0x10000000), ctypes.get_errno())"
        )
        key = ContainerKey("u1", "main", 0)
        _, log = await bench.run(ContainerSpec(key=key, argv=("python3", "-c", script)))
        assert log == "-1 1\n"

    live(tmp_path, story)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_container_runs_as_the_user_it_names(tmp_path):
    async def story(runtime, bench):
        spec = bench.spec("main", "id -u; id -g; echo x > /tmp/f && cat /tmp/f", user=1234, group=2345)
        _, log = await bench.run(spec)
        assert log == "1234\n2345\nx\n"

    live(tmp_path, story)


def test_a_missing_working_directory_is_made_and_is_private(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        _, log = await bench.run(bench.spec("main", "pwd; echo x > f; cat f", working_dir="/no/such/place"))
        assert log == "/no/such/place\nx\n"
        assert not Path("/no/such/place").exists()

    live(tmp_path, story)


def test_a_chatty_containers_log_is_rotated_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("hekla.node.runtimes.confine.LOG_MAX_BYTES", 20_000)

    async def story(runtime, bench):
        spec = bench.spec("main", "seq 100000")
        await bench.run(spec)
        parts = list((tmp_path / "state" / "logs" / "u1" / "main").iterdir())
        assert len(parts) == 5
        assert sum(part.stat().st_size for part in parts) < 5 * 800_000  # one read of 64 KiB may be over the line
        assert await bench.log_of(spec.key, LogOptions(tail_lines=3)) == "99998\n99999\n100000\n"

    live(tmp_path, story)


def test_a_very_long_line_is_put_together_again(tmp_path):
    async def story(runtime, bench):
        spec = bench.spec("main", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo short")
        _, log = await bench.run(spec)
        assert log == "x" * 100000 + "\nshort\n"
        assert await bench.log_of(spec.key, LogOptions(tail_lines=1)) == "short\n"
        assert await bench.log_of(spec.key, LogOptions(tail_lines=2)) == log

    live(tmp_path, story)


def pod_address(number: int) -> str:
    """An address for a pod that no other process of the test run uses at the same time."""
    me = os.getpid()
    return f"127.{66 + number}.{me >> 8 & 0xFF}.{me & 0xFF or 1}"


LISTEN = """
import socket, sys, threading
def listen():
    s = socket.socket(socket.AF_INET6 if sys.argv[1] == "v6" else socket.AF_INET)
    if sys.argv[1] == "v6": s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::" if sys.argv[1] == "v6" else "0.0.0.0", 28765)); s.listen()
    print(s.getsockname()[0], flush=True)
    taken = socket.socket()
    try: taken.bind(("0.0.0.0", 28765))
    except OSError as e: print(e.strerror, flush=True)
    s.accept()[0].sendall(sys.argv[2].encode())
thread = threading.Thread(target=listen); thread.start(); thread.join()
"""


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("family", ["v4", "v6"])
def test_pods_that_listen_on_every_address_get_their_own(tmp_path, rung, family):
    async def story(runtime, bench):
        if not runtime.isolation.has_own_addresses:
            pytest.skip(runtime.isolation.sentence)
        addresses = {"a": pod_address(0), "b": pod_address(1)}
        for name, address in addresses.items():
            key = ContainerKey("u1", name, 0)
            argv = ("python3", "-c", LISTEN, family, name)
            await runtime.start(ContainerSpec(key=key, argv=argv, pod_ip=address))
            await bench.wait_for_log(key, "already in use")
        for name, address in addresses.items():
            reader, writer = await asyncio.open_connection(address, 28765)
            assert await reader.read() == name.encode()
            writer.close()
            assert (await bench.end_of(ContainerKey("u1", name, 0))).code == 0

    live(tmp_path, story, rung)


def test_a_client_that_binds_port_zero_is_left_alone(tmp_path):
    async def story(runtime, bench):
        program = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0])"
        key = ContainerKey("u1", "main", 0)
        _, log = await bench.run(ContainerSpec(key=key, argv=("python3", "-c", program), pod_ip="127.65.200.3"))
        assert log == "0.0.0.0\n"

    live(tmp_path, story)


FORBIDDEN = """
import asyncio, sys
from pathlib import Path
from hekla.node.runtimes import ContainerKey, ContainerSpec, LogOptions
from hekla.node.runtimes import process_bound
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.shim import linux, seccomp

async def main():
    ended = asyncio.Event()
    runtime = ProcessRuntime(Path(sys.argv[1]))
    await runtime.open(lambda key, end: ended.set())
    key = ContainerKey("u1", "main", 0)
    await runtime.start(ContainerSpec(key=key, argv=("sh", "-c", "echo it runs")))
    await ended.wait()
    log = b"".join([piece async for piece in runtime.logs(key, LogOptions())])
    print(runtime.isolation.rung.name, log.decode(), runtime.isolation.sentence)
    await runtime.close()

linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
seccomp.refuse_dangerous_calls()  # as a container engine, or AppArmor on Ubuntu 24.04, forbids namespaces
asyncio.run(main())
"""


def test_where_namespaces_are_forbidden_pods_run_a_rung_lower_and_the_node_says_why(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert told.startswith("process-group it runs")
    assert "user-namespaces refused: " in told
    assert "Operation not permitted" in told


FIND_ME = """
import fcntl, socket, struct, array
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener = socket.socket(); listener.bind((sys_argv_address, 0)); listener.listen()
port = listener.getsockname()[1]
print("to a pod from", socket.create_connection((sys_argv_address, port)).getsockname()[0], listener.accept()[1][0])
six = socket.socket(socket.AF_INET6); six.connect(("::ffff:" + sys_argv_address, port))
print("by IPv6 from", six.getsockname()[0], listener.accept()[1][0])
local = socket.socket(); local.bind(("127.0.0.1", 0)); local.listen()
print("to localhost from", socket.create_connection(local.getsockname()).getsockname()[0])
room = array.array("B", bytes(4096))
told, _ = struct.unpack("=i4xQ", fcntl.ioctl(out, 0x8912, struct.pack("=i4xQ", 4096, room.buffer_info()[0])))
entries = [bytes(room[at:at + 40]) for at in range(0, told, 40)]
print("interfaces", *sorted(socket.inet_ntoa(one[20:24]) for one in entries))
for one in entries:
    name = one[:16].rstrip(bytes(1)).decode()
    asked = fcntl.ioctl(out, 0x8915, struct.pack("40s", name.encode()))
    print("same one by one", socket.inet_ntoa(asked[20:24]) == socket.inet_ntoa(one[20:24]))
try: fcntl.ioctl(out, 0x8915, struct.pack("40s", b"no-such"))
except OSError as e: print(e.strerror)
"""


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_container_finds_its_pods_address_where_the_hosts_would_be(tmp_path, rung):
    async def story(runtime, bench):
        if not runtime.isolation.has_own_addresses:
            pytest.skip(runtime.isolation.sentence)
        address = pod_address(2)
        key = ContainerKey("u1", "main", 0)
        program = f"sys_argv_address = {address!r}\n{FIND_ME}"
        spec = ContainerSpec(key=key, argv=("python3", "-c", program), pod_ip=address)
        end, log = await bench.run(spec)
        assert end.code == 0, log
        lines = log.splitlines()
        assert lines[:3] == [
            f"to a pod from {address} {address}", f"by IPv6 from ::ffff:{address} {address}", "to localhost from 127.0.0.1",
        ]  # fmt: skip
        # a host may have no interface but the loopback's
        assert lines[3] in ("interfaces 127.0.0.1", f"interfaces 127.0.0.1 {address}")
        assert set(lines[4:-1]) == {"same one by one True"}
        assert lines[-1] == "No such device"

    live(tmp_path, story, rung)


TALK_TO_ONESELF = """
import socket, sys, threading
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", 28767)); listener.listen()
def answer():
    while True:
        peer, _ = listener.accept()
        peer.sendall(sys.argv[1].encode()); peer.close()
threading.Thread(target=answer, daemon=True).start()
print("listens", flush=True)
for _ in range(3):
    c = socket.create_connection(("127.0.0.1", 28767)); print("by localhost", c.recv(9).decode(), flush=True)
local = socket.socket(); local.bind(("127.0.0.1", 0)); local.listen()
print("its own localhost first", socket.create_connection(local.getsockname()).getpeername() == local.getsockname())
try: socket.create_connection(("127.0.0.1", 1))
except ConnectionRefusedError: print("refused where nobody listens")
"""


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_localhost_is_the_pods_own_where_it_listens_on_every_address(tmp_path, rung):
    async def story(runtime, bench):
        if not runtime.isolation.has_own_addresses:
            pytest.skip(runtime.isolation.sentence)
        addresses = {"a": pod_address(3), "b": pod_address(4)}
        for name, address in addresses.items():
            key = ContainerKey("u1", name, 0)
            argv = ("python3", "-c", TALK_TO_ONESELF, name)
            await runtime.start(ContainerSpec(key=key, argv=argv, pod_ip=address))
        for name in addresses:
            key = ContainerKey("u1", name, 0)
            end, log = await bench.end_of(key), await bench.log_of(key)
            assert end.code == 0, log
            assert log.splitlines() == [
                "listens", *[f"by localhost {name}"] * 3, "its own localhost first True", "refused where nobody listens",
            ]  # fmt: skip

    live(tmp_path, story, rung)


PRIVATE_DEVICES = {
    "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "termination-log", "tty",
    "urandom", "zero",
}  # fmt: skip


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_container_has_a_dev_of_its_own_with_what_every_program_expects(tmp_path, rung):
    async def story(runtime, bench):
        if runtime.isolation.rung is not rung or not rung.has_mounts:
            pytest.skip(runtime.isolation.sentence)
        script = (
            "ls /dev; ls /dev/pts; head -c1 /dev/urandom >/dev/null && echo x >/dev/null && echo x >/dev/shm/x"
            " && python3 -c 'import os; m, s = os.openpty(); print(os.ttyname(s))'; touch /dev/y; mkdir /dev/z"
        )
        spec = bench.spec("main", script, termination_message_path="/dev/termination-log")
        _, log = await bench.run(spec)
        words = [line for line in log.splitlines() if "Read-only" not in line]
        assert set(words) == PRIVATE_DEVICES | {"/dev/pts/0"}
        assert log.count("Read-only file system") == 2

    live(tmp_path, story, rung)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_terminal_is_its_users_who_may_open_it_anew(tmp_path, rung):
    async def story(runtime, bench):
        if runtime.isolation.rung is not rung or os.geteuid() != 0 or runtime.isolation.rung.name != "namespaces":
            pytest.skip(runtime.isolation.sentence)
        script = "echo opened > $(tty); stat -c %u:%a $(tty)"
        await runtime.start(replace(bench.spec("main", f"{script}; sleep 1000"), user=1000, group=1000, has_tty=True))
        command = await runtime.exec(ContainerKey("u1", "main", 0), ["sh", "-c", script], has_tty=True)
        output, _, _ = await output_of(command)
        assert output.split() == ["opened", "1000:620"]
        async with asyncio.timeout(10):
            while "1000:620" not in (log := await bench.log_of(ContainerKey("u1", "main", 0))):
                await asyncio.sleep(0.01)
        assert log.split() == ["opened", "1000:620"]
        await runtime.stop(ContainerKey("u1", "main", 0), grace_s=0)

    live(tmp_path, story, rung)


OPENS_DEVICES = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        print(path, "opened")
    except OSError as problem:
        print(path, problem.strerror)
"""


HARMLESS = next((path for path in ("/dev/fuse", "/dev/loop-control", "/dev/tty0") if os.path.exists(path)), "")
"""A device that root opens without any capability, and nothing comes of it; /dev/kmsg asks for one."""

needs_device = pytest.mark.skipif(os.geteuid() != 0 or not HARMLESS, reason="needs root and a machine's devices")


@needs_device
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_no_device_of_the_machine_opens_in_place_or_through_a_volume(tmp_path, rung):
    async def story(runtime, bench):
        isolation = runtime.isolation
        if isolation.rung is not rung or not (rung.has_mounts or isolation.uses_landlock):
            pytest.skip(isolation.sentence)
        argv = ("python3", "-c", OPENS_DEVICES, HARMLESS, f"/v{HARMLESS}", "/one", "/dev/null")
        mounts = (
            Mount(source=Path("/"), target="/v", is_read_only=True),
            Mount(source=Path(HARMLESS), target="/one"),
        )
        spec = replace(bench.spec("main"), argv=argv, mounts=mounts)
        _, log = await bench.run(spec)
        assert [line.split()[0] for line in log.splitlines() if line.endswith("opened")] == ["/dev/null"]
        privileged = replace(bench.spec("all"), argv=argv[:4], is_privileged=True)
        _, log = await bench.run(privileged)
        if not rung.namespaces & linux.CLONE_NEWUSER:
            assert log == f"{HARMLESS} opened\n"

    live(tmp_path, story, rung)


@pytest.mark.parametrize("is_read_only", [False, True])
def test_on_the_lowest_rung_a_volume_that_holds_dev_and_the_nodes_own_shows_neither(tmp_path, is_read_only):
    """Landlock cannot deny: the rule that let a hostPath of / be used let its devices, and the node's keys, be opened too."""
    secret, seen = tmp_path / "held" / "secret", tmp_path / "held" / "deep" / "seen"
    seen.parent.mkdir(parents=True)
    secret.write_text("key")
    seen.write_text("seen")

    async def story(runtime, bench):
        if not runtime.isolation.uses_landlock:
            pytest.skip(runtime.isolation.sentence)
        seen.write_text("seen")
        held = Mount(source=tmp_path / "held", target="/held", is_read_only=is_read_only)
        whole = Mount(source=Path("/"), target="/whole", is_read_only=True)
        script = f"cat /held/secret /whole{secret} /whole{seen}; echo new >> /held/deep/seen; head -c0 /whole/dev/null && echo opens"
        _, log = await bench.run(replace(bench.spec("main", script), mounts=(held, whole)))
        assert "key" not in log
        assert log.count("Permission denied") == (3 if is_read_only else 2)
        assert seen.read_text() == ("seen" if is_read_only else "seennew\n")
        assert "opens" in log  # its streams come in any order

    live(tmp_path, story, PROCESS_GROUP, hidden=(secret,))


@needs_device
def test_on_the_lowest_rung_dev_as_a_volume_has_what_every_container_has(tmp_path):
    async def story(runtime, bench):
        if not runtime.isolation.uses_landlock:
            pytest.skip(runtime.isolation.sentence)
        (tmp_path / "link").symlink_to(HARMLESS)
        argv = ("python3", "-c", OPENS_DEVICES, f"/d/{os.path.basename(HARMLESS)}", "/d/zero", "/link")
        mounts = (Mount(source=Path("/dev"), target="/d"), Mount(source=tmp_path / "link", target="/link"))
        _, log = await bench.run(replace(bench.spec("main"), argv=argv, mounts=mounts))
        assert [line.split()[0] for line in log.splitlines() if line.endswith("opened")] == ["/dev/zero"]

    live(tmp_path, story, PROCESS_GROUP)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_link_that_is_put_into_the_way_of_a_sub_path_is_not_followed(tmp_path, rung):
    """CVE-2017-1002101's kind: another container of the pod swaps it in after the agent has looked and before init opens."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("key")
    mount = VolumeMount(name="v", mount_path="/data", sub_path="sub/deep")

    async def story(runtime, bench):
        isolation = runtime.isolation
        if isolation.rung is not rung or not (rung.has_mounts or isolation.uses_landlock):
            pytest.skip(isolation.sentence)
        volume.mkdir()
        mounts = mounts_of([mount], {"v": volume}, str)
        (volume / "sub" / "deep" / "key").write_text("mine")
        _, log = await bench.run(replace(bench.spec("first", "cat /data/key"), mounts=mounts))
        assert log == "mine"
        (volume / "sub").rename(volume / "aside")
        (outside / "deep").symlink_to(outside)
        (volume / "sub").symlink_to(outside)
        with pytest.raises(StartError, match="a link was put into the way of a subPath"):
            await bench.run(replace(bench.spec("second", "cat /data/key; echo new > /data/key"), mounts=mounts))
        assert (outside / "key").read_text() == "key"

    live(tmp_path, story, rung)


MAKES = """
import os, socket, sys
for name, act in (
    ("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    ("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)),
    ("node", lambda: os.mknod("/tmp/node", 0o20600, os.makedev(1, 11))),
    ("opened", lambda: os.open("/tmp/node", os.O_RDONLY)),
    ("owner", lambda: os.chown("/tmp", 1, 1)),
):
    try:
        act()
        print(name)
    except OSError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no capabilities to give")
@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, ["owner"]),
        ({"drop_capabilities": ("ALL",)}, []),
        ({"drop_capabilities": ("CHOWN",)}, []),
        ({"keep_capabilities": ("NET_RAW",)}, ["raw", "packet", "owner"]),
        ({"keep_capabilities": ("MKNOD",)}, ["node", "owner"]),
        ({"user": 1234}, []),
    ],
    ids=["default", "drop all", "drop one", "add NET_RAW", "add MKNOD", "an ordinary user"],
)
def test_root_of_a_container_neither_listens_to_the_network_nor_makes_devices_unless_it_asks(tmp_path, fields, may):
    async def story(runtime, bench):
        if runtime.isolation.rung is not LADDER[0]:
            pytest.skip(runtime.isolation.sentence)
        _, log = await bench.run(replace(bench.spec("main"), argv=("python3", "-c", MAKES), **fields))
        assert log.split() == may

    live(tmp_path, story, LADDER[0])


def test_only_who_is_given_gpus_sees_their_devices(monkeypatch):
    monkeypatch.setattr(
        confine.Path, "glob", lambda self, pattern: [Path("/dev/nvidia0")] if "nvidia" in pattern else []
    )
    spec = ContainerSpec(key=ContainerKey("u1", "main", 0), argv=("true",))
    assert confine.devices_given(spec) == []
    assert confine.devices_given(replace(spec, devices=(0,))) == ["nvidia0"]


@pytest.mark.parametrize("has_tty", [False, True])
def test_who_attaches_sees_the_prompt_and_what_is_typed_at_once(tmp_path, has_tty):
    async def story(runtime, bench):
        spec = bench.spec("main", "printf 'name? '; read name; echo hello $name", has_stdin=True, has_tty=has_tty)
        await runtime.start(spec)
        log = runtime._log_path(spec.key)
        await eventually(lambda: log.exists() and b"name? " in log.read_bytes())
        session = await runtime.attach(spec.key)
        assert await session.read() == (1, b"name? ")
        seen = b""
        for typed, shown in [(b"ab", b"ab"), (b"\n", b"hello ab")] if has_tty else [(b"ab\n", b"hello ab")]:
            await session.write(typed)
            while shown not in seen:
                seen += (await session.read())[1]
        await session.close()

    live(tmp_path, story)


def test_an_end_that_is_heard_with_the_death_of_its_init_is_heard_once(tmp_path):
    """Both wait when the spawner wakes up: what it did for the first had closed what the second came by."""

    async def story(runtime, bench):
        spec = bench.spec("main", "exec sleep 1000")
        await runtime.start(spec)
        attempt, spawner = runtime._attempts[spec.key], runtime._spawners.current.pid
        [init] = children_of(spawner)
        os.kill(spawner, signal.SIGSTOP)
        os.kill(children_of(init)[0], signal.SIGKILL)
        await eventually(lambda: Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        os.kill(spawner, signal.SIGCONT)
        await attempt.gone
        assert (attempt.exit.code, attempt.exit.signal) == (137, 9)

    live(tmp_path, story)
    assert (tmp_path / "state/spawners/spawner.log").read_text() == ""


def test_what_a_start_was_refused_is_told_with_its_file():
    """An ordinary user's container with a mount below /root said "Permission denied", and not of what."""
    refused = PermissionError(13, "Permission denied", "/data/node/root/root/.ssh")
    assert init._sentence(refused, "/data/node/root") == "Permission denied (/root/.ssh)"
    assert init._sentence(OSError(13, "volume /x: Permission denied")) == "volume /x: Permission denied"
    assert init._sentence(ImportError("no module")) == "no module"
