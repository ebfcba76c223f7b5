"""Containers of plain pods outlive their node: the next life finds them as they were, and where none comes nothing is left."""

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from hekla.node.runtimes import ContainerKey, ContainerSpec, ExecError, StartError
from hekla.node.runtimes.cgroups import NoCgroups
from hekla.node.runtimes.isolation import LADDER
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.spawner_link import SpawnerLink
from hekla.node.runtimes.sweep import start_time
from hekla.node.shim import spawner
from hekla.node.shim.init import children_of
from hekla.testing.conformance.runtimes import Bench, eventually, output_of, processes_with

RUNGS = [rung for rung in LADDER if os.geteuid() == 0 or rung.name != "namespaces"]
FOREVER = float("inf")
KEY = ContainerKey("u1", "main", 0)

NODE = """
import asyncio, json, math, os, sys
from pathlib import Path
from hekla.node.runtimes import ContainerKey, ContainerSpec, Limits
from hekla.node.runtimes.cgroups import NoCgroups
from hekla.node.runtimes.isolation import LADDER
from hekla.node.runtimes.process import ProcessRuntime
async def main():
    rung = next(each for each in LADDER if each.name == sys.argv[2])
    runtime = ProcessRuntime(Path(sys.argv[1]), rung=rung, grace_s=float(sys.argv[3]))
    await runtime.open(lambda key, end: None)
    key = ContainerKey("u1", "main", 0)
    async def start(attempt=0, script=sys.argv[4], **fields):
        spec = ContainerSpec(key=ContainerKey("u1", "main", attempt), argv=("sh", "-c", script), hostname="pod-1", **fields)
        await runtime.start(spec)
        return runtime._attempts[spec.key]
    async def begun():
        log = Path(sys.argv[1]) / "logs/u1/main/0.log"
        while not log.exists() or not log.read_text():
            await asyncio.sleep(0.01)
    {more}
    print(json.dumps([runtime.isolation.rung.name, runtime._spawners.current.pid]), flush=True)
    {then}
    await asyncio.sleep(1000)
asyncio.run(main())
"""


class Before:
    """An earlier life of the node: it ran containers, and is to be killed."""

    all: ClassVar[list["Before"]] = []

    def __init__(
        self,
        state: Path,
        script="exec sleep 1000",
        *,
        rung=LADDER[-1],
        grace_s=FOREVER,
        more="await start()",
        then="pass",
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE.format(more=more, then=then), str(state), rung.name, str(grace_s), script],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, "the life before failed"
        found, self.spawner = json.loads(line)
        self.spawner_start = start_time(self.spawner)
        Before.all.append(self)
        if found != rung.name:
            self.kill()
            os.kill(self.spawner, signal.SIGKILL)
            pytest.skip(f"the host has no rung {rung.name}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(autouse=True)
def _nothing_is_left_by_a_test_that_fails():
    yield
    while Before.all:
        before = Before.all.pop()
        if before.process.returncode is None:
            before.kill()
        if before.spawner_start and start_time(before.spawner) == before.spawner_start:
            os.kill(before.spawner, signal.SIGKILL)


@asynccontextmanager
async def next_life(state: Path, *, grace_s=FOREVER, rung=LADDER[-1]):
    """The life after; what runs ends with the block."""
    runtime = ProcessRuntime(state, rung=rung, grace_s=grace_s)
    bench = Bench(runtime, state)
    await runtime.open(bench.on_exit)
    try:
        yield bench
    finally:
        await runtime.close()


def lived(state: Path, story, **options):
    async def told() -> None:
        async with next_life(state, **options) as bench:
            await story(bench.runtime, bench)

    asyncio.run(told())


async def run_in(runtime, *argv):
    output, errors, code = await output_of(await runtime.exec(KEY, argv))
    return output + errors, code


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_container_outlives_its_node_as_the_same_process_with_its_log(tmp_path, rung):
    state = tmp_path / "state"
    mark = uuid.uuid4().hex  # other runs of this test may be under way
    # no shell: one that forks is two of its command line until the child has become another
    count = f"exec python3 -uc 'import itertools as i, time; [(print(f\"line {{n}}\"), time.sleep(0.02)) for n in i.count(1)]' {mark}"
    before = Before(state, count, rung=rung)
    ran = sorted({*processes_with(mark)} - {before.process.pid})
    assert len(ran) == 1
    before.kill()

    async def story(runtime, bench):
        observed = (await runtime.observe())[KEY]
        assert (observed.exit, observed.container_id) == (None, "process://u1/main/0")
        assert observed.started_at > 0
        assert processes_with(mark) == ran
        seen = len((await bench.log_of(KEY)).splitlines())
        await bench.wait_for_log(KEY, f"line {seen + 5}\n")
        lines = (await bench.log_of(KEY)).splitlines()
        assert lines == [f"line {number + 1}" for number in range(len(lines))]
        if rung.has_mounts:
            assert await run_in(runtime, "hostname") == ("pod-1\n", 0)
        assert await run_in(runtime, "sh", "-c", "exit 3") == ("", 3)
        await runtime.stop(KEY, grace_s=30)
        end = await bench.end_of(KEY)
        assert (end.code, end.signal, end.started_at) == (143, 15, observed.started_at)
        assert len(bench.ends) == 1

    lived(state, story, rung=rung)
    assert processes_with(mark) == []


def test_how_a_container_ended_while_no_node_was_there_is_told_as_it_was(tmp_path):
    state, mark = tmp_path / "state", tmp_path / "mark"
    before = Before(state, f"until [ -e /{mark} ]; do sleep 0.01; done; echo last words >&2; exit 7")
    before.kill()
    mark.touch()
    log = state / "logs/u1/main/0.log"
    asyncio.run(eventually(lambda: "last words" in log.read_text()))

    async def story(runtime, bench):
        async with asyncio.timeout(60):
            while (end := (await runtime.observe())[KEY].exit) is None:
                await asyncio.sleep(0.01)
        assert (end.code, end.reason, end.container_id) == (7, "Error", "process://u1/main/0")
        assert 0 < end.started_at <= end.finished_at
        assert await bench.log_of(KEY) == "last words\n"
        with pytest.raises(ExecError):
            await runtime.exec(KEY, ["true"])

    lived(state, story)


def test_how_it_ended_is_told_to_every_next_life_until_it_is_forgotten(tmp_path):
    """A node may be killed between an end that it heard of and the word that it gave of it."""
    state = tmp_path / "state"
    more = "await (await start()).gone; await (await start(1)).gone; await (await start(2)).gone"
    for life in (more, "pass", "pass"):
        Before(state, "exit 5", more=life).kill()

    async def story(runtime, bench):
        observed = await runtime.observe()
        # of those before the last one two suffice: how it ended, and how the one before did
        assert {key.attempt: each.exit.code for key, each in observed.items()} == {1: 5, 2: 5}
        await runtime.remove("u1")
        assert await runtime.observe() == {}
        await runtime.leave()

    async def nothing(runtime, bench):
        assert await runtime.observe() == {}

    lived(state, story)
    lived(state, nothing)


def test_a_node_that_leaves_is_taken_up_after_and_one_that_closes_leaves_nothing(tmp_path):
    state = tmp_path / "state"
    before = Before(state, "exec sleep 61234.2", then="await runtime.leave(); return")
    assert before.process.wait() == 0
    before.process.stdout.close()

    async def story(runtime, bench):
        assert (await runtime.observe())[KEY].exit is None

    lived(state, story)
    assert processes_with("sleep\x0061234.2") == []
    assert start_time(before.spawner) == 0


LINGERS = """
import json, os, socket, struct, sys
listener = socket.socket(fileno=int(sys.argv[1]))
caller, _ = listener.accept()
def hear():
    data = caller.recv(struct.unpack(">I", caller.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
    return json.loads(data)["order"]
assert hear() == "hello"
told = json.dumps({"event": "welcome", "protocol": int(sys.argv[2]), "pid": os.getpid()}).encode()
caller.sendall(struct.pack(">I", len(told)) + told)
assert hear() == "end"
caller.close()
print("closed", flush=True)
sys.stdin.read()
"""


def test_a_spawner_that_was_taken_up_has_ended_when_it_is_closed_and_not_only_hung_up(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.sock"))
        listener.listen()
        lingers = subprocess.Popen(
            [sys.executable, "-c", LINGERS, str(listener.fileno()), str(spawner.PROTOCOL)],
            pass_fds=[listener.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    async def story():
        link = SpawnerLink(tmp_path, "s", lambda link, report: None, lambda link: None, grace_s=FOREVER)
        await link.find(retires=False)
        closing = asyncio.get_running_loop().create_task(link.close())
        assert await asyncio.to_thread(lingers.stdout.readline) == b"closed\n"
        for _ in range(20):
            await asyncio.sleep(0)
        was_done = closing.done()
        lingers.stdin.close()
        await closing
        assert not was_done

    with lingers:
        asyncio.run(story())


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_where_no_node_comes_back_within_the_grace_nothing_is_left(tmp_path, rung):
    before = Before(tmp_path / "state", "trap 'exit 0' TERM; sleep 61234.3 & wait", grace_s=0.2, rung=rung)
    before.kill()
    asyncio.run(eventually(lambda: start_time(before.spawner) == 0))
    assert processes_with("sleep\x0061234.3") == []
    assert list((tmp_path / "state/spawners").glob("*.sock")) == []


def test_a_spawner_without_a_node_lets_containers_end_in_order_when_its_machine_goes_down(tmp_path):
    before = Before(tmp_path / "state", "trap 'echo saved; exit 0' TERM; echo; sleep 61234.4 & wait")
    log = tmp_path / "state/logs/u1/main/0.log"
    asyncio.run(eventually(lambda: bool(log.read_text())))
    before.kill()

    async def told():
        async with asyncio.timeout(60):
            while start_time(before.spawner):
                os.kill(before.spawner, signal.SIGTERM)  # it may not have seen yet that its node is gone
                await asyncio.sleep(0.1)

    asyncio.run(told())
    assert processes_with("sleep\x0061234.4") == []
    assert "saved" in log.read_text()


def test_a_spawner_that_holds_nothing_ends_with_its_node(tmp_path):
    before = Before(tmp_path / "state", more="pass")
    before.kill()
    asyncio.run(eventually(lambda: start_time(before.spawner) == 0))


def test_commands_end_with_the_node_that_ran_them_and_the_container_goes_on(tmp_path):
    more = 'await start(); await runtime.exec(key, ["sleep", "61234.5"])'
    Before(tmp_path / "state", more=more).kill()
    asyncio.run(eventually(lambda: processes_with("sleep\x0061234.5") == []))

    async def story(runtime, bench):
        assert (await runtime.observe())[KEY].exit is None

    lived(tmp_path / "state", story)


def test_the_spawner_of_an_earlier_release_goes_on_with_what_it_has_and_another_starts_what_is_new(tmp_path):
    state = tmp_path / "state"
    before = Before(state)
    before.kill()
    for file in (state / "spawners").iterdir():
        file.rename(file.with_name(f"0123456789abcdef{file.suffix}") if file.suffix != ".log" else file)

    async def story(runtime, bench):
        assert await run_in(runtime, "sh", "-c", "exit 4") == ("", 4)
        _, log = await bench.run(bench.spec("new", "echo new"))
        assert log == "new\n"
        assert runtime._spawners.current.pid != before.spawner
        await runtime.stop(KEY, grace_s=0)
        assert (await bench.end_of(KEY)).code == 137
        assert start_time(before.spawner), "it remembers how its container ended, until that is forgotten"
        await runtime.remove("u1")
        await eventually(lambda: start_time(before.spawner) == 0)
        _, log = await bench.run(bench.spec("newer", "echo newer"))
        assert log == "newer\n"

    lived(state, story)


def test_what_is_noted_and_makes_no_sense_ends_its_container_and_says_so(tmp_path):
    """Another release may note otherwise."""
    more = "from hekla.node.runtimes import attempt_notes; attempt_notes.write = lambda note: {'who': 'knows'}; await start()"
    Before(tmp_path / "state", "exec sleep 61234.6", more=more).kill()

    async def story(runtime, bench):
        end = (await runtime.observe())[KEY].exit
        assert (end.code, end.reason) == (137, "ContainerStatusUnknown")
        assert "makes no sense" in end.message
        assert processes_with("sleep\x0061234.6") == []

    lived(tmp_path / "state", story)


def test_a_spawner_that_speaks_otherwise_ends_with_all_it_holds(tmp_path):
    before = Before(tmp_path / "state", "exec sleep 61234.7")
    before.kill()

    async def told():
        patch = pytest.MonkeyPatch()
        patch.setattr("hekla.node.runtimes.spawner_link.PROTOCOL", 2)
        async with next_life(tmp_path / "state") as bench:
            patch.undo()
            assert await bench.runtime.observe() == {}
            assert processes_with("sleep\x0061234.7") == []
            assert start_time(before.spawner) == 0

    asyncio.run(told())


STEPS = {
    "ordered": "asyncio.ensure_future(start()); await asyncio.sleep(0)",
    "on its way": "asyncio.ensure_future(start()); await asyncio.sleep(0.02)",
    "running": "await start()",
    "being stopped": "await start(); await begun(); asyncio.ensure_future(runtime.stop(key, grace_s=60)); await asyncio.sleep(0.05)",
    "being killed": "await start(); asyncio.ensure_future(runtime.stop(key, grace_s=0)); await asyncio.sleep(0)",
    "forgotten while it runs": "await start(); await runtime.remove('u1')",
}


@pytest.mark.parametrize("step", STEPS)
def test_whenever_the_node_is_killed_there_is_one_process_or_none_and_an_end_is_told(tmp_path, step):
    """What was ordered and not begun is begun by the next life; nothing runs twice, and nothing unheard."""
    state, mark = tmp_path / "state", f"62{list(STEPS).index(step)}34.8"
    script = f"trap '' TERM; echo; exec sleep {mark}"
    before = Before(state, script, more=STEPS[step])
    before.kill()

    async def story(runtime, bench):
        await runtime.start(bench.spec("main", script))
        if (found := (await runtime.observe())[KEY].exit) is not None:
            assert (step, found.code) == ("being killed", 137)
            return
        await eventually(lambda: len(processes_with(f"sleep\x00{mark}")) == 1)
        await runtime.stop(KEY, grace_s=0)
        assert (await bench.end_of(KEY)).code == 137
        assert processes_with(f"sleep\x00{mark}") == []

    lived(state, story)


def test_what_could_not_be_started_is_told_by_the_next_life(tmp_path):
    more = """
    from hekla.node.runtimes import StartError
    try:
        await runtime.start(ContainerSpec(key=key, argv=("no-such-command",)))
    except StartError:
        pass
    """
    Before(tmp_path / "state", more=more).kill()

    async def story(runtime, bench):
        end = (await runtime.observe())[KEY].exit
        assert (end.code, end.reason) == (128, "StartError")
        assert "no-such-command" in end.message

    lived(tmp_path / "state", story)


def test_memory_that_ran_out_while_no_node_was_there_is_told(tmp_path):
    state = tmp_path / "state"
    eats = "exec python3 -c 'import os, time; [time.sleep(0.01) for _ in iter(lambda: os.path.exists(\"/%s\"), True)]; x = bytearray(400 << 20)'"
    mark = tmp_path / "mark"
    more = "(await start(limits=Limits(memory_bytes=64 << 20)))"
    Before(state, eats % mark, more=more).kill()
    mark.touch()

    async def story(runtime, bench):
        if isinstance(runtime.cgroups, NoCgroups):
            pytest.skip(runtime.cgroups.describe())
        async with asyncio.timeout(60):
            while (end := (await runtime.observe())[KEY].exit) is None:
                await asyncio.sleep(0.01)
            assert (end.code, end.reason) == (137, "OOMKilled")
            while list(
                Path("/sys/fs/cgroup").glob(f"**/hekla-{runtime._digest}/u1-main-0")
            ):  # removed once it was told
                await asyncio.sleep(0.01)

    lived(state, story)


def test_a_container_cannot_take_itself_for_the_node(tmp_path):
    """On the lowest rung it has the node's user, and may find the socket."""
    state = tmp_path / "state"
    asks = """
import socket, sys
asker = socket.socket(socket.AF_UNIX)
try:
    asker.connect(sys.argv[1])
    asker.sendall(b"\\0\\0\\0\\x0f" + b'{"order":"end"}')
    print(len(asker.recv(1)))
except OSError as refusal:
    print("0")
"""

    async def story(runtime, bench):
        [door] = (state / "spawners").glob("*.sock")
        spec = ContainerSpec(key=ContainerKey("u2", "asks", 0), argv=("python3", "-c", asks, f"/{door}"))
        _, log = await bench.run(spec)
        assert log == "0\n"
        _, log = await bench.run(bench.spec("next", "echo still here"))
        assert log == "still here\n"
        assert len({link.pid for link in [runtime._spawners.current]}) == 1

    lived(state, story)


HELLO = """
import json, os, signal, socket, struct, sys
door, secret, goes = sys.argv[1:4]
os.chdir(os.path.dirname(door))  # the whole path may be too long for a socket
caller = socket.socket(socket.AF_UNIX)
if goes and (child := os.fork()):
    os.waitpid(child, 0)
else:
    caller.connect(os.path.basename(door))
    if goes:
        os._exit(0)
if goes:
    os.kill(int(goes), signal.SIGCONT)
body = json.dumps({"order": "hello", "protocol": 1, "secret": secret, "grace_s": 1000, "retires": False}).encode()
try:
    caller.sendall(struct.pack(">I", len(body)) + body)
    print(len(caller.recv(1)))
except OSError:
    print(0)
"""


def files_of(state):
    """The socket of the only spawner, and what its agent must know (a spawner before that asked for nothing)."""
    [door] = (state / "spawners").glob("*.sock")
    secret = door.with_suffix(".secret")
    return door, secret.read_text() if secret.exists() else ""


def test_who_does_not_know_the_secret_is_no_agent(tmp_path):
    state = tmp_path / "state"

    async def story(runtime, bench):
        door, _ = files_of(state)
        hello = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HELLO, door, "guessed", "", stdout=subprocess.PIPE
        )
        assert await hello.communicate() == (b"0\n", None)
        _, log = await bench.run(bench.spec("next", "echo still here"))
        assert log == "still here\n"

    lived(state, story)


def test_who_cannot_be_told_from_a_container_is_no_agent(tmp_path):
    """A container's child connects and ends, and its parent speaks."""
    state = tmp_path / "state"

    async def story(runtime, bench):
        spawner = runtime._spawners.current.pid
        os.kill(spawner, signal.SIGSTOP)
        try:
            hello = await asyncio.create_subprocess_exec(
                sys.executable, "-c", HELLO, *files_of(state), str(spawner), stdout=subprocess.PIPE
            )
            assert await hello.communicate() == (b"0\n", None)
        finally:
            os.kill(spawner, signal.SIGCONT)
        _, log = await bench.run(bench.spec("next", "echo still here"))
        assert log == "still here\n"
        assert runtime._spawners.current.pid == spawner

    lived(state, story)


def test_what_an_earlier_spawner_holds_is_no_agent_of_the_next(tmp_path):
    state = tmp_path / "state"
    Before(state).kill()
    for file in (state / "spawners").iterdir():
        file.rename(file.with_name(f"0123456789abcdef{file.suffix}") if file.suffix != ".log" else file)

    async def story(runtime, bench):
        spawner = runtime._spawners.open().pid
        [door] = {*(state / "spawners").glob("*.sock")} - {*(state / "spawners").glob("0123456789abcdef*")}
        secret = door.with_suffix(".secret")
        said = secret.read_text() if secret.exists() else ""
        # with two slashes, as the interpreter may lie below a path that is a mount inside and is rewritten there
        assert await run_in(runtime, f"/{sys.executable}", "-c", HELLO, f"/{door}", said, "") == ("0\n", 0)
        _, log = await bench.run(bench.spec("next", "echo still here"))
        assert log == "still here\n"
        assert runtime._spawners.current.pid == spawner

    lived(state, story)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_no_container_sees_the_secret(tmp_path, rung):
    state = tmp_path / "state"

    async def story(runtime, bench):
        if not (rung.has_mounts or runtime.isolation.uses_landlock):
            pytest.skip("this kernel has no Landlock: on the lowest rung nothing of the node's user is hidden")
        [secret] = (state / "spawners").glob("*.secret")
        assert secret.stat().st_mode & 0o777 == 0o600
        spawner = runtime._spawners.current.pid
        places = f"/{secret} /proc/{spawner}/root{secret} /proc/1/root{secret}"
        _, log = await bench.run(bench.spec("looks", f"cat {places} 2>/dev/null | wc -c"))
        assert log.strip() == "0"

    lived(state, story, rung=rung)


@pytest.mark.parametrize("how", ["killed", "init killed", "exec", "ended"])
def test_nothing_of_a_container_without_a_pid_namespace_is_left_when_it_was_killed(tmp_path, how):
    state, mark = tmp_path / "state", uuid.uuid4().hex
    script = f"sh -c 'echo; sleep 1000; : {mark}' & sleep 1000; : {mark}"

    async def story(runtime, bench):
        spec = bench.spec("main", "exec sleep 1000" if how == "exec" else script)
        await runtime.start(spec)
        attempt, spawner = runtime._attempts[spec.key], runtime._spawners.current.pid
        if how == "exec":
            left = f"setsid sh -c 'sleep 1000; : {mark}' >/dev/null 2>&1 </dev/null &"
            assert await output_of(await runtime.exec(spec.key, ["sh", "-c", left])) == ("", "", 0)
        await eventually(lambda: len(processes_with(mark)) >= (1 if how == "exec" else 2))
        if how == "ended":
            await runtime.close()
        elif how == "init killed":
            [init] = children_of(spawner)
            os.kill(init, signal.SIGKILL)
            await attempt.gone
        else:
            await attempt.link.send({"order": "kill", "id": "/".join([spec.key.pod_uid, spec.key.name, "0"])})
            await attempt.gone
        await eventually(lambda: processes_with(mark) == [])

    lived(state, story)


@pytest.mark.parametrize("room", [1, 3, 5])
def test_a_spawner_without_free_descriptors_says_so(tmp_path, room):
    """A command brings three, and two pipes of the spawner's; a container takes two sockets."""
    state = tmp_path / "state"

    async def story(runtime, bench):
        await runtime.start(bench.spec("main", "exec sleep 1000"))
        key, spawner = bench.spec("main").key, runtime._spawners.current.pid
        open_now = sorted(map(int, os.listdir(f"/proc/{spawner}/fd")))
        free = [number for number in range(open_now[-1] + 9) if number not in open_now]
        for number in range(2):
            resource.prlimit(spawner, resource.RLIMIT_NOFILE, (free[room], limits[1]))
            async with asyncio.timeout(60):
                with pytest.raises(ExecError, match="Too many open files"):
                    await runtime.exec(key, ["true"])
                if room == 1:
                    with pytest.raises(StartError, match="Too many open files"):
                        await runtime.start(bench.spec(f"next-{number}", "true"))
        resource.prlimit(spawner, resource.RLIMIT_NOFILE, limits)
        await eventually(lambda: sorted(map(int, os.listdir(f"/proc/{spawner}/fd"))) == open_now)
        assert await output_of(await runtime.exec(key, ["sh", "-c", "ulimit -Sn"])) == (f"{limits[0]}\n", "", 0)

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lived(state, story)


def test_a_spawner_whose_containers_hold_all_descriptors_lets_the_next_agent_in(tmp_path):
    state = tmp_path / "state"
    before = Before(state)
    most = max(map(int, os.listdir(f"/proc/{before.spawner}/fd"))) + 1
    before.kill()
    limits = resource.prlimit(before.spawner, resource.RLIMIT_NOFILE)
    resource.prlimit(before.spawner, resource.RLIMIT_NOFILE, (most, limits[1]))

    async def story(runtime, bench):
        assert runtime._spawners.current.pid == before.spawner
        assert (await runtime.observe())[KEY].exit is None

    lived(state, story)


class Full:
    """A listener for whose callers no descriptor is left, `times` times."""

    def __init__(self, times):
        self.left, self.looked = times, 0
        self.listener, self.other = socket.socketpair()

    def accept(self):
        self.looked += 1
        if self.looked <= self.left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise SystemExit  # the loop that is tested has no other end

    def fileno(self):
        return self.listener.fileno()


class Gone(Full):
    """A listener whose caller has left before he was let in."""

    def accept(self):
        raise OSError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))


def test_a_caller_that_has_left_takes_no_room_along():
    tested = spawner.Spawner(Gone(times=0), "/nowhere", 1.0, "")
    tested._keep_room()
    tested._accept(0)
    room = list(tested._room)
    for each in room:
        os.close(each)
    assert len(room) == spawner.ROOM_FOR_AGENT


def test_where_no_descriptor_is_left_a_spawner_says_so_once_and_looks_again_now_and_then(monkeypatch, capsys):
    waited = []
    full = Full(times=3)
    full.other.send(b"ready all the time")
    tested = spawner.Spawner(full, "/nowhere", 1.0, "")
    select, now = tested._selector.select, [100.0]

    def selecting(left_s):
        ready = select(0)
        if not ready:
            waited.append(round(left_s, 3))
            now[0] += left_s
        return ready

    monkeypatch.setattr(tested._selector, "select", selecting)
    monkeypatch.setattr(spawner.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(spawner, "_signals", lambda: os.eventfd(0))
    tested._ends_at = None
    with pytest.raises(SystemExit):
        tested.run()
    assert waited == [spawner.NO_ROOM_S] * 3
    assert capsys.readouterr().err == "an agent that knocks has to wait: Too many open files\n"
