"""Control groups, where this host lets us make them: memory, CPU limits and weights. Whether the kernel killed for memory, the spawner looks.

Version 2 with a delegated or the root group, version 1 with its memory and cpu hierarchies; else limits fall back to
rlimits (`describe` says which, for the node's conditions).
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hekla.node.runtimes import Limits
from hekla.node.runtimes.cpu_weight import shares_of, shares_of_tree, written_for

MOUNT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
DIGEST, YOUNG_S = 12, 120.0


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
        return f"memory limits by rlimit (data segment), CPU limits not enforced: {self.why}"


@dataclass(frozen=True)
class CgroupV2:
    """One unified hierarchy, below `parent`."""

    parent: Path

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """One group."""
        group = self.parent / name
        group.mkdir(parents=True, exist_ok=True)
        if limits.memory_bytes:
            _write(group / "memory.max", str(limits.memory_bytes))
            with contextlib.suppress(OSError):
                _write(group / "memory.swap.max", "0")
                _write(group / "memory.oom.group", "1")
        if limits.cpu_milli:
            _write(group / "cpu.max", f"{max(1000, limits.cpu_milli * PERIOD_US // 1000)} {PERIOD_US}")
        weigh(group, shares_of(limits.cpu_request_milli), is_v2=True)
        return (group,)

    def remove(self, groups: Sequence[Path]) -> None:
        """Remove the group."""
        _remove(groups)

    def close(self) -> None:
        """Remove the parent."""
        remove_tree(self.parent)

    def describe(self) -> str:
        """Version and place."""
        return f"CPU and memory limits by cgroup v2 below {self.parent}"


@dataclass(frozen=True)
class CgroupV1:
    """The memory and cpu hierarchies of version 1, below `name` in each."""

    memory: Path
    cpu: Path

    def create(self, name: str, limits: Limits) -> Sequence[Path]:
        """One group for its processors, and one for its memory where that has a limit."""
        cpu, memory = self.cpu / name, self.memory / name
        if not self.cpu.exists():
            self.cpu.mkdir(exist_ok=True)
            weigh(self.cpu, shares_of_tree(), is_v2=False)
        cpu.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        weigh(cpu, shares_of(limits.cpu_request_milli), is_v2=False)
        if limits.cpu_milli:
            _write(cpu / "cpu.cfs_period_us", str(PERIOD_US))
            _write(cpu / "cpu.cfs_quota_us", str(max(1000, limits.cpu_milli * PERIOD_US // 1000)))
        if not limits.memory_bytes:
            return (cpu,)
        memory.mkdir(parents=True, exist_ok=True)
        _write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            _write(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
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
        return f"CPU and memory limits by cgroup v1 below {self.memory} and {self.cpu}"


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
            _write(parent / "cgroup.subtree_control", "+memory +cpu")
            group = parent / name
            with contextlib.suppress(OSError):  # some hosts delegate memory and cpu alone
                _write(parent / "cgroup.subtree_control", "+pids")
            group.mkdir(exist_ok=True)
            _write(group / "cgroup.subtree_control", "+memory +cpu")
            weigh(group, shares_of_tree(), is_v2=True)
            return CgroupV2(group)
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


def weigh(group: Path, shares: int, *, is_v2: bool) -> None:
    """Give a group its part of the processors, where the host lets us: a container without runs all the same."""
    file, text = written_for(shares, is_v2=is_v2)
    with contextlib.suppress(OSError):
        _write(group / file, text)


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return path.lstrip("/")
    return ""


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


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
