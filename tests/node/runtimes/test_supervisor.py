"""What goes wrong around the supervisor ends no sandbox: whatever hangs on it goes on, and who can be told is told."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from hekla.node.shim.sandbox import packets
from hekla.node.shim.sandbox.supervisor import PROTOCOL, SOCKET, TAKES

PATIENCE_S = 60.0
ZYGOTE = [sys.executable, "-c", """
import socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
ours.send(b'{"event": "ready"}')
ours.recv(1)
""", "{socket}"]  # fmt: skip
HELLO = {"order": "hello", "protocol": PROTOCOL, "zygote": {"release": "1", "command": ZYGOTE}}


class Node:
    """A supervisor of its own in a directory, and a node's end of the socket to it."""

    def __init__(self, state):
        self.state, self.directory = state, os.open(state, os.O_RDONLY)
        self.address = f"/proc/self/fd/{self.directory}/{SOCKET}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(4)
            main = "from hekla.node.shim.sandbox.supervisor import main; main()"
            self.process = subprocess.Popen(
                [sys.executable, "-c", main, str(listener.fileno()), str(self.directory), str(PATIENCE_S)],
                pass_fds=[listener.fileno(), self.directory],
            )
        self.socket = self.connect()

    def connect(self):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.settimeout(PATIENCE_S)
        made.connect(self.address)
        return made

    def say(self, order, descriptors=()):
        packets.send(self.socket, order, descriptors)

    def hear(self):
        report, descriptors = packets.receive(self.socket)
        for descriptor in descriptors:
            os.close(descriptor)
        return report

    def opens_at_most(self, number):
        most = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (number or most, most))

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()
        os.close(self.directory)


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.close()


def test_an_order_that_makes_no_sense_ends_nothing(node):
    node.say({"no": "order"})
    node.say(HELLO)
    assert node.hear()["event"] == "welcome"


def test_a_supervisor_that_may_open_nothing_says_so_and_goes_on(node):
    node.say(HELLO)
    assert node.hear()["event"] == "welcome"
    node.opens_at_most(3)
    node.say({"order": "zygote"})
    assert node.hear() == {"event": "zygote gone"}
    # descriptors that it may not take the kernel leaves out
    node.say({"order": "spawn", "id": "s1", "spec": {"cgroups": []}}, (0, 1, 2))
    failed = node.hear()
    assert (failed["event"], failed["id"], failed["is_alive"]) == ("failed", "s1", False)
    node.opens_at_most(None)
    node.say({"order": "zygote"})
    assert node.hear()["event"] == "ready"


def test_a_supervisor_whose_place_another_has_taken_leaves_the_others_socket(node):
    node.say(HELLO)
    assert node.hear()["event"] == "welcome"
    os.rename(node.state / SOCKET, node.state / "moved away")  # as unlinked, with its number kept from use
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as another:
        another.bind(node.address)
        node.say({"order": "end"})
        node.process.wait(PATIENCE_S)
        assert (node.state / SOCKET).exists()


def test_a_supervisor_that_ends_takes_its_socket_with_it(node):
    node.say({"order": "end"})
    node.process.wait(PATIENCE_S)
    assert not (node.state / SOCKET).exists()


@pytest.mark.parametrize(("release", "stays"), [("1", True), ("2", False)])
def test_a_zygote_of_another_release_makes_no_more(node, release, stays):
    node.say(HELLO)
    assert node.hear()["event"] == "welcome"
    node.say({"order": "zygote"})
    before = node.hear()["pid"]
    earlier, node.socket = node.socket, node.connect()  # the latest node is the one
    node.say({**HELLO, "zygote": {**HELLO["zygote"], "release": release}})
    welcome = {"event": "welcome", "protocol": PROTOCOL, "takes": TAKES, "zygote": before if stays else 0}
    assert node.hear() == welcome
    earlier.close()
    node.say({"order": "zygote"})
    assert (node.hear()["pid"] == before) is stays


BEGIN = """
import os, signal, socket, stat
from hekla.node.shim.sandbox import packets
from hekla.node.shim.sandbox.supervisor import PROTOCOL, Held, Supervisor
supervisor = Supervisor(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), 0, 60.0)
def connected():
    ours, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, node):
        end.setblocking(False)
    supervisor._node, supervisor._is_greeted = ours, False
    supervisor._selector.register(ours, 1, supervisor._hear_node)
    return node
def heard_by(node):
    supervisor._talk()
    try:
        while True:
            report, descriptors = packets.receive(node)
            if "id" in report:
                print(report["event"], report["id"], *(stat.S_ISFIFO(os.fstat(one).st_mode) for one in descriptors), report.get("status"))
    except BlockingIOError:
        pass
def left(pid=0, status=None):
    reader, _ = os.pipe()
    held = supervisor._held["s1"] = Held("s1", [], {"control": reader}, {"slot": 1}, pid, status=status)
    return held
hello = {"order": "hello", "protocol": PROTOCOL, "zygote": {}}
"""
BEHIND = """
left(status=9)
node = connected()
try:
    while True:
        packets.send(supervisor._node, {"event": "filler"})
except BlockingIOError:
    pass
supervisor._obey(hello, [])
assert not supervisor._held
heard_by(node)
heard_by(node)
"""
LOST_WHILE_TOLD = """
held = left(pid=2**22 + 1)
connected().close()
supervisor._is_greeted = True
supervisor._bury(held, 9)
node = connected()
supervisor._obey(hello, [])
heard_by(node)
"""
SOMEBODY_ELSES_NUMBER = """
pids = []
for _ in range(2):
    pids.append(os.fork())
    if not pids[-1]:
        signal.pause()
zygote, orphan = pids
supervisor._zygote, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
supervisor._zygote_pid = zygote
supervisor._selector.register(supervisor._zygote, 1, supervisor._hear_zygote)
supervisor._lose_zygote()
for pid in pids:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
reader, writer = os.pipe()
os.write(writer, b"0")
supervisor._zygote_pid = 0
supervisor._wake(reader)
held = left()
for pid in pids:
    supervisor._adopt(held, pid)
    print(held.status)
"""
DEAD_ZYGOTE = """
node = connected()
supervisor._is_greeted = True
supervisor._zygote_pid = os.fork()
if not supervisor._zygote_pid:
    signal.pause()
supervisor._zygote, zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
supervisor._selector.register(supervisor._zygote, 1, supervisor._hear_zygote)
supervisor._held["s0"] = Held("s0", [], {})
packets.send(zygote, {"event": "forked", "id": "s0", "pid": 2**22 + 1})
zygote.close()
supervisor._obey({"order": "spawn", "id": "s1", "spec": {"cgroups": []}}, [os.dup(0) for _ in range(3)])
print(supervisor._zygote, list(supervisor._held))
try:
    while True:
        print(packets.receive(node)[0])
except BlockingIOError:
    pass
"""


def until(is_so):
    deadline = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < deadline


def is_asleep(pid):
    """Whether it waits for a time to pass, not for a word."""
    return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text() or os.geteuid() != 0


def said_by(story):
    ran = subprocess.run([sys.executable, "-c", BEGIN + story], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_what_a_slow_node_is_told_late_comes_whole_even_if_it_ended_meanwhile():
    """Its descriptors were closed with it while they still waited to be sent, and the link was lost over that."""
    assert said_by(BEHIND) == ["held s1 True None", "gone s1 9"]


def test_an_end_that_a_node_could_not_be_told_waits_for_the_next():
    assert said_by(LOST_WHILE_TOLD) == ["held s1 True None", "gone s1 9"]


def test_a_number_that_an_orphan_had_may_be_a_sandboxs_later():
    """Whom a lost zygote had forked was reaped later, and whoever got its number was buried at once."""
    assert said_by(SOMEBODY_ELSES_NUMBER) == ["None", "None"]


def test_a_node_that_speaks_otherwise_is_told_so_and_nothing_else():
    otherwise = "left()\nhello['protocol'] = 1\nnode = connected()\nsupervisor._obey(hello, [])\n"
    assert said_by(otherwise + "print(packets.receive(node)[0])\nheard_by(node)") == [
        "{'event': 'welcome', 'protocol': 2, 'zygote': 0}"
    ]


def test_who_is_ordered_of_a_zygote_that_was_just_killed_is_made_by_the_next():
    """The order met a broken pipe and counted as the host's refusal, which nobody tries again; whom the zygote had told of lives on."""
    assert said_by(DEAD_ZYGOTE) == [
        "None ['s0']",
        "{'event': 'spawned', 'id': 's0', 'pid': 4194305}",
        "{'event': 'zygote gone'}",
        "{'event': 'failed', 'id': 's1', 'message': 'the zygote was killed', 'is_alive': False}",
    ]


def test_a_node_says_how_long_sandboxes_wait_for_the_next():
    """A supervisor that had outlived its node went on with the grace of the life in which it was started."""
    assert said_by(
        "node = connected()\nsupervisor._obey({**hello, 'grace_s': 7.0}, [])\nprint(supervisor._grace_s)"
    ) == ["7.0"]


def test_notes_on_many_come_in_one_order_and_each_is_kept_for_the_next_node():
    order = {"order": "notes", "notes": {"s0": {"slot": 7}, "s1": {"slot": 8}, "nobody": {"slot": 9}}}
    said = said_by(f"held = left()\nsupervisor._held['s0'] = other = Held('s0', [], {{}})\nsupervisor._obey({order}, [])\nprint(other.note, held.note)")  # fmt: skip
    assert said == ["{'slot': 7} {'slot': 8}"]


NOTED = """
from hekla.node.shim.sandbox.notebook import Notebook
held = left()
node = connected()
supervisor._obey(hello, [])
book = Notebook()
packets.send(node, {"order": "notebook"}, [book.descriptor])
heard_by(node)
book.write(b'{"id": "s1", "note": {"slot": 1, "session": "mine"}}')
book.write(b'{"id": "nobody", "note": {"slot": 2}}')
"""


def test_what_a_node_has_noted_before_it_was_killed_the_next_one_is_told():
    assert said_by(f"{NOTED}node.close()\nsupervisor._hear_node()\nprint(held.note, supervisor._notebook)") == [
        "held s1 True None",
        "{'slot': 1, 'session': 'mine'} -1",
    ]


def test_a_sandbox_of_which_no_packet_can_tell_costs_the_others_no_word():
    """Its note had come, and what is told of it is longer: no node was welcomed any more, so each gave up and ended all sandboxes."""
    story = """
held = left()
other = supervisor._held["s0"] = Held("s0", [], {}, {"slot": 2})
held.note["session"] = "x" * (packets.LONGEST - 60)
packets.encode({"id": "s1", "note": held.note})
node = connected()
supervisor._obey(hello, [])
print(*(packets.receive(node)[0]["event"] for _ in range(2)), held.is_doomed, other.is_doomed)
"""
    assert said_by(story) == ["held welcome True False"]


def test_a_node_that_comes_before_the_one_before_is_missed_is_told_too():
    assert said_by(f"{NOTED}supervisor._drop_node()\nprint(held.note)")[-1] == "{'slot': 1, 'session': 'mine'}"


def test_a_node_may_go_back_to_packets():
    story = "supervisor._obey({'order': 'no notebook'}, [])\nsupervisor._obey({'order': 'note', 'id': 's1', 'note': {'slot': 3}}, [])\n"
    assert said_by(f"{NOTED}{story}supervisor._drop_node()\nprint(held.note)")[-1] == "{'slot': 3}"


def test_a_notebook_for_which_a_supervisor_has_no_room_is_refused_and_the_one_before_stays():
    story = "supervisor._obey({'order': 'notebook'}, [])\nprint(packets.receive(node)[0])\nsupervisor._drop_node()\nprint(held.note)"
    assert said_by(f"{NOTED}{story}")[-2:] == [
        "{'event': 'notebook', 'is_taken': False}",
        "{'slot': 1, 'session': 'mine'}",
    ]


def test_a_supervisor_without_room_for_a_node_does_not_spin_and_takes_it_in_later(node):
    node.say(HELLO)
    assert node.hear()["event"] == "welcome"
    node.opens_at_most(3)
    later = node.connect()
    packets.send(later, HELLO)
    until(lambda: is_asleep(node.process.pid))
    node.opens_at_most(0)
    assert packets.receive(later)[0]["event"] == "welcome"
    later.close()
