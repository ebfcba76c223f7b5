"""A program in a sandbox begins on the daemon's memory and for a moment with its real ids: it has nothing of the daemon's, nor has anybody a hold on it."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes.sandbox.cells import running_pids
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.node.shim.sandbox.inside import KEPT_BY_DAEMON, KEPT_BY_ROOT, USERS
from hekla.sandbox.daemon.becoming import NOBODY
from hekla.testing.conformance.runtimes import output_of
from hekla.testing.conformance.sandboxes import Sandboxes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes have one user: nothing is lent")

WHO = """
import json, os
lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "users": os.getresuid(), "groups": [*os.getresgid(), *os.getgroups()],
    **{name: int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd", "SigBlk")},
    "files": sorted(os.listdir("/proc/self/fd"), key=int), "leads": os.getpid() == os.getsid(0) == os.getpgid(0), "cwd": os.getcwd(),
}))
"""

HOSTILE = """
import json, os, resource, signal
os.setgid({uid}); os.setuid({uid})
done = []
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
def attempt(name, act):
    try: act()
    except (OSError, ValueError): return
    done.append(name)
attempt("memory", lambda: open("/proc/1/mem", "rb").read(1))
attempt("variables", lambda: open("/proc/1/environ", "rb").read(1))
attempt("descriptors", lambda: os.listdir("/proc/1/fd"))
attempt("limits", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)))
print(json.dumps(done))
"""


def live(tmp_path, story):
    async def told():
        runtime = ZygoteSandboxes(tmp_path / "state of a node", warm=0, preload=())
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            await story(Sandboxes(runtime))
        finally:
            await runtime.close()

    asyncio.run(told())


async def claimed(made, user):
    """A sandbox whose commands are root's or an ordinary user's."""
    key = await made.start(f"box{user}", user=user)
    await made.runtime.claim(key, Claim(session=f"s{user}"))
    return key


def daemon_of(made, key):
    """As the host numbers it."""
    return min(running_pids(made.runtime._boxes[key].cell))


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def mask(numbers):
    return sum(1 << number for number in numbers)


@pytest.mark.parametrize("user", [0, 1000])
def test_a_program_is_altogether_whom_it_runs_as_and_has_nothing_of_the_daemons(tmp_path, user):
    async def story(made):
        key = await claimed(made, user)
        found = json.loads((await output_of(await made.runtime.exec(key, ["python3", "-I", "-S", "-c", WHO])))[0])
        assert found["users"] == [user] * 3
        assert set(found["groups"]) == {user}
        root = mask(KEPT_BY_ROOT)
        assert found["CapPrm"] == found["CapEff"] == (root if user == 0 else 0)
        assert (found["CapBnd"], found["CapInh"], found["CapAmb"]) == (root, 0, 0)
        assert found["SigBlk"] == 0
        assert len(found["files"]) == 4, "three streams, and the directory that it reads"
        assert found["leads"]

    live(tmp_path, story)


def test_a_program_ignores_no_signal_that_the_daemon_ignores(tmp_path):
    async def story(made):
        ignored = await made.sh(await claimed(made, 0), "grep SigIgn /proc/self/status")
        of_libc = mask((31, 32))  # its own two, by which no program is told anything
        assert int(ignored.split()[1], 16) | of_libc == of_libc

    live(tmp_path, story)


@pytest.mark.parametrize("user", [0, 1000])
def test_the_daemon_is_itself_again_once_a_program_has_begun(tmp_path, user):
    async def story(made):
        key = await claimed(made, user)
        pid = daemon_of(made, key)
        before = status_of(pid)
        for argv in (["true"], ["no-such-program"], ["/etc/hostname"]):
            await made.ask(key, "/api/execute", {"command": argv})
        await output_of(await made.runtime.exec(key, ["true"]))
        after = status_of(pid)
        for name in ("Uid", "Gid"):
            real, *others = map(int, after[name])
            assert others == [int(number) for number in before[name][1:]]
            assert (others[0], others[1], real) == (others[2] + USERS, others[2] + USERS, others[2] + NOBODY)
        assert all(after[name] == before[name] for name in ("Groups", "CapPrm", "CapEff", "CapInh"))
        assert int(after["CapEff"][0], 16) == mask(KEPT_BY_DAEMON)
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, "nobody inside may look into it"

    live(tmp_path, story)


def test_the_daemon_has_no_handler_that_a_signal_from_inside_could_call(tmp_path):
    async def story(made):
        key = await claimed(made, 0)
        assert (await made.sh(key, "echo begun")) == "begun\n"
        caught = int(status_of(daemon_of(made, key))["SigCgt"][0], 16)
        assert caught == mask((signal.SIGCHLD - 1,)), "whoever has lent it real ids may send it what he likes"

    live(tmp_path, story)


@pytest.mark.parametrize("uid", [0, NOBODY])
def test_who_has_its_real_ids_can_neither_end_nor_look_into_the_daemon(tmp_path, uid):
    async def story(made):
        key = await claimed(made, 0)
        pid, code = daemon_of(made, key), HOSTILE.format(uid=uid)
        assert json.loads((await output_of(await made.runtime.exec(key, ["python3", "-I", "-S", "-c", code])))[0]) == []
        assert (await made.sh(key, "echo alive")) == "alive\n"
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "RS"

    live(tmp_path, story)


def test_programs_begin_while_others_signal_the_daemon_without_end(tmp_path):
    async def story(made):
        key = await claimed(made, 1000)
        storm = "while :; do for one in TERM INT KILL STOP HUP USR1 QUIT; do kill -$one 1 2>/dev/null; done; done"
        storms = [await made.runtime.exec(key, ["sh", "-c", storm]) for _ in range(2)]
        for number in range(50):
            assert (await output_of(await made.runtime.exec(key, ["echo", f"{number}"])))[0] == f"{number}\n"
        for one in storms:
            await one.close()

    live(tmp_path, story)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["no-such-program"], "executable file not found in $PATH"),
        (["./not-here"], "executable file not found in $PATH"),
        (["/etc/hostname"], "permission denied"),
        (["hostname.sh"], "permission denied"),
    ],
)
def test_what_cannot_begin_is_told_as_ever(tmp_path, argv, sentence):
    async def story(made):
        key = await claimed(made, 0)
        await made.sh(key, "mkdir -p /opt/bin; echo >/opt/bin/hostname.sh")
        path = {"PATH": "/nowhere:/etc/hostname:/opt/bin:/usr/bin:/bin"}
        _, answer = await made.ask(key, "/api/execute", {"command": argv, "env": path})
        told = json.loads(answer)
        assert sentence in told.get("stderr", "") + told.get("error", "")
        assert await made.sh(key, "pwd; true") == "/root\n"

    live(tmp_path, story)


def test_the_first_of_a_path_that_may_be_run_is_run(tmp_path):
    async def story(made):
        key = await claimed(made, 0)
        script = "for one in a b c; do mkdir -p /opt/$one; printf '#!/bin/sh\\necho '$one >/opt/$one/tell; done; chmod +x /opt/b/tell /opt/c/tell"
        await made.sh(key, script)
        _, answer = await made.ask(
            key, "/api/execute", {"command": ["tell"], "env": {"PATH": "/opt/none:/opt/a:/opt/b:/opt/c:/bin"}}
        )
        assert json.loads(answer)["stdout"] == "b\n"

    live(tmp_path, story)
