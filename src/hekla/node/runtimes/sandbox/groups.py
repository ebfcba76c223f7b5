"""Control groups of sandboxes: what they may use and weigh, what they have used, and standing still. Version 2, version 1, or none.

`cgroups.py` keeps the limits of ordinary containers; here there are also processes to count, time to charge and a freezer, and a group is made
before its sandbox, which joins it first of all.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hekla.node.runtimes import Limits
from hekla.node.runtimes.cgroups import MOUNT, PERIOD_US, Weigher, remove_tree, write_to_group
from hekla.node.runtimes.cpu_weight import shares_of, shares_of_tree

V1_HIERARCHIES = ("memory", "cpu", "cpuacct", "pids", "freezer", "blkio")
V2_CONTROLLERS = ("memory", "cpu", "pids", "io")
FREEZE_PATIENCE_S = 1.0
SWEEP_PATIENCE_S = 5.0
PREFIX = "hekla-sandboxes-"
KEPT_SHARE = 8
"""An eighth of the machine's memory is for what is no sandbox: the platform, and who asks it what goes on. Past that the kernel ends
what takes most in a sandbox, not what takes most on the machine."""
YOUNG_S = 60.0
"""A group that is made and not locked yet is nobody's loss."""
TRIES = 5
LONGEST = 65536
"""Of what is read of a group; the longest is its statistics of memory, 2 KiB."""


@dataclass(frozen=True)
class Counters:
    """What the kernel has counted for one group."""

    cpu_us: int
    memory_bytes: int
    read_bytes: int
    written_bytes: int

    def row(self) -> tuple[int, int, int, int]:
        """In the order in which it is made. `astuple` looks into each number, too: 10 us of a note's 36."""
        return self.cpu_us, self.memory_bytes, self.read_bytes, self.written_bytes


@dataclass(frozen=True)
class SandboxGroups:
    """Where groups are made: a parent directory by controller; in version 2 all are the same one."""

    parents: dict[str, Path] = field(default_factory=dict)
    is_v2: bool = False
    why_none: str = ""
    locks: tuple[int, ...] = ()
    """Held while we live, so that nobody tidies up what is ours (`sweep_abandoned`)."""
    weigher: Weigher = field(default_factory=Weigher, compare=False, repr=False)

    def create(self, name: str) -> Sequence[Path]:
        """Make a sandbox's groups."""
        made = list(dict.fromkeys(parent / name for parent in self.parents.values()))
        for group in made:
            try:
                os.mkdir(group)
            except FileExistsError:
                continue
            except FileNotFoundError:  # somebody tidied up
                group.mkdir(parents=True, exist_ok=True)
        return made

    def limit(self, name: str, limits: Limits, processes: int) -> None:
        """Set what it may use, where 0 means no limit, and what it weighs."""
        if "pids" in self.parents:
            write_to_group(f"{self.parents['pids']}/{name}/pids.max", str(processes))
        if limits.memory_bytes and "memory" in self.parents:
            file = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
            swap = "memory.swap.max" if self.is_v2 else "memory.memsw.limit_in_bytes"
            write_to_group(self.parents["memory"] / name / file, str(limits.memory_bytes))
            with contextlib.suppress(OSError):
                write_to_group(self.parents["memory"] / name / swap, "0" if self.is_v2 else str(limits.memory_bytes))
        if "cpu" in self.parents:
            group = f"{self.parents['cpu']}/{name}"
            self.weigher.weigh(group, shares_of(limits.cpu_request_milli), is_v2=self.is_v2)
        if limits.cpu_milli and "cpu" in self.parents:
            quota_us = max(1000, limits.cpu_milli * PERIOD_US // 1000)
            if self.is_v2:
                write_to_group(self.parents["cpu"] / name / "cpu.max", f"{quota_us} {PERIOD_US}")
            else:
                write_to_group(self.parents["cpu"] / name / "cpu.cfs_period_us", str(PERIOD_US))
                write_to_group(self.parents["cpu"] / name / "cpu.cfs_quota_us", str(quota_us))

    @property
    def can_freeze(self) -> bool:
        """Whether a group can stand still as a whole."""
        return "freezer" in self.parents

    def freeze(self, name: str) -> bool:
        """Let a sandbox stand still; False if it does not within a second (a process waits for a disk)."""
        return self._freezer(name, is_frozen=True)

    def thaw(self, name: str) -> bool:
        """Let it go on."""
        return self._freezer(name, is_frozen=False)

    def is_frozen(self, name: str) -> bool:
        """Whether all of a sandbox stands still."""
        group = self.parents["freezer"] / name
        with contextlib.suppress(OSError):
            if self.is_v2:
                return b"frozen 1" in _read(group / "cgroup.events")
            return _read(group / "freezer.state").strip() == b"FROZEN"
        return False

    def _freezer(self, name: str, *, is_frozen: bool) -> bool:
        group = self.parents["freezer"] / name
        file, word = (
            ("cgroup.freeze", "1" if is_frozen else "0")
            if self.is_v2
            else ("freezer.state", "FROZEN" if is_frozen else "THAWED")
        )
        write_to_group(group / file, word)
        deadline = time.monotonic() + FREEZE_PATIENCE_S
        while time.monotonic() < deadline:
            if self.is_v2:
                if f"frozen {word}".encode() in _read(group / "cgroup.events"):
                    return True
            elif _read(group / file).strip() == word.encode():
                return True
            time.sleep(0)  # gone in 0.2 ms
        return False

    def count(self, name: str, *, has_memory: bool = True) -> Counters | None:
        """What it has used; None if nobody counts. Memory takes two thirds of the time; where it is not asked for it is 0."""
        if "memory" not in self.parents or not ("cpuacct" in self.parents or self.is_v2):
            return None
        memory, used = f"{self.parents['memory']}/{name}", 0
        try:
            if self.is_v2:
                cpu_us = _field(f"{memory}/cpu.stat", "usage_usec")
                if has_memory:
                    used = int(_read(f"{memory}/memory.current")) - _field(f"{memory}/memory.stat", "inactive_file")
            else:
                cpu_us = int(_read(f"{self.parents['cpuacct']}/{name}/cpuacct.usage")) // 1000
                if has_memory:
                    used = int(_read(f"{memory}/memory.usage_in_bytes"))
                    used -= _field(f"{memory}/memory.stat", "total_inactive_file")
            read, written = self._io(name)
        except OSError:
            return None
        return Counters(cpu_us, max(0, used), read, written)

    def _io(self, name: str) -> tuple[int, int]:
        if self.is_v2:
            return _sum_v2(f"{self.parents['memory']}/{name}/io.stat")
        by_group = by_process = (0, 0)
        if "blkio" in self.parents:
            by_group = _sum_v1(f"{self.parents['blkio']}/{name}/blkio.throttle.io_service_bytes")
        if "memory" in self.parents:
            by_process = _sum_processes(f"{self.parents['memory']}/{name}/cgroup.procs")
        return max(by_group[0], by_process[0]), max(by_group[1], by_process[1])

    def was_oom_killed(self, name: str) -> bool:
        """Whether the kernel killed in it for want of memory."""
        if "memory" not in self.parents:
            return False
        file = "memory.events" if self.is_v2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            return _field(f"{self.parents['memory']}/{name}/{file}", "oom_kill") > 0
        return False

    def remove(self, name: str) -> None:
        """Remove a sandbox's groups, once all in it has ended."""
        for parent in set(self.parents.values()):
            with contextlib.suppress(OSError):
                os.rmdir(parent / name)

    def close(self) -> None:
        """Remove the parents."""
        for parent in set(self.parents.values()):
            remove_tree(parent)
        for lock in self.locks:
            os.close(lock)

    def describe(self) -> str:
        """For people."""
        if not self.parents:
            return f"processes and data segments by rlimit, time not at all: {self.why_none}"
        return f"{', '.join(sorted(self.parents))} by cgroup v{2 if self.is_v2 else 1}"

    @property
    def unshared(self) -> str:
        """Why sandboxes do not share the processors by what their pods ask for; empty: they do, as far as has been tried."""
        if "cpu" in self.parents:
            return self.weigher.unshared
        return "no group has the cpu controller" if self.parents else f"no control group can be made: {self.why_none}"


def sweep_groups(name: str, kept: Collection[str] = ()) -> int:
    """End what an earlier life left in its groups, but for the `kept` sandboxes. How many processes were killed."""
    killed = 0
    for parent in (MOUNT / name, *(MOUNT / hierarchy / name for hierarchy in V1_HIERARCHIES)):
        for group in [each for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []:
            if group.name in kept:
                continue
            for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (group / file).exists():
                    write_to_group(group / file, word)
            killed += _kill_all(group)
        if parent.is_dir():
            remove_tree(parent)
    return killed


def sweep_abandoned(own: str, young_s: float = YOUNG_S) -> int:
    """Remove empty groups of platforms that were killed and never came back: of those that live each is locked. How many there were."""
    removed = 0
    for parents in (MOUNT, *(MOUNT / hierarchy for hierarchy in V1_HIERARCHIES)):
        for parent in parents.glob(f"{PREFIX}*"):
            if parent.name == own or time.time() - _changed_at(parent) < young_s:
                continue
            with contextlib.suppress(OSError):  # somebody's, or not empty, or gone already
                lock = _lock(parent, fcntl.LOCK_EX)
                try:
                    remove_tree(parent)
                    removed += not parent.exists()
                finally:
                    os.close(lock)
    return removed


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except OSError:
        return time.time()


def _lock(group: Path, how: int) -> int:
    """A descriptor that holds a lock on a group; raises OSError where another has one that does not go with it."""
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _locked(parent: Path) -> int:
    """Make a parent group ours; whoever tidies up may have been faster, so it is looked at again."""
    for _ in range(TRIES):
        with contextlib.suppress(OSError):
            descriptor = _lock(parent, fcntl.LOCK_SH)
            if _is_still(parent, descriptor):
                return descriptor
            os.close(descriptor)
        parent.mkdir(exist_ok=True)
    return -1


def _is_still(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _kill_all(group: Path) -> int:
    killed = 0
    deadline = time.monotonic() + SWEEP_PATIENCE_S
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
                killed += 1
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return killed


def find_groups(name: str) -> SandboxGroups:
    """What can really be used here, tried by making a group in each."""
    try:
        return _find_v2(name)
    except OSError:
        return _find_v1(name)


def _find_v2(name: str) -> SandboxGroups:
    offered = (MOUNT / "cgroup.controllers").read_text().split()
    if "memory" not in offered:
        raise OSError(95, "no memory controller in cgroup v2")
    wanted = " ".join(f"+{each}" for each in V2_CONTROLLERS if each in offered)
    group = MOUNT / name
    write_to_group(MOUNT / "cgroup.subtree_control", wanted)
    group.mkdir(exist_ok=True)
    lock = _locked(group)
    locks = (lock,) if lock >= 0 else ()
    write_to_group(group / "cgroup.subtree_control", wanted)
    _leave_room(group / "memory.max")
    weigher = Weigher()
    if "cpu" in offered:
        weigher.weigh(group, shares_of_tree(), is_v2=True)
    kept = [each for each in V2_CONTROLLERS if each in offered]  # what is not offered has no files in a group
    return SandboxGroups(dict.fromkeys((*kept, "freezer"), group), is_v2=True, locks=locks, weigher=weigher)


def _find_v1(name: str) -> SandboxGroups:
    parents: dict[str, Path] = {}
    problem = "no control groups are mounted"
    for hierarchy in V1_HIERARCHIES:
        parent = MOUNT / hierarchy / name
        try:
            parent.mkdir(exist_ok=True)
        except OSError as refusal:
            problem = f"{refusal.strerror} ({hierarchy})"
            continue
        parents[hierarchy] = parent
    if "memory" in parents:
        _leave_room(parents["memory"] / "memory.limit_in_bytes")
    weigher = Weigher()
    if "cpu" in parents:
        weigher.weigh(parents["cpu"], shares_of_tree(), is_v2=False)
    locks = tuple(lock for lock in map(_locked, parents.values()) if lock >= 0)
    return SandboxGroups(parents, why_none=problem, locks=locks, weigher=weigher)


def _leave_room(file: Path) -> None:
    """Bound all sandboxes together, as one whose pod says no limit is bounded by nothing else."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):  # the machine's owner keeps that to himself
        write_to_group(file, str(whole - whole // KEPT_SHARE))


def _read(path: Path | str) -> bytes:
    """All of a small file. Hundreds of sandboxes are looked at every few seconds: 8 us each where pathlib takes 40."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, LONGEST)
    finally:
        os.close(descriptor)


def _field(path: str, name: str) -> int:
    found = b"\n" + _read(path)
    _, name_there, rest = found.partition(b"\n%b " % name.encode())
    return int(rest.partition(b"\n")[0]) if name_there else 0


def _sum_v1(path: str) -> tuple[int, int]:
    read = written = 0
    with contextlib.suppress(OSError):
        for line in _read(path).splitlines():
            row = line.split()
            if len(row) == 3:
                read += int(row[2]) if row[1] == b"Read" else 0
                written += int(row[2]) if row[1] == b"Write" else 0
    return read, written


def _sum_processes(path: str) -> tuple[int, int]:
    """Bytes that processes read from disks, and made disks owe: what was reaped is in the account of who reaped it.

    Version 1 charges nobody for pages that are written back later, and on Linux 6.18 nobody for anything until somebody is throttled.
    Parents come first, so that no account is added twice as it passes from a child to its parent.
    """
    read = written = 0
    for pid in sorted(map(int, _read(path).split())):
        with contextlib.suppress(OSError, ValueError):  # it has ended; or the line was cut
            words = _read(f"/proc/{pid}/io").split()
            read, written = read + int(words[9]), written + int(words[11])
    return read, written


def _sum_v2(path: str) -> tuple[int, int]:
    read = written = 0
    with contextlib.suppress(OSError):
        for word in _read(path).split():
            key, _, value = word.partition(b"=")
            read += int(value) if key == b"rbytes" else 0
            written += int(value) if key == b"wbytes" else 0
    return read, written
