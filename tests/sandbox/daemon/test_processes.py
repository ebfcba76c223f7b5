"""Commands: what they say is heard in order, bounded and to the end; what is killed is gone with all that it left."""

import asyncio
import os
import select
import signal
import sys

import pytest

from hekla.sandbox.daemon import processes
from hekla.sandbox.daemon.processes import CommandError, Processes


def tell(story):
    async def told():
        one = Processes({"PATH": os.environ["PATH"]})
        one.begin()
        try:
            await story(one)
        finally:
            one.kill_all()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    asyncio.run(told())


async def all_of(command):
    """Everything that a command says from now on, by stream."""
    said, listener = {}, command.listen()
    while (piece := await listener.next()) is not None:
        said[piece[0]] = said.get(piece[0], b"") + piece[1]
    return said


def sh(one, text, **more):
    return one.start(["/bin/sh", "-c", text], **more)


def is_ended(pid, within_s=10.0):
    """Whether a process that was killed ends: the kernel takes its time, and whoever killed it does not wait for a stranger's child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_and_exit_code_come_back():
    async def story(one):
        command = sh(one, "echo out; echo err >&2; exit 3", envs={"A": "b"})
        assert await all_of(command) == {"stdout": b"out\n", "stderr": b"err\n"}
        assert (command.exit_code, command.signal, command.is_running) == (3, 0, False)

    tell(story)


def test_a_command_has_its_environment_directory_and_mark():
    async def story(one):
        command = sh(one, "echo $A-$PWD-${#HEKLA_COMMAND}", envs={"A": "b"}, cwd="/usr")
        assert await all_of(command) == {"stdout": b"b-/usr-16\n"}

    tell(story)


def test_input_is_fed_until_it_is_closed():
    async def story(one):
        command = one.start(["cat"], has_input=True)
        hearing = asyncio.ensure_future(all_of(command))
        data = os.urandom(300_000)
        await command.write(data)
        command.close_input()
        assert await hearing == {"stdout": data}

    tell(story)


def test_input_to_a_command_that_takes_none_is_refused():
    async def story(one):
        command = sh(one, "sleep 60")
        with pytest.raises(CommandError, match="takes no input"):
            await command.write(b"x")

    tell(story)


def test_input_to_a_command_that_ends_without_reading_does_not_hang():
    async def story(one):
        command = sh(one, "exit 0", has_input=True)
        with pytest.raises(CommandError):
            await command.write(b"x" * 10_000_000)

    tell(story)


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_answer():
    async def story(one):
        command = sh(one, "sleep 1000 & echo $!")
        said = await all_of(command)
        background = int(said["stdout"])
        assert command.exit_code == 0
        assert is_alive(background), "what was put into the background goes on"
        one.kill(command)
        assert is_ended(background)

    tell(story)


DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


def test_what_was_killed_is_gone_however_often_it_forked():
    async def story(one):
        command = sh(one, f"{sys.executable} -c '{DAEMON}'; sleep 1000")
        listener = command.listen()
        _, said = await listener.next()
        daemon = int(said)
        assert is_alive(daemon)
        one.signal(command, signal.SIGKILL)
        await command.over.wait()
        assert (command.exit_code, command.signal) == (137, 9)
        assert is_ended(daemon)

    tell(story)


def test_a_command_whose_time_is_over_is_ended():
    async def story(one):
        command = sh(one, "trap '' TERM; echo begun; sleep 1000", timeout_s=0.05)
        await all_of(command)
        assert command.timed_out
        assert command.signal == signal.SIGKILL

    tell(story)


def test_a_client_who_is_behind_holds_the_command_and_not_our_memory(monkeypatch):
    monkeypatch.setattr(processes, "MOST_BEHIND", 100_000)

    async def story(one):
        command = sh(one, "yes | head -c 5000000; echo end >&2")
        listener = command.listen()
        while not command._paused:
            await asyncio.sleep(0.01)
        assert listener.behind < 100_000 + processes.PIECE
        size = 0
        while (piece := await listener.next()) is not None:
            size += len(piece[1])
        assert size == 5_000_004

    tell(story)


def test_nobody_listening_lets_the_command_go_on():
    async def story(one):
        command = sh(one, "yes | head -c 5000000")
        await command.over.wait()
        assert command.exit_code == 0

    tell(story)


def test_who_comes_late_still_learns_the_end():
    async def story(one):
        command = sh(one, "exit 7", tag="job")
        await command.over.wait()
        with pytest.raises(CommandError, match="there is no process"):
            one.find(tag="job")
        late = one.find(tag="job", may_be_over=True)
        assert await late.listen().next() is None
        assert late.exit_code == 7
        again = sh(one, "exit 0", tag="job")
        assert one.find(tag="job", may_be_over=True) is again

    tell(story)


def test_a_terminal_is_one_and_has_its_size():
    async def story(one):
        command = one.start(["/bin/sh", "-c", "tty; stty size; read line; stty size; echo got $line"], size=(80, 24))
        listener, said = command.listen(), b""
        while b"24 80" not in said:
            said += (await listener.next())[1]
        command.resize(100, 30)
        await command.write(b"hello\n")
        while (piece := await listener.next()) is not None:
            assert piece[0] == "pty"
            said += piece[1]
        assert b"/dev/pts/" in said
        assert b"30 100" in said
        assert b"got hello" in said

    tell(story)


@pytest.mark.parametrize(
    ("argv", "more", "sentence"),
    [
        ([], {}, "the command is empty"),
        ([""], {}, "the command is empty"),
        (["/no/such"], {}, 'exec: "/no/such": executable file not found'),
        (["/etc/passwd"], {}, "permission denied"),
        (["a\0b"], {}, "no NUL"),
        (["true"], {"cwd": "/no/such"}, 'the working directory "/no/such" does not exist'),
        (["true"], {"user": "nobody-here"}, 'no user "nobody-here"'),
    ],
)
def test_a_command_that_cannot_start_is_told(argv, more, sentence):
    async def story(one):
        with pytest.raises(CommandError) as error:
            one.start(argv, **more)
        assert sentence in str(error.value)
        assert one.running() == []

    tell(story)


def test_commands_at_a_time_are_bounded(monkeypatch):
    monkeypatch.setattr(processes, "MOST_RUNNING", 2)

    async def story(one):
        for _ in range(2):
            sh(one, "sleep 1000")
        with pytest.raises(CommandError) as error:
            sh(one, "true")
        assert error.value.code == "resource_exhausted"

    tell(story)


def test_exits_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(processes, "MOST_REMEMBERED", 3)

    async def story(one):
        for _ in range(6):
            await one.start(["true"]).over.wait()
        assert len(one._remembered) == 3

    tell(story)


def test_only_the_standard_streams_are_inherited():
    async def story(one):
        with open(os.devnull) as secret:
            os.set_inheritable(secret.fileno(), False)
            said = await all_of(one.start([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"]))
        assert said["stdout"].strip() in (b"['0', '1', '2', '3']",)  # 3 is the listing itself

    tell(story)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may run as others")
def test_a_command_runs_as_the_user_it_is_given():
    async def story(one):
        said = await all_of(sh(one, "id -u; echo $HOME", user="nobody", cwd="/"))
        assert said["stdout"].split()[0] == b"65534"

    tell(story)
