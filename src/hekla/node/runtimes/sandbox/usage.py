"""Meters one sandbox: processor, memory over time, disks, network, and how long it stood still.

The kernel's group counts where there is one. Where there is none the sandbox's processes are added up at each look, so what came and went
between two looks is missed; `Usage.source` says which it was. Memory over time is the area under looks a few seconds apart.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hekla.api.agents.node_contract import Usage
from hekla.node.egress.broker import Traffic
from hekla.node.runtimes.sandbox.cells import Cell, running_pids
from hekla.node.runtimes.sandbox.groups import Counters, SandboxGroups

EVERY_S, QUIET_EVERY_S = 2.0, 8.0
"""How often one is looked at: while something happens in it, and while nothing does."""
QUIET_US = 5_000
"""Of processor time between two looks, by which nothing happens: the daemon's own housekeeping is less."""
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """One sandbox's."""

    def __init__(self, groups: SandboxGroups, cell: Cell) -> None:
        self._groups, self._cell = groups, cell
        self._clock = time.monotonic
        self._began = self._looked = self._clock()
        self._frozen_since: float | None = None
        self._frozen_s = 0.0
        self._memory_byte_s = 0.0
        self._highest: dict[int, int] = {}
        """Processor time of processes by id, where there is no group: the dead keep theirs."""
        self._from = self._count(has_memory=False)
        self._memory: int | None = None
        """At the latest look. Of the time before the first one it is taken to be what it was then: whoever starts it waits for us."""
        self._last = Counters(0, 0, 0, 0)
        self.traffic = Traffic()
        """The broker's, once there is one: there is no other network."""
        self.was_oom_killed = False
        self.on_look: Callable[[], None] = lambda: None
        """Called when it has looked by itself."""
        self._is_closed = False
        self._alarm = asyncio.get_running_loop().call_later(EVERY_S, self._look_again)

    def state(self) -> dict[str, Any]:
        """What a later life of this node goes on from."""
        return {
            "began": self._began, "looked": self._looked, "frozen_since": self._frozen_since, "frozen_s": self._frozen_s,
            "memory_byte_s": self._memory_byte_s, "from": self._from.row(), "last": self._last.row(),
            "sent": self.traffic.sent, "received": self.traffic.received, "was_oom_killed": self.was_oom_killed,
        }  # fmt: skip

    def go_on(self, state: Mapping[str, Any]) -> None:
        """From where an earlier life was: the clock is the machine's, the counters are the kernel's."""
        self._began, self._looked, self._frozen_since = state["began"], state["looked"], state["frozen_since"]
        self._frozen_s, self._memory_byte_s = state["frozen_s"], state["memory_byte_s"]
        self._from, self._last = Counters(*state["from"]), Counters(*state["last"])
        self.traffic.sent, self.traffic.received = state["sent"], state["received"]
        self.was_oom_killed = state["was_oom_killed"]

    def begin(self) -> None:
        """It is somebody's from now on, who is not charged for the time in which it waited for him."""
        self._began = self._looked = self._clock()
        self._frozen_s, self._memory_byte_s, self._memory = 0.0, 0.0, None
        self._frozen_since = self._began if self._frozen_since is not None else None
        self._from, self._last = self._count(has_memory=False), Counters(0, 0, 0, 0)
        self.traffic.sent = self.traffic.received = 0

    def froze(self) -> None:
        """It stands still from now on."""
        if self._frozen_since is None:
            self._frozen_since = self._clock()

    def thawed(self) -> None:
        """It goes on."""
        if self._frozen_since is not None:
            self._frozen_s += self._clock() - self._frozen_since
            self._frozen_since = None

    def read(self) -> Usage:
        """Everything until now."""
        if not self._is_closed:
            self._look()
        now = self._clock()
        frozen_s = self._frozen_s + (now - self._frozen_since if self._frozen_since is not None else 0.0)
        return Usage(
            at=time.time(), cpu_us=self._last.cpu_us, memory_bytes=self._memory or 0, memory_byte_s=self._memory_byte_s,
            storage_bytes=self._storage(), read_bytes=self._last.read_bytes, written_bytes=self._last.written_bytes,
            network_sent_bytes=self.traffic.sent, network_received_bytes=self.traffic.received,
            wall_s=now - self._began, frozen_s=frozen_s, source="cgroup" if self._is_counted else "proc",
        )  # fmt: skip

    def close(self) -> None:
        """It has ended."""
        self._alarm.cancel()
        self.was_oom_killed = self.was_oom_killed or self._cell.was_oom_killed
        self._is_closed = True

    @property
    def _is_counted(self) -> bool:
        return "memory" in self._groups.parents

    def _look_again(self) -> None:
        before, memory = self._last.cpu_us, self._memory
        self._look()
        self.on_look()
        # where nobody counts, what comes and goes between two looks is missed: look often
        is_quiet = self._is_counted and self._last.cpu_us - before < QUIET_US and self._memory == memory
        self._alarm = asyncio.get_running_loop().call_later(QUIET_EVERY_S if is_quiet else EVERY_S, self._look_again)

    def _look(self) -> None:
        found, now = self._count(), self._clock()
        # a sandbox that waited warm for others is charged from here on
        used = Counters(
            max(self._last.cpu_us, found.cpu_us - self._from.cpu_us),
            found.memory_bytes,
            max(self._last.read_bytes, found.read_bytes - self._from.read_bytes),
            max(self._last.written_bytes, found.written_bytes - self._from.written_bytes),
        )
        before = used.memory_bytes if self._memory is None else self._memory
        self._memory_byte_s += (before + used.memory_bytes) / 2 * (now - self._looked)
        self._memory, self._looked, self._last = used.memory_bytes, now, used
        if self._is_counted and not self.was_oom_killed:
            self.was_oom_killed = self._groups.was_oom_killed(self._cell.name)

    def _count(self, *, has_memory: bool = True) -> Counters:
        return self._groups.count(self._cell.name, has_memory=has_memory) or self._from_processes()

    def _from_processes(self) -> Counters:
        memory = read = written = 0
        for pid in running_pids(self._cell):
            with contextlib.suppress(OSError, ValueError):
                self._highest[pid] = _time_us(pid)
                resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
                memory += (int(resident) - int(shared)) * _PAGE
                rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
                read, written = read + int(rows["read_bytes"]), written + int(rows["write_bytes"])
        return Counters(sum(self._highest.values()), memory, read, written)

    def _storage(self) -> int:
        if self._cell.storage_bytes >= 0:
            return self._cell.storage_bytes
        with contextlib.suppress(OSError):
            found = os.statvfs(f"/proc/{self._cell.pid}/root")
            return (found.f_blocks - found.f_bfree) * found.f_frsize
        return 0


def _time_us(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, waited_for = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return (own + waited_for) * _TICK_US
