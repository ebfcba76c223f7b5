"""Sandboxes outlive their node and their zygote: whoever comes back finds them as they were, and where nobody does nothing is left."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes import ContainerKey, ContainerSpec, ExecError
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.testing.conformance.runtimes import output_of

PATIENCE_S = 60.0
KEY = ContainerKey("u1", "main", 0)

NODE = """
import asyncio, json, sys
from pathlib import Path
from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes import ContainerKey, ContainerSpec
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
async def main():
    groups = {groups}
    runtime = ZygoteSandboxes(Path(sys.argv[1]), warm=1, preload=(), grace_s=float(sys.argv[2]), groups=groups)
    await runtime.open(lambda key, end: None)
    if runtime.refusal:
        return
    key = ContainerKey("u1", "main", 0)
    command = tuple(json.loads(sys.argv[3]))
    await runtime.start(ContainerSpec(key=key, argv=command, hostname="box"))
    {more}
    supervisor = json.loads((Path(sys.argv[1]) / "supervisor.json").read_text())["pid"]
    print(json.dumps([supervisor, runtime.zygote_pid, runtime._boxes[key].cell.pid]), flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
CLAIMED = 'await runtime.claim(key, Claim(session="s1", owner="o"))'
REFUSED = """
    from hekla.node.runtimes.sandbox import SandboxError
    try:
        await runtime.claim(key, Claim(session="s1", owner="o", env={"KEY": "secret"}, random_seed="not hexadecimal"))
        raise SystemExit("it was not refused")
    except SandboxError:
        pass
"""
UNHEARD = """
    from hekla.node.runtimes.sandbox import SandboxError
    await runtime.freeze(key)
    try:
        await runtime.claim(key, Claim(session="s1", owner="o"))
        raise SystemExit("it was not refused")
    except SandboxError:
        await runtime.thaw(key)
"""


class KilledNode:
    """A node that ran one sandbox, and was killed."""

    def __init__(self, state: Path, *, command=(), grace_s=PATIENCE_S, more="pass", groups="None") -> None:
        self.process = subprocess.Popen(
            [
                sys.executable, "-c", NODE.format(more=more, groups=groups), str(state), str(grace_s), json.dumps(command),
            ],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        if not line:
            assert self.process.wait() == 0, "it failed, and did not say that no sandbox can run here"
            self.process.stdout.close()
            pytest.skip("no sandbox can run here")
        self.supervisor, self.zygote, self.sandbox = json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


async def run_in(runtime, key, *argv):
    output, errors, code = await output_of(await runtime.exec(key, argv))
    return output + errors, code


@asynccontextmanager
async def again(state: Path, ends=None, groups=None, preload=()):
    """The next life of a directory's sandboxes, closed with the block; one that refuses is a failure, since the last life ran."""
    runtime = ZygoteSandboxes(state, warm=0, preload=preload, groups=groups)
    await runtime.open(lambda key, end: ends.append((key, end)) if ends is not None else None)
    try:
        yield runtime
    finally:
        await runtime.close()


@asynccontextmanager
async def first_life(state: Path, ends=None):
    """A life that nothing came before: only here may a machine say that it can run no sandbox."""
    async with again(state, ends) as runtime:
        if runtime.refusal:
            pytest.skip(runtime.refusal)
        yield runtime


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid):
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [(child, Path(f"/proc/{child}/comm").read_text().strip()) for child in found]


async def until(holds):
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_sandbox_outlives_its_node_with_files_claim_and_command(tmp_path):
    state = tmp_path / "state"
    loop = "echo began; while :; do sleep 0.05; echo $$ > /tmp/mark; done"
    KilledNode(state, command=("sh", "-c", loop), more=CLAIMED).kill()

    async def next_life():
        async with again(state) as runtime:
            observed = (await runtime.observe())[KEY]
            assert observed.exit is None
            assert runtime.session_of(KEY) == "s1"
            with pytest.raises(SandboxError, match="another session"):
                await runtime.claim(KEY, Claim(session="s2", owner="o"))
            assert await runtime.claim(KEY, Claim(session="s1", owner="o")) is False
            seen, code = await run_in(runtime, KEY, "sh", "-c", "until grep -s . /tmp/mark; do :; done")
            assert (code, seen.strip().isdigit()) == (0, True)
            assert (state / "logs" / "u1" / "main" / "0.log").read_text().count("began") == 1
            await runtime.start(ContainerSpec(key=KEY, argv=("false",), hostname="box"))
            assert (await runtime.observe())[KEY] == observed

    asyncio.run(next_life())


def test_what_is_noted_of_a_sandbox_that_has_just_ended_is_not_kept_for_ever(tmp_path):
    """Whoever froze or claimed it had not heard: its note stood in the node's memory, and in each notebook that followed."""

    async def life():
        async with first_life(tmp_path / "state") as runtime:
            await runtime.start(ContainerSpec(key=KEY, argv=(), hostname="box"))
            box, noted = runtime._boxes[KEY], runtime._zygotes._link._notebooks._latest
            assert list(noted) == [box.cell.name]
            os.kill(box.cell.pid, signal.SIGKILL)
            await box.cell.gone
            await box.remembered()
            assert not noted

    asyncio.run(life())


@pytest.mark.slow
def test_a_sandbox_that_heard_nothing_of_a_claim_is_nobodys_in_the_next_life_too(tmp_path):
    state = tmp_path / "state"
    KilledNode(state, more=UNHEARD).kill()

    async def next_life():
        async with again(state) as runtime:
            assert await runtime.claim(KEY, Claim(session="s2", owner="o")) is True

    asyncio.run(next_life())


@pytest.mark.slow
def test_a_sandbox_that_refused_a_claim_halfway_is_nobody_elses_in_the_next_life_either(tmp_path):
    """It has variables of whoever it refused."""
    state = tmp_path / "state"
    KilledNode(state, more=REFUSED).kill()

    async def next_life():
        async with again(state) as runtime:
            with pytest.raises(SandboxError) as refusal:
                await runtime.claim(KEY, Claim(session="s2", owner="o"))
            assert refusal.value.code in (404, 409, 503)

    asyncio.run(next_life())


@pytest.mark.slow
def test_how_a_command_ended_while_no_node_was_there_is_told(tmp_path):
    state = tmp_path / "state"
    command = "trap 'echo last; exit 7' USR1; echo began; while :; do sleep 0.05; done"
    killed = KilledNode(state, command=("sh", "-c", command))
    log = state / "logs" / "u1" / "main" / "0.log"
    asyncio.run(until(lambda: "began" in log.read_text()))
    killed.kill()
    [shell] = [pid for pid, name in below(killed.sandbox) if name == "sh"]
    os.kill(shell, signal.SIGUSR1)

    async def next_life():
        await until(lambda: not is_alive(shell))
        ends = []
        async with again(state, ends):
            await until(lambda: ends)
            [(key, end)] = ends
            assert (key, end.code) == (KEY, 7)
            assert "last" in log.read_text()

    asyncio.run(next_life())


@pytest.mark.slow
def test_a_sandbox_that_ended_while_no_node_was_there_is_told(tmp_path):
    state = tmp_path / "state"
    killed = KilledNode(state, command=("sleep", "1000"))
    killed.kill()
    os.kill(killed.sandbox, signal.SIGKILL)

    async def next_life():
        await until(lambda: not is_alive(killed.sandbox))
        async with again(state) as runtime:
            await until(lambda: runtime._boxes[KEY].gone.done())
            assert (await runtime.observe())[KEY].exit.code == 137

    asyncio.run(next_life())


def test_sandboxes_of_a_node_that_leaves_are_taken_up_as_of_one_that_was_killed(tmp_path):
    """An upgrade ends an agent in good order."""
    state = tmp_path / "state"
    left = KilledNode(state, command=("sleep", "1000"), more=f"{CLAIMED}; await runtime.leave()")
    left.kill()

    async def next_life():
        async with again(state) as runtime:
            assert (await runtime.observe())[KEY].exit is None
            assert (runtime.session_of(KEY), runtime._boxes[KEY].cell.pid) == ("s1", left.sandbox)
            assert await run_in(runtime, KEY, "hostname") == ("box\n", 0)

    asyncio.run(next_life())


@pytest.mark.slow
def test_commands_of_a_node_that_was_killed_end_when_the_next_one_comes(tmp_path):
    state = tmp_path / "state"
    KilledNode(state, more='await runtime.exec(key, ["sleep", "4711"])').kill()

    async def next_life():
        async with again(state) as runtime:
            seen, _ = await run_in(
                runtime, KEY, "sh", "-c", "while grep -qxs sleep /proc/[0-9]*/comm; do :; done; echo none"
            )
            assert seen.endswith("none\n")

    asyncio.run(next_life())


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, SandboxGroups(why_none="left out by a test")], ids=["groups", "no groups"])
def test_a_frozen_sandbox_stays_frozen_and_goes_on_when_it_is_woken(tmp_path, groups):
    state = tmp_path / "state"
    KilledNode(state, more="await runtime.freeze(key, 4)", groups="None" if groups is None else repr(groups)).kill()

    async def next_life():
        async with again(state, groups=groups) as runtime:
            assert runtime.is_frozen(KEY)
            with pytest.raises(ExecError, match="frozen"):
                await runtime.exec(KEY, ["true"])
            assert (await runtime.usage(KEY)).frozen_s > 0
            with pytest.raises(SandboxError, match="order 4 has come before it"):
                await runtime.thaw(KEY, 3)
            await runtime.thaw(KEY)
            assert (await run_in(runtime, KEY, "echo", "awake"))[0] == "awake\n"

    asyncio.run(next_life())


@pytest.mark.slow
def test_what_it_used_is_counted_on(tmp_path):
    state = tmp_path / "state"
    burn = "await (await runtime.exec(key, ['sh', '-c', 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'])).wait()"
    more = (
        burn
        + "; used = await runtime.usage(key); (Path(sys.argv[1]) / 'used').write_text(f'{used.cpu_us} {used.wall_s}')"
    )
    KilledNode(state, more=more).kill()
    cpu_us, wall_s = (float(word) for word in (state / "used").read_text().split())

    async def next_life():
        async with again(state) as runtime:
            used = await runtime.usage(KEY)
            assert used.wall_s >= wall_s
            if used.source == "cgroup":
                assert used.cpu_us >= cpu_us

    asyncio.run(next_life())


@pytest.mark.slow
def test_where_no_node_comes_back_nothing_is_left(tmp_path):
    told = "(Path(sys.argv[1]) / 'has_groups').write_text(json.dumps(bool(runtime.groups.parents)))"
    killed = KilledNode(tmp_path / "state", grace_s=0.2, more=f"await runtime.freeze(key); {told}")
    digest = ZygoteSandboxes(tmp_path / "state")._digest
    hierarchies = [Path("/sys/fs/cgroup"), *(each for each in Path("/sys/fs/cgroup").iterdir() if each.is_dir())]
    made = [each for each in hierarchies if (each / f"hekla-sandboxes-{digest}").exists()]
    assert made or not json.loads((tmp_path / "state" / "has_groups").read_text())
    killed.kill()

    async def story():
        await until(lambda: not is_alive(killed.supervisor) and not is_alive(killed.zygote))

    asyncio.run(story())
    assert not [each for each in hierarchies if (each / f"hekla-sandboxes-{digest}").exists()]
    assert not (tmp_path / "state" / "supervisor.sock").exists()


@pytest.mark.slow
def test_a_sandbox_whose_start_was_not_over_is_started_from_nothing(tmp_path):
    state = tmp_path / "state"
    # the second start never ends: its checkpoint is a pipe that nobody writes
    half = "asyncio.ensure_future(half(runtime)); await asyncio.sleep(0); await asked.wait()"
    source = """
asked = asyncio.Event()
async def half(runtime):
    async def never(box):
        asked.set()
        await asyncio.sleep(1000)
    runtime._restore = never
    await runtime.start(ContainerSpec(key=ContainerKey("u2", "main", 0), argv=("touch", "/tmp/began"), hostname="two"))
async def main"""
    node = NODE.replace("async def main", source, 1)
    killed = subprocess.Popen(
        [sys.executable, "-c", node.format(more=half, groups="None"), str(state), "60", "[]"],
        stdout=subprocess.PIPE,
        text=True,
    )
    line = killed.stdout.readline()
    killed.kill()
    killed.wait()
    killed.stdout.close()
    if not line:
        pytest.skip("no sandbox can run here")

    async def next_life():
        async with again(state) as runtime:
            assert set(await runtime.observe()) == {KEY}
            other = ContainerKey("u2", "main", 0)
            await runtime.start(ContainerSpec(key=other, argv=(), hostname="two"))
            assert "began" not in (await run_in(runtime, other, "ls", "/tmp"))[0].split()

    asyncio.run(next_life())


@pytest.mark.slow
def test_sandboxes_outlive_their_zygote_and_others_are_forked_from_the_next(tmp_path):
    async def story():
        async with first_life(tmp_path / "state") as runtime:
            await runtime.start(ContainerSpec(key=KEY, argv=("sleep", "1000"), hostname="box"))
            for number in range(3):
                zygote = runtime.zygote_pid
                os.kill(zygote, signal.SIGKILL)
                other = ContainerKey(f"after {number}", "main", 0)
                await runtime.start(ContainerSpec(key=other, argv=(), hostname="next"))
                assert runtime.zygote_pid != zygote
                assert (await run_in(runtime, KEY, "echo", "alive"))[0] == "alive\n"
                assert (await run_in(runtime, other, "echo", "alive"))[0] == "alive\n"
            await runtime.stop(KEY, grace_s=0)
            assert (await runtime.observe())[KEY].exit.code == 137

    asyncio.run(story())


@pytest.mark.slow
def test_a_zygote_that_is_killed_while_many_are_made_costs_none_of_them(tmp_path):
    async def story():
        async with first_life(tmp_path / "state") as runtime:
            await runtime.prepare()
            keys = [ContainerKey(f"u{number}", "main", 0) for number in range(8)]
            making = [
                asyncio.create_task(runtime.start(ContainerSpec(key=key, argv=(), hostname="box"))) for key in keys
            ]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait(making, return_when=asyncio.FIRST_COMPLETED)
            if runtime.zygote_pid:
                os.kill(runtime.zygote_pid, signal.SIGKILL)
            await asyncio.gather(*making)
            for key in keys:
                assert (await run_in(runtime, key, "echo", "made"))[0] == "made\n"

    asyncio.run(story())


@pytest.mark.slow
def test_sandboxes_outlive_an_upgrade_and_others_are_made_by_the_new_release(tmp_path):
    state = tmp_path / "state"
    killed = KilledNode(state)
    killed.kill()

    async def next_life():
        async with again(state, preload=("json",)) as runtime:
            assert (await run_in(runtime, KEY, "echo", "alive"))[0] == "alive\n"
            await until(lambda: not is_alive(killed.zygote))
            other = ContainerKey("u2", "main", 0)
            await runtime.start(ContainerSpec(key=other, argv=(), hostname="two"))
            assert (await run_in(runtime, other, "echo", "made"))[0] == "made\n"

    asyncio.run(next_life())


@pytest.mark.slow
def test_a_supervisor_that_lets_go_of_its_node_is_ended_with_its_sandboxes(tmp_path):
    """The node told their pods that they had ended while they ran on, and two supervisors shared a directory."""

    async def story():
        state = tmp_path / "state"
        ends = []
        async with first_life(state, ends) as runtime:
            await runtime.start(ContainerSpec(key=KEY, argv=("sleep", "1000"), hostname="box"))
            supervisor = json.loads((state / "supervisor.json").read_text())["pid"]
            sandbox = runtime._boxes[KEY].cell.pid
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as latest:  # the latest node is the one
                latest.connect(runtime._zygotes._link._address)
                await until(lambda: ends)
                await until(lambda: not is_alive(supervisor) and not is_alive(sandbox))
            other = ContainerKey("u2", "main", 0)
            await runtime.start(ContainerSpec(key=other, argv=(), hostname="two"))
            assert (await run_in(runtime, other, "echo", "made"))[0] == "made\n"

    asyncio.run(story())


@pytest.mark.parametrize("said", [b'{"event": "held"}', b"no JSON"], ids=["no labels", "no JSON"])
def test_a_supervisor_that_is_not_understood_keeps_no_node_from_starting(tmp_path, said):
    state = tmp_path / "state"
    state.mkdir()
    directory = os.open(state, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"/proc/self/fd/{directory}/supervisor.sock")
        listener.listen(1)

        def answer():
            node, _ = listener.accept()
            with node:
                node.send(said)
                node.recv(1)

        async def story():
            answering = asyncio.create_task(asyncio.to_thread(answer))
            async with again(state) as runtime:
                assert await runtime.observe() == {}
            await answering

        asyncio.run(story())
    os.close(directory)


ONE_MOMENT = """
import os, socket, sys
from hekla.node.shim.sandbox import packets
from hekla.node.shim.sandbox.supervisor import Supervisor
supervisor = Supervisor(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), 0, 1.0)
supervisor._zygote, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets.send(theirs, {"event": "forked", "id": "s1", "pid": 2**22 + 1})
reader, writer = os.pipe()
os.write(writer, b"0")
supervisor._wake(reader)
supervisor._hear_zygote()
print("goes on")
"""


def test_a_sandbox_that_ends_in_the_moment_in_which_another_is_forked_does_not_stop_the_supervisor():
    """Both were ready in one round: the end was heard with all that the zygote had said, and then the zygote once more, who had nothing to say."""
    ran = subprocess.run([sys.executable, "-c", ONE_MOMENT], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stdout == "goes on\n", ran.stderr
