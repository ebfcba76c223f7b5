"""The first program of a machine that has control groups of version 2: makes some through our code, and prints what its kernel took.

`test_cgroup_v2.py` starts it. What it finds goes to the first serial port as one line: a mark and a JSON document.
"""

import json
import os
import time
from pathlib import Path

from hekla.node.runtimes import Limits
from hekla.node.runtimes.cgroups import CgroupTree, CgroupV2, find_cgroups
from hekla.node.runtimes.cpu_weight import shares_of, weight_of
from hekla.node.runtimes.sandbox.groups import find_groups
from hekla.node.shim import linux

MARK = "found: "
RUNS_S = 3.0
"""Of the machine's processor that two who both want all of it have between them. The scheduler gives the lighter one a turn about every 10 ms."""
MOUNTS = (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("cgroup2", "/sys/fs/cgroup"))


def main() -> None:
    for kind, place in MOUNTS:
        linux.mount(kind, place, kind)
    found = look()
    with open("/dev/ttyS0", "w", encoding="ascii") as serial:
        serial.write(f"\n{MARK}{json.dumps(found)}\n")


def look() -> dict[str, object]:
    """All that the test asks, in order; the last makes the groups read-only."""
    tree = find_cgroups("hekla-plain")
    sandboxes = find_groups("hekla-sandboxes-test")
    found: dict[str, object] = {
        "tree": tree.describe(),
        "tree's weight": weight(Path("/sys/fs/cgroup/hekla-plain")),
        "weights": {milli: weight(*tree.create(f"c{milli}", of(milli))) for milli in (0, 100, 1000, 4000, 256_000)},
        "sandboxes' tree": weight(sandboxes.parents["cpu"]),
    }
    made = sandboxes.create("s1")
    sandboxes.limit("s1", of(4000), 512)
    found |= {"sandbox's weight": weight(*made), "sandboxes' refusals": sandboxes.unshared, "usage": spin(tree)}
    bare = CgroupV2(Path("/sys/fs/cgroup/bare"))
    bare.create("c", of(1000))
    found["without the controller"] = bare.describe()
    linux.mount("", "/sys/fs/cgroup", flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    tree.create("c1000", of(4000))
    return found | {"read-only": tree.describe(), "weight then": weight(Path("/sys/fs/cgroup/hekla-plain/c1000"))}


def of(milli: int) -> Limits:
    return Limits(cpu_request_milli=milli)


def weight(group: Path) -> int:
    return int((group / "cpu.weight").read_text())


def spin(tree: CgroupTree) -> list[tuple[int, int]]:
    """Weight and microseconds of two that spin beside each other, the one four times as heavy."""
    heavy = next(
        milli for milli in range(1000, 100_000) if weight_of(shares_of(milli)) == 4 * weight_of(shares_of(1000))
    )
    groups = [group for name, milli in (("light", 1000), ("heavy", heavy)) for group in tree.create(name, of(milli))]
    spinning = [spinner(group) for group in groups]
    before = [used_us(group) for group in groups]
    while sum(after := [used_us(group) for group in groups]) < sum(before) + RUNS_S * 1e6:
        time.sleep(0.05)
    for pid in spinning:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return [(weight(group), end - start) for group, start, end in zip(groups, before, after, strict=True)]


def spinner(group: Path) -> int:
    """Its process id, once it is in the group."""
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    (group / "cgroup.procs").write_text(str(pid))
    return pid


def used_us(group: Path) -> int:
    return int((group / "cpu.stat").read_text().split()[1])


if __name__ == "__main__":
    main()
