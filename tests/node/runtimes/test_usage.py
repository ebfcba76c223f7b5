"""What a sandbox is charged for the time before anybody has looked at it, and for what it writes to a disk."""

import asyncio
import os
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest

from hekla.node.runtimes.sandbox.groups import PREFIX, Counters, find_groups
from hekla.node.runtimes.sandbox.usage import Meter

MIB = 1 << 20


class PaperGroups:
    parents = {"memory": None}

    def __init__(self):
        self.used, self.asked = Counters(7_000, 5 * MIB, 100, 200), []

    def count(self, name, *, has_memory=True):
        self.asked.append(has_memory)
        return self.used if has_memory else Counters(self.used.cpu_us, 0, self.used.read_bytes, self.used.written_bytes)

    def was_oom_killed(self, name):
        return False


def test_memory_is_charged_from_the_start_though_it_is_first_looked_at_later():
    async def story():
        groups, now = PaperGroups(), [100.0]
        meter = Meter(groups, SimpleNamespace(name="s1", storage_bytes=0, was_oom_killed=False))
        meter._clock = lambda: now[0]
        meter._began = meter._looked = 100.0
        assert groups.asked == [False], "whoever starts it does not wait for that"
        now[0], groups.used = 102.0, Counters(8_000, 5 * MIB, 150, 260)
        used = meter.read()
        assert used.memory_byte_s == pytest.approx(10 * MIB)
        assert (used.cpu_us, used.memory_bytes, used.read_bytes, used.written_bytes) == (1_000, 5 * MIB, 50, 60)
        now[0], groups.used = 104.0, Counters(8_000, 7 * MIB, 150, 260)
        assert meter.read().memory_byte_s == pytest.approx(22 * MIB)
        meter.close()

    asyncio.run(story())


def test_who_gets_one_that_waited_is_charged_from_then_on():
    """A session of a sandbox that had waited for two minutes in a pool stood still at once: its budget was a minute awake."""

    async def story():
        groups, now = PaperGroups(), [100.0]
        meter = Meter(groups, SimpleNamespace(name="s1", storage_bytes=0, was_oom_killed=False))
        meter._clock = lambda: now[0]
        meter._began = meter._looked = 100.0
        meter.froze()
        now[0] = 110.0
        meter.thawed()
        now[0], groups.used, meter.traffic.sent = 220.0, Counters(9_000, 5 * MIB, 300, 400), 30
        assert meter.read().wall_s == 120.0
        meter.begin()
        used = meter.read()
        assert (used.wall_s, used.frozen_s, used.cpu_us, used.read_bytes, used.written_bytes) == (0, 0, 0, 0, 0)
        assert (used.memory_byte_s, used.network_sent_bytes) == (0, 0)
        now[0], groups.used = 222.0, Counters(9_500, 5 * MIB, 300, 410)
        used = meter.read()
        assert (used.wall_s, used.cpu_us, used.written_bytes) == (2.0, 500, 10)
        assert used.memory_byte_s == pytest.approx(10 * MIB)
        later = Meter(groups, SimpleNamespace(name="s1", storage_bytes=0, was_oom_killed=False))
        later._clock = meter._clock
        later.go_on(meter.state())
        assert (later.read().wall_s, later.read().cpu_us) == (2.0, 500), "a later life of the node goes on from there"
        meter.close()
        later.close()

    asyncio.run(story())


WRITER = """
import os, sys
for place in sys.argv[2:]:
    with open(place, "w") as file: file.write(str(os.getpid()))
def write():
    with open(f"{sys.argv[1]}/{os.getpid()}", "wb") as file: file.write(bytes(8 << 20))
if os.fork() == 0:
    write()
    os._exit(0)
os.wait()
write()
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def groups():
    found = find_groups(f"{PREFIX}test-{uuid.uuid4().hex[:8]}")
    if "memory" not in found.parents or found.is_v2:
        found.close()
        pytest.skip("version 2 charges what is written as it reaches the disk")
    yield found
    found.remove("s1")
    found.close()


def test_what_a_disk_is_owed_is_charged_to_who_wrote_it_though_he_may_have_ended(groups, tmp_path):
    """Version 1 charged gigabytes to nobody: they were written back by the kernel, and Linux 6.18 counts for no group before it throttles one."""
    if os.major(tmp_path.stat().st_dev) == 0:
        pytest.skip(f"{tmp_path} is on no disk")
    places = [str(made / "cgroup.procs") for made in groups.create("s1")]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), *places], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "written\n"
        assert 16 * MIB <= groups.count("s1").written_bytes < 17 * MIB
    finally:
        writer.communicate()
