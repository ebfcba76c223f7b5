"""How processors are shared where all want more than there is: by what each container asks for, as kubelet has it.

    version 1   cpu.shares = request in CPUs * 1024, from 2 (who asks for nothing) to 262,144
    version 2   cpu.weight = ceil(10 ^ (L^2 / 612 + 125 L / 612 - 7 / 34)), L = log2(cpu.shares), from 1 to 10,000

That curve runs through the least, the default and the most of both versions: (2, 1), (1024, 100), (262144, 10000). Kubernetes before 1.35 had a line,
1 + (shares - 2) * 9999 / 262142, by which a whole CPU weighed 39 where any process of the host weighs 100 (kubernetes/kubernetes#131216).

`cgroups.py` and `sandbox/groups.py` write it, and tell where it is refused.
"""

import math
import os
from functools import cache
from typing import Final

SHARES_OF_A_CPU: Final = 1024
LEAST_SHARES, MOST_SHARES = 2, 1 << 18
LEAST_WEIGHT, MOST_WEIGHT = 1, 10_000
TREES = 2
"""Plain containers and sandboxes of a node have a tree of groups each, and the trees weigh the same."""


def shares_of(request_milli: int) -> int:
    """`cpu.shares` of who asks for so many thousandths of a CPU."""
    return min(MOST_SHARES, max(LEAST_SHARES, request_milli * SHARES_OF_A_CPU // 1000))


@cache
def weight_of(shares: int) -> int:
    """`cpu.weight` that goes for `cpu.shares`."""
    if shares <= LEAST_SHARES:
        return LEAST_WEIGHT
    if shares >= MOST_SHARES:
        return MOST_WEIGHT
    power = math.log2(shares)
    return math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34))


def written_for(shares: int, *, is_v2: bool) -> tuple[str, str]:
    """The file of a group that takes it, and what is written there."""
    return ("cpu.weight", str(weight_of(shares))) if is_v2 else ("cpu.shares", str(shares))


def shares_of_tree(cpus: int = 0) -> int:
    """`cpu.shares` of all containers in one tree together: the machine's CPUs, or so many, by the trees that a node has.

    kubelet's `kubepods` has as much as the machine has CPUs. Were it left at the default, a full node's containers would weigh no more than one
    process of the host.
    """
    return shares_of((cpus or os.cpu_count() or 1) * 1000 // TREES)
