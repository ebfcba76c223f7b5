"""The plain oracle's network: which domain takes a gang, and what nearness adds (specs/volcano-scheduler.md 4.14).

domains   tier by tier from the lowest; in a tier the fullest first; the first that takes the gang whole has it
fill      mean over cpu and memory of (used + asked) / allocatable, a resource that would be overused adds nothing
near      1 in the domain of the siblings, else (top - tier of the common domain) / (top - lowest); among the nearest
          nodes + siblings there / all
others    pods without a wish: the fills of their node's domains, 0.8 times as much by tier
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.placement.plain import Bools, Floats, Ints, PlainNodes, natural
from hekla.placement.model import TaskSpec
from hekla.placement.topology.topology import DomainSpec
from hekla.placement.topology.wish import Closeness

FADING = 0.8
ROOT = "the cluster"


@dataclass(frozen=True)
class Domain:
    name: str
    tier: int
    rows: Bools  # [node]


class PlainNetwork:
    """The tree, as lists of nodes."""

    def __init__(self, nodes: PlainNodes, specs: Sequence[DomainSpec]) -> None:
        self._nodes = nodes
        by_name = {spec.name: spec for spec in specs}
        self.domains = [
            Domain(spec.name, spec.tier, self._rows(spec, by_name))
            for spec in sorted(specs, key=lambda spec: (spec.tier, natural(spec.name)))
        ]
        self._top = max((domain.tier for domain in self.domains), default=0) + 1
        self.domains.append(Domain(ROOT, self._top, np.ones(len(nodes.specs), np.bool_)))
        self._tiers = sorted({domain.tier for domain in self.domains})
        # [tier, node] the place of the domain of that tier around a node, -1 for none
        self._around = np.full((len(self._tiers), len(nodes.specs)), -1)
        for place, domain in enumerate(self.domains):
            self._around[self._tiers.index(domain.tier), domain.rows] = place

    def _rows(self, spec: DomainSpec, by_name: Mapping[str, DomainSpec]) -> Bools:
        rows = np.zeros(len(self._nodes.specs), np.bool_)
        for member in spec.members:
            if member.are_domains:
                rows |= self._rows(by_name[member.name], by_name)
            else:
                rows[self._nodes.row[member.name]] = True
        return rows

    @property
    def is_flat(self) -> bool:
        return len(self.domains) == 1

    def in_order(self, wish: Closeness, pods: Sequence[TaskSpec]) -> Iterator[Domain]:
        """The domains that a gang may try, the best first."""
        highest = wish.highest_tier if wish.is_hard and wish.highest_tier is not None else self._top
        fills = self._fills(pods)
        order = sorted(range(len(self.domains)), key=lambda at: (self.domains[at].tier, -fills[at], at))
        return (self.domains[at] for at in order if self.domains[at].tier <= highest)

    def nearness(self, siblings: Sequence[int], wanted: int) -> Mapping[str, Floats]:
        """What is added for a pod whose siblings are on these nodes."""
        if not siblings:
            return {}
        lowest = self._tiers[0]
        around = [level[siblings] for level in self._around]
        anchor = next(at for at, level in enumerate(around) if level[0] >= 0 and (level == level[0]).all())
        span = max(self._top - lowest, 1)
        near = np.zeros(len(self._nodes.specs))
        for at in reversed(range(anchor, len(self._tiers))):
            own = around[at][0]
            if own >= 0:
                near[self._around[at] == own] = (self._top - self._tiers[at]) / span
        leaf = self._leaf()
        near[leaf == around[anchor][0]] = 1.0
        shares = np.zeros(len(near))
        for level in self._around:
            shares[level == leaf] = np.bincount(level[siblings] + 1, minlength=len(self.domains) + 1)[
                leaf[level == leaf] + 1
            ]
        return {"network-topology-aware": near + np.where(near == near.max(), shares / wanted, 0.0)}

    def packing(self, pod: TaskSpec) -> Mapping[str, Floats]:
        """What is added for a pod that has no wish."""
        if self.is_flat:
            return {}
        fills, total, weight = self._fills([pod]), np.zeros(len(self._nodes.specs)), 0.0
        for at in range(len(self._tiers)):
            fade = FADING**at
            total += fade * np.where(self._around[at] >= 0, fills[self._around[at]], 1.0)
            weight += fade
        return {"network-topology-aware": total / weight}

    def _leaf(self) -> Floats:
        leaf = self._around[-1].copy()
        for level in self._around[::-1]:
            leaf = np.where(level >= 0, level, leaf)
        return leaf

    def _fills(self, pods: Sequence[TaskSpec]) -> Floats:
        fills = np.zeros(len(self.domains))
        for name in ("cpu", "memory"):
            asked = sum(pod.request[name] for pod in pods)
            has, would = self._sums(self._nodes.most[name]), self._sums(self._nodes.used[name]) + asked
            fits = (has > 0) & (would <= has)
            fills[fits] += would[fits] / has[fits] / 2
        return fills

    def _sums(self, column: Ints) -> Ints:
        """By domain."""
        sums = np.zeros(len(self.domains), np.int64)
        for level in self._around:
            np.add.at(sums, level[level >= 0], column[level >= 0])
        return sums
