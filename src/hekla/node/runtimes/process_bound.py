"""Keeps fork bombs in plain pods from taking the machine's last process ids: all containers of a node together have three quarters.

The spawner joins one control group, and every container is born into it, which costs a start nothing. Where no group can be made, an
ordinary user's containers have three quarters of what the user may run (`RLIMIT_NPROC`, which the platform itself is not held to), and
root's have no bound; `describe` says which, for the node's conditions. A sandbox has a bound of its own.
"""

import contextlib
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hekla.node.runtimes.cgroups import MOUNT, remove_abandoned, remove_tree

SHARE = (3, 4)
KERNEL = Path("/proc/sys/kernel")
SPAWNER = "spawner"
"""The leaf in version 2, where no process may be in a group that has others below it."""


@dataclass(slots=True)
class ProcessBound:
    """What holds the containers of one runtime."""

    group: Path | None
    most: int
    why: str = ""
    """Why there is no group."""

    is_v2: bool = False

    @property
    def rlimit(self) -> int:
        """`RLIMIT_NPROC` of each container; 0: none."""
        return 0 if self.group is not None or os.geteuid() == 0 else self.most

    def take(self, spawner: int) -> None:
        """Hold a spawner by its process id, and all that it starts from now on."""
        if self.group is None:
            return
        try:
            joined = self.group
            if self.is_v2:
                joined = self.group / SPAWNER
                joined.mkdir(exist_ok=True)
            (joined / "cgroup.procs").write_text(str(spawner))
        except OSError as problem:
            self.group, self.why = None, f"{problem.strerror or problem}"

    def close(self) -> None:
        """Remove what was made, once all in it has ended."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                (self.group / SPAWNER).rmdir()
            remove_tree(self.group)

    def describe(self) -> str:
        """For people."""
        if self.group is not None:
            return f"all pods together have at most {self.most} processes, by control group"
        if self.rlimit:
            return f"all pods together have at most {self.most} processes, by rlimit (no control group: {self.why})"
        return f"the number of processes is not bounded ({self.why})"


def find_bound(name: str, group_v2: Path | None = None) -> ProcessBound:
    """The bound that can be kept here; `group_v2` is the one that containers' groups are below, where version 2 is used."""
    try:
        group = group_v2 or MOUNT / "pids" / name
        most = max(1, _room(group.parents) * SHARE[0] // SHARE[1])
        if group_v2 is None:
            remove_abandoned(group.parent, name)
            group.mkdir(exist_ok=True)
        (group / "pids.max").write_text(str(most))
        return ProcessBound(group, most, is_v2=group_v2 is not None)
    except (OSError, ValueError) as problem:
        return ProcessBound(None, _share_of_user(), f"{getattr(problem, 'strerror', '') or problem}")


def _room(above: Iterable[Path]) -> int:
    """How many processes there can be: ids, threads of the kernel, and what the groups above have, which the platform shares."""
    limits = [int((KERNEL / name).read_text()) for name in ("pid_max", "threads-max")]
    for group in above:
        with contextlib.suppress(OSError, ValueError):  # the root has no limit, and "max" is none
            limits.append(int((group / "pids.max").read_text()))
    return min(limits)


def _share_of_user() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            soft = int((KERNEL / "threads-max").read_text())
    return max(1, soft * SHARE[0] // SHARE[1])
