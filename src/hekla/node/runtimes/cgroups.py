"""Control groups, where this host lets us make them: memory, CPU limits and weights. Whether the kernel killed for memory, the spawner looks.

Version 2 with a delegated or the root group, version 1 with its memory and cpu hierarchies; else limits fall back to
rlimits (`describe` says which, for the node's conditions).
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from hekla.node.runtimes import Limits
from hekla.node.runtimes.cpu_weight import shares_of, shares_of_tree, written_for

log = structlog.get_logger(__name__)

MOUNT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
DIGEST, YOUNG_S = 12, 120.0


class Weigher:
    """Gives the groups of one tree their parts of the processors, where the host lets us: a container without runs all the same.

    A refusal is told once for each reason, not for each container: in the log at once, and by `unshared` for the node's conditions.
    """

    def __init__(self) -> None:
        self._refused: dict[int | None, str] = {}
        """The first refusal of each error number, of which a kernel has fewer than 150."""

    @property
    def unshared(self) -> str:
        """Why the processors are not shared by what containers ask for; empty: they are, as far as has been tried."""
        return ", ".join(self._refused.values())

    def weigh(self, group: Path | str, shares: int, *, is_v2: bool) -> None:
        """Write a group's part. A group that is gone, as somebody tidied up, has none."""
        name, text = written_for(shares, is_v2=is_v2)
        file = f"{group}/{name}"
        try:
            write_to_group(file, text)
        except OSError as problem:
            if os.path.isdir(group):
                self._tell(file, text, problem)

    def _tell(self, file: str, text: str, problem: OSError) -> None:
        if problem.errno in self._refused:
            return
        error = problem.strerror or str(problem)
        self._refused[problem.errno] = f"{file} does not take {text} ({error})"
        log.warning("CPU is not shared by requests: a weight was refused", file=file, value=text, error=error)


class CgroupTree(Protocol):
    """Where the groups of our containers are made."""

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """Make the groups of a container; their paths, to be joined."""

    def remove(self, groups: Sequence[Path]) -> None:
        """Remove empty groups."""

    def close(self) -> None:
        """Remove the tree itself, once all in it has ended."""

    def describe(self) -> str:
        """How limits are enforced, for people."""


@dataclass(frozen=True)
class NoCgroups:
    """Nothing may be made: rlimits must do."""

    why: str

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """No groups."""
        return ()

    def remove(self, groups: Sequence[Path]) -> None:
        """Nothing was made."""

    def close(self) -> None:
        """Nothing was made."""

    def describe(self) -> str:
        """What rlimits can and cannot do."""
        return f"memory limits by rlimit (data segment), CPU neither limited nor shared by requests: {self.why}"


@dataclass(frozen=True)
class CgroupV2:
    """One unified hierarchy, below `parent`."""

    parent: Path
    weigher: Weigher = field(default_factory=Weigher, compare=False)

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """One group."""
        group = self.parent / name
        group.mkdir(parents=True, exist_ok=True)
        if limits.memory_bytes:
            write_to_group(group / "memory.max", str(limits.memory_bytes))
            with contextlib.suppress(OSError):
                write_to_group(group / "memory.swap.max", "0")
                write_to_group(group / "memory.oom.group", "1")
        if limits.cpu_milli:
            write_to_group(group / "cpu.max", f"{max(1000, limits.cpu_milli * PERIOD_US // 1000)} {PERIOD_US}")
        self.weigher.weigh(group, shares_of(limits.cpu_request_milli), is_v2=True)
        return (group,)

    def remove(self, groups: Sequence[Path]) -> None:
        """Remove the group."""
        _remove(groups)

    def close(self) -> None:
        """Remove the parent."""
        remove_tree(self.parent)

    def describe(self) -> str:
        """Version and place."""
        return f"CPU and memory limits by cgroup v2 below {self.parent}{_unless_shared(self.weigher)}"


@dataclass(frozen=True)
class CgroupV1:
    """The memory and cpu hierarchies of version 1, below `name` in each."""

    memory: Path
    cpu: Path
    weigher: Weigher = field(default_factory=Weigher, compare=False)

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """One group for its processors, and one for its memory where that has a limit."""
        cpu, memory = self.cpu / name, self.memory / name
        if not self.cpu.exists():
            self.cpu.mkdir(exist_ok=True)
            self.weigher.weigh(self.cpu, shares_of_tree(), is_v2=False)
        cpu.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        self.weigher.weigh(cpu, shares_of(limits.cpu_request_milli), is_v2=False)
        if limits.cpu_milli:
            write_to_group(cpu / "cpu.cfs_period_us", str(PERIOD_US))
            write_to_group(cpu / "cpu.cfs_quota_us", str(max(1000, limits.cpu_milli * PERIOD_US // 1000)))
        if not limits.memory_bytes:
            return (cpu,)
        memory.mkdir(parents=True, exist_ok=True)
        write_to_group(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            write_to_group(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
        return memory, cpu

    def remove(self, groups: Sequence[Path]) -> None:
        """Remove both."""
        _remove(groups)

    def close(self) -> None:
        """Remove both parents."""
        remove_tree(self.memory)
        remove_tree(self.cpu)

    def describe(self) -> str:
        """Version and places."""
        return f"CPU and memory limits by cgroup v1 below {self.memory} and {self.cpu}{_unless_shared(self.weigher)}"


def _unless_shared(weigher: Weigher) -> str:
    return f"; CPU is not shared by requests: {weigher.unshared}" if weigher.unshared else ""


def find_cgroups(name: str) -> CgroupTree:
    """The best tree that can really be used, tried by making a group in it."""
    problems = []
    for make in (_find_v2, _find_v1):
        try:
            return make(name)
        except OSError as problem:
            problems.append(f"{problem.strerror or problem} ({problem.filename or make.__name__[-2:]})")
    return NoCgroups(", ".join(dict.fromkeys(problems)))


def _find_v2(name: str) -> CgroupTree:
    if "memory" not in (MOUNT / "cgroup.controllers").read_text().split():
        raise OSError(95, "no memory controller in cgroup v2")
    tree: OSError | None = None
    for parent in (MOUNT, MOUNT / _own_group()):
        try:
            write_to_group(parent / "cgroup.subtree_control", "+memory +cpu")
            made = CgroupV2(parent / name)
            with contextlib.suppress(OSError):  # some hosts delegate memory and cpu alone
                write_to_group(parent / "cgroup.subtree_control", "+pids")
            made.parent.mkdir(exist_ok=True)
            write_to_group(made.parent / "cgroup.subtree_control", "+memory +cpu")
            made.weigher.weigh(made.parent, shares_of_tree(), is_v2=True)
            return made
        except OSError as problem:
            tree = problem
    raise tree or OSError(13, "no group may be made")


def _find_v1(name: str) -> CgroupTree:
    tree = CgroupV1(MOUNT / "memory" / name, MOUNT / "cpu" / name)
    for parent in (tree.memory.parent, tree.cpu.parent):
        remove_abandoned(parent, name)
    if not (MOUNT / "memory" / "memory.limit_in_bytes").exists():
        raise OSError(2, "no cgroup v1 memory hierarchy")
    tree.remove(tree.create("probe", Limits(cpu_milli=1000, memory_bytes=1 << 30)))
    tree.close()  # made again with the first container
    return tree


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return path.lstrip("/")
    return ""


def write_to_group(path: Path | str, text: str) -> None:
    """Write one of the files that a group has. None is made: the kernel would call one that is missing forbidden. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _remove(groups: Sequence[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):  # still busy: swept at a later start
            os.rmdir(group)


def remove_tree(parent: Path) -> None:
    """Remove a group of ours and the empty groups in it."""
    with contextlib.suppress(OSError):
        _remove([child for child in parent.iterdir() if child.is_dir()])
        os.rmdir(parent)


def remove_abandoned(parent: Path, own: str) -> None:
    """Remove trees of nodes that were killed and never came back, as far as nobody is in them; what is young may be about to be joined."""
    for tree in parent.glob(f"{own.partition('-')[0]}-{'[0-9a-f]' * DIGEST}"):
        if tree.name == own:
            continue
        with contextlib.suppress(OSError):  # another node removes it, too
            groups = (*(child for child in tree.iterdir() if child.is_dir()), tree)
            # looked at first: a directory is as young as what was last taken out of it
            _remove([group for group in groups if time.time() - group.stat().st_mtime > YOUNG_S])
