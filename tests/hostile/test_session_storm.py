"""Whatever of the sandboxes' platform is killed, and whenever: nothing leaks, no session is lost, and none lies.

The gateway with the reconcilers, the zygote, and the platform with API server and node agent are processes of their own here, and
die by SIGKILL while clients are at work. A session outlives each of them with its variables. Only what dies with the supervisor, the parent
of all sandboxes, is told as gone (404): it never comes back empty, and never as somebody else's.
"""

import json
import os
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import which
from time import monotonic

import pytest

from e2e.test_agents_elsewhere import INTERPRETER, gateway, opened
from hekla.api.agents.names import ISOLATION_STRENGTHS, SESSION_ID
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL
from hekla.node.runtimes.sweep import kill_process_of, start_time
from hekla.testing.components import Cluster
from hekla.testing.platform import PlatformProcess
from hekla_sdk import Result, Session
from hekla_sdk.errors import HeklaError, LimitError, NotFoundError, RefusedError, UnreachableError
from hekla_sdk.settings import Gateway

CLIENTS = 3
MOST_SESSIONS = 8
PATIENCE_S = 120.0
WITHOUT = ("agents", "serving", "router", "workloads")
GRACE = ("--nodes", "1", "--sandbox-grace-s", "240")
DEADLY = {"supervisor"}
"""Kills that take sandboxes with them."""


@dataclass
class Witness:
    """What clients were told."""

    values: dict[str, int] = field(default_factory=dict)
    """What each acknowledged session holds in its variable `x`."""
    born: dict[str, int] = field(default_factory=dict)
    """How many deadly kills there had been when it was acknowledged."""
    deadly: int = 0
    told: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def made(self, session: str, value: int, deadly: int) -> None:
        with self.lock:
            self.values[session], self.born[session] = value, deadly

    def gone(self, session: str, why: str) -> None:
        """It is not there any more: that is a lie unless something that held it was killed since."""
        with self.lock:
            if self.values.pop(session, None) is not None:
                assert self.deadly > self.born[session], f"session {session} was lost: {why}"
                self.told["died with the supervisor, and said so"] += 1

    def one(self, dice: random.Random) -> str:
        with self.lock:
            return dice.choice(sorted(self.values)) if self.values else ""


class World:
    """A platform, a gateway beside it, and what kills them."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self._stack = home, stack
        self.is_whole = True
        self.platform = PlatformProcess(home / "data", without=WITHOUT, flags=GRACE)
        self.platform.start()
        # every later life is found where the first one was
        self.platform = _again_at_its_port(self.platform)
        stack.callback(lambda: self.platform.stop())
        self.cluster = Cluster(self.platform.kubeconfig, home)
        self.cluster.install()
        label = f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}=true"
        if not self.cluster.kubectl("get", "nodes", "-l", label, "-o", "name").out:
            pytest.skip("this host lets nobody set a sandbox apart")
        self.cluster.kubectl("apply", "-f", "-", stdin=INTERPRETER)
        (home / "gateway").mkdir()
        self._flags = gateway(self.cluster, home / "gateway")
        self._run_gateway()
        self.cluster.wait("codeinterpreter/base", "jsonpath={.status.ready}=true")

    def _run_gateway(self) -> None:
        self._gateway_stack = ExitStack()
        self._gateway = self._gateway_stack.enter_context(self.cluster.running("agents", *self._flags))
        self._stack.callback(self._gateway_stack.close)
        door = opened(self._gateway, self.home / "gateway")
        self.door = Gateway(door.url, door.key)

    def kill(self, what: str) -> None:
        """SIGKILL, and everything that watches over it begins it anew."""
        if what == "gateway":
            self._gateway.process.kill()
            self._gateway_stack.close()
            self._run_gateway()
        elif what in ("zygote", "supervisor"):
            kill_process_of(self.sandboxes / f"{what}.json")
        else:
            self.platform.kill()
            self.platform.start()

    def leftovers(self) -> dict[str, list[str]]:
        """What should not be there once no session is."""
        kubectl = self.cluster.kubectl
        objects = kubectl("get", "sandboxes,pods", "-l", SESSION_ID, "-o", "name").out.split()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return {
            "objects": objects,
            "mounts": [line for line in mounts if str(self.sandboxes) in line],
        }

    @property
    def sandboxes(self) -> Path:
        """Where the node keeps what it knows of them."""
        return self.platform.data_dir / "node" / "sandboxes"

    def processes(self) -> list[int]:
        """The supervisor and its children: sandboxes and the zygote."""
        supervisor = json.loads((self.sandboxes / "supervisor.json").read_text())["pid"]
        found = subprocess.run(
            ["ps", "--ppid", str(supervisor), "-o", "pid="], capture_output=True, text=True, check=False
        )
        return [supervisor, *map(int, found.stdout.split())]


def _again_at_its_port(first: PlatformProcess) -> PlatformProcess:
    port = first.port
    first.stop()
    again = PlatformProcess(first.data_dir, without=WITHOUT, flags=GRACE, port=port)
    again.start()
    return again


class Client:
    """One thread of somebody who opens sessions, asks them and ends them."""

    def __init__(self, world: World, witness: Witness, number: int) -> None:
        self.world, self.witness, self.dice = world, witness, random.Random(number)

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._step()
            except NotFoundError:
                raise  # sessions that are gone are counted where they are asked; nothing else may be
            except (UnreachableError, RefusedError) as error:
                self.witness.told[f"{type(error).__name__} while something was killed"] += 1
                stop.wait(0.05)  # as a polite client would

    def _step(self) -> None:
        session = self.witness.one(self.dice)
        if not session or (len(self.witness.values) < MOST_SESSIONS and self.dice.random() < 0.3):
            self.open()
        elif self.dice.random() < 0.1 and self.world.is_whole:  # or all would be given up while nobody answers
            self._end(session)
        else:
            self.check(
                session,
                freeze=self.dice.random() < 0.2,
                spend=self.dice.random() < 0.1,
                sleep=self.dice.random() < 0.1,
                fork=len(self.witness.values) < MOST_SESSIONS and self.dice.random() < 0.1,
            )

    def open(self) -> None:
        deadly, value = self.witness.deadly, self.dice.randrange(10**6)
        with Session.create(timeout=3600, gateway=self.world.door) as session:
            told = session.run_code(f"x = {value}\nx")
            assert told.text == str(value), told
            self.witness.made(session.id, value, deadly)
            session._is_ours = False  # it is to stay

    def _end(self, session: str) -> None:
        with self.witness.lock:
            if self.witness.values.pop(session, None) is None:
                return
        Session.connect(session, gateway=self.world.door).kill()

    def check(
        self, session: str, *, freeze: bool = False, spend: bool = False, sleep: bool = False, fork: bool = False
    ) -> None:
        """It holds what it held, or is told as gone; also after it stood still, of its owner's will or for want of a budget, or slept.

        So do its copies.
        """
        value = self.witness.values.get(session)
        try:
            with Session.connect(session, gateway=self.world.door) as there:
                if freeze:
                    there.freeze()
                if spend:
                    stood = (
                        there.set_budget("awake=1ms").state == "frozen"
                    )  # spent already; another client may have woken it
                    there.set_budget("")
                    self.witness.told["stood still until its budget was raised"] += stood
                if sleep:
                    there.pause()
                said = self._asked(there)
                if fork and value is not None:
                    self._fork(there, value)
        except NotFoundError as error:
            self.witness.gone(session, str(error))
            return
        if value is not None:
            assert said.text == str(value), f"session {session} held {value} and says {said}"
            self.witness.told["answered with what it held"] += 1

    def _fork(self, there: Session, value: int) -> None:
        deadly = self.witness.deadly
        for copy in there.fork(2):
            with copy:
                copy.set_timeout(3600)
                told = self._asked(copy)
                assert told.text == str(value), f"the copy {copy.id} of {there.id}, which holds {value}, says {told}"
                self.witness.made(copy.id, value, deadly)
                self.witness.told["copied with what it held"] += 1
                copy._is_ours = False  # it is to stay

    @staticmethod
    def _asked(there: Session) -> Result:
        try:
            return there.run_code("x")
        except LimitError:  # what was to raise its budget was killed, or another client spent it
            there.set_budget("")
            return there.run_code("x")


@contextmanager
def world(home: Path) -> Iterator[World]:
    if which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with ExitStack() as stack:
        yield World(home, stack)


def storm(home: Path, kills: list[str], seed: int) -> Witness:
    """Clients at work, and a kill now and then; afterwards every session is looked at, ended, and nothing is left."""
    dice, witness = random.Random(seed), Witness()
    with world(home) as here:
        clients = [Client(here, witness, number) for number in range(CLIENTS)]
        for number, what in enumerate(kills):
            while len(witness.values) < CLIENTS:
                _patiently(clients[0].open)
            stop = threading.Event()
            with ThreadPoolExecutor(CLIENTS) as pool:
                working = [pool.submit(one.work, stop) for one in clients]
                stop.wait(dice.uniform(0.05, 1.5))
                if what in DEADLY:
                    witness.deadly += 1
                try:
                    here.is_whole = False
                    here.kill(what)
                finally:
                    here.is_whole = True
                    stop.set()
            for one in working:
                one.result()
            witness.told[f"kills of the {what}"] += 1
            for session in sorted(witness.values):
                _patiently(partial(clients[0].check, session))
            _end_what_nobody_knows(here, witness)
            print(f"{number + 1}/{len(kills)} {what}: {len(witness.values)} sessions live", flush=True)
        witness.values.clear()
        _end_what_nobody_knows(here, witness)
        _until_nothing_is_left(here)
        _until_no_process_is_left(here)
    print(json.dumps(witness.told, indent=2), flush=True)
    return witness


def _end_what_nobody_knows(here: World, witness: Witness) -> None:
    """Sessions whose clients were told of a failure, at their making or their end: theirs to end again, or to forget until their time is over."""
    for info in Session.all(gateway=here.door):
        if info.id not in witness.values:
            _patiently(partial(_kill, here, info.id))


def _kill(here: World, session: str) -> None:
    with suppress(NotFoundError):
        Session.connect(session, gateway=here.door).kill()


def _patiently(ask: Callable[[], None]) -> None:
    """Within the patience of a client it is answered, and every session says what it is."""
    until = monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except HeklaError:
            if monotonic() > until:
                raise  # it neither answers nor is gone
            threading.Event().wait(0.1)


def _until_no_process_is_left(here: World) -> None:
    """A node that is killed has its warm sandboxes ended at once, and where none is left that a pod has, the supervisor goes too."""
    left = here.processes()
    here.platform.kill()
    until = monotonic() + PATIENCE_S
    while any(start_time(pid) for pid in left):
        assert monotonic() < until, [pid for pid in left if start_time(pid)]
        threading.Event().wait(0.1)


def _until_nothing_is_left(here: World) -> None:
    until = monotonic() + PATIENCE_S
    while any((left := here.leftovers()).values()):
        assert monotonic() < until, left
        threading.Event().wait(0.5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sessions_outlive_gateway_zygote_and_node_and_die_honestly_with_the_supervisor(tmp_path: Path) -> None:
    told = storm(tmp_path, ["gateway", "zygote", "node", "supervisor"], seed=1).told
    assert told["answered with what it held"] > 0
    assert told["died with the supervisor, and said so"] > 0


@pytest.mark.storm
@pytest.mark.timeout(0)
def test_a_thousand_kills_leak_nothing_and_lose_no_session(tmp_path: Path) -> None:
    count = int(os.environ.get("HEKLA_KILLS", "1000"))
    seed = int(os.environ.get("HEKLA_SEED", "7"))
    kills = random.Random(seed).choices(["gateway", "zygote", "node"], [3, 2, 2], k=count)
    told = storm(tmp_path, kills, seed).told
    assert not told["died with the supervisor, and said so"]
