"""What a sandbox is charged for the time before anybody has looked at it."""

import asyncio
from types import SimpleNamespace

import pytest

from hekla.node.runtimes.sandbox.groups import Counters
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
