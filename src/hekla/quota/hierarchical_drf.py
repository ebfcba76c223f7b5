"""Dominant shares in a tree: each branch counts with what its hungriest branches have, so that none is blocked.

    a job is saturated when it holds all it asks for of a resource, or asks for one of which nothing is left
    a branch holds     the sum of its saturated children, and of the others scaled down to the smallest of their shares
    order              unsaturated first, then the smaller  share / weight,  from the top down to where two paths part

After Bhattacharya et al., "Hierarchical scheduling for diverse datacenter workloads" (SoCC 2013), as Volcano has it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum

from hekla.quota.amounts import Amounts
from hekla.quota.fairness import quotient

Path = tuple[tuple[str, int], ...]
"""From below the root: names with weights."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one job holds and asks for in all."""

    held: Amounts
    asked: Amounts


@dataclass(slots=True)
class Branch:
    """A node of the tree; jobs are leaves of the branch at the end of their queue's path."""

    weight: int = 1
    branches: "dict[str, Branch]" = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    held: Mapping[str, float] = field(default_factory=dict)
    share: float = 0.0
    is_saturated: bool = False


def tree_of(leaves: Iterable[tuple[Path, Leaf]], total: Amounts) -> Branch:
    """The tree of these jobs, with shares."""
    root, all_leaves = Branch(), []
    for path, leaf in leaves:
        branch = root
        for name, weight in path:
            branch = branch.branches.setdefault(name, Branch(max(weight, 1)))
        branch.leaves.append(leaf)
        all_leaves.append(leaf)
    left = {name for name, whole in total.items() if sum(leaf.held.get(name, 0) for leaf in all_leaves) < whole}
    _weigh(root, total, left)
    return root


def order(root: Branch, path: Path) -> tuple[tuple[bool, float], ...]:
    """The sort key of a path: smaller goes first."""
    key, branch = [], root
    for name, weight in path:
        branch = branch.branches.get(name) or Branch(max(weight, 1))
        key.append((branch.is_saturated, branch.share / branch.weight))
    return tuple(key)


def _weigh(branch: Branch, total: Amounts, left: set[str]) -> None:
    """Compute what branches hold, from below."""
    for _, child in sorted(branch.branches.items()):
        _weigh(child, total, left)
    parts: list[tuple[Mapping[str, float], float, bool]] = [
        *((child.held, child.share, child.is_saturated) for _, child in sorted(branch.branches.items())),
        *((leaf.held, _share(leaf.held, total), _is_saturated(leaf, left)) for leaf in branch.leaves),
    ]
    least = min((share for _, share, is_saturated in parts if share and not is_saturated), default=1.0)
    held: dict[str, list[float]] = {}
    for amounts, share, is_saturated in parts:
        for name, amount in amounts.items() if share else ():
            held.setdefault(name, []).append(amount if is_saturated else amount * min(least, 1.0) / share)
    # Summed exactly and rounded once: in which order jobs were heard of must not show in the last bit.
    branch.held = {name: fsum(terms) for name, terms in held.items()}
    branch.share = _share(branch.held, total)
    branch.is_saturated = all(is_saturated for _, _, is_saturated in parts)


def _share(held: Mapping[str, float], total: Amounts) -> float:
    return max((quotient(held.get(name, 0), whole) for name, whole in total.items()), default=0.0)


def _is_saturated(leaf: Leaf, left: set[str]) -> bool:
    return any(
        (0 < amount <= leaf.held.get(name, 0)) or (amount > 0 and name not in left)
        for name, amount in leaf.asked.items()
    )
