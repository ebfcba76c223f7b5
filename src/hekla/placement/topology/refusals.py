"""Says why a gang that must be together is not: which domain has room for how many, and what its nodes lack."""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.placement.constraint import Refusal
from hekla.placement.explain import Explanation, explain
from hekla.placement.policy import Policy
from hekla.placement.topology.demand import Demand, Room
from hekla.placement.topology.tree import Tree

_MOST_TOLD = 3


@dataclass(frozen=True)
class CloseExplanation(Explanation):
    """Why no domain takes the pods; counts and reasons of nodes are those of the domain with the most room."""

    domains: int = 0
    """How many domains were allowed."""

    ceiling: int = 0
    needed: int = 0
    group: str = ""
    """The sub-gang that found no place; "" for the gang as a whole."""

    room: tuple[tuple[str, int, int], ...] = ()
    """Domains with the most room: name, tier, and how many of the pods each has room for."""

    def sentence(self) -> str:
        """What `domains_sentence` says, and the nodes of the domain with the most room."""
        text = self.domains_sentence()
        if not self.room or not self.reasons:
            return text
        counted = sorted(f"{count} {refusal.sentence}" for refusal, count in self.reasons)
        return f"{text} In {self.room[0][0]} {self.feasible}/{self.nodes} nodes are available: {', '.join(counted)}."

    def domains_sentence(self) -> str:
        """`0/2 hypernodes up to tier 1 have room for all 4 pods of the gang: s0 (tier 1) for 3, s1 (tier 1) for 2.`"""
        whose = f"sub-group {self.group}" if self.group else "the gang"
        what = f"all {self.needed} pods of {whose}" if self.needed > 1 else f"another pod of {whose}"
        text = f"0/{self.domains} hypernodes up to tier {self.ceiling} have room for {what}"
        told = [f"{name} (tier {tier}) {self._share(pods)}" for name, tier, pods in self.room]
        if len(self.room) < self.domains:
            told.append(f"{self.domains - len(self.room)} more for no more than that")
        return text + (f": {', '.join(told)}." if told else ".")

    def _share(self, pods: int) -> str:
        return f"for {pods}" if pods < self.needed else "for each alone but not for all"


def why_nowhere(
    policy: Policy, tree: Tree, demand: Demand, room: Room, allowed: Sequence[int], *, ceiling: int, group: str = ""
) -> CloseExplanation:
    """Why none of the domains that are allowed takes the pods."""
    best = sorted(allowed, key=lambda domain: (-int(room.pods[domain]), domain))[:_MOST_TOLD]
    told = tuple((tree.names[domain], tree.tiers[domain], int(room.pods[domain])) for domain in best)
    nodes = policy.cluster.nodes.rows
    inside = explain(policy, demand.tasks[0], tree.mask(best[0], nodes)) if best else Explanation(0, 0, ())
    return CloseExplanation(
        inside.nodes, inside.feasible, inside.reasons, None,
        domains=len(allowed), ceiling=ceiling, needed=demand.needed, group=group, room=told,
    )  # fmt: skip


NOT_KNOWN = Refusal(
    "topology/unknown",
    "the hypernodes are not known yet, or the API server does not serve topology.volcano.sh/v1alpha1; networkTopology"
    " waits for them",
)


def no_such_tier(tree: Tree, name: str) -> Refusal:
    """The wish names a tier that no domain is of."""
    known = ", ".join(f'"{known}"' for known in sorted(tree.tier_names))
    hint = f"; there are {known}" if known else "; no hypernode has a tier name"
    return Refusal("topology/tier-name", f'networkTopology names the tier "{name}", which no hypernode is of{hint}')


def too_far_apart(tree: Tree, anchor: int, count: int, ceiling: int) -> Refusal:
    """Pods that run already are further apart than the wish allows."""
    return Refusal(
        "topology/apart",
        f"{count} placed pods share no hypernode up to tier {ceiling}, only {tree.names[anchor]} (tier"
        f" {tree.tiers[anchor]}); the others wait until those have ended",
    )
