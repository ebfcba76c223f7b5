"""NodeShards in generated histories: whatever is heard and told when, no node is told to be in use by two, and it settles.

Nodes are dealt by somebody who takes a node from one before giving it to another. Each scheduler hears of every change in
the order in which they were made, but as late as may be, and what it tells is void if its shard has changed since.
"""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.volcano.shard import NodeShard
from hekla.dialects.shards import NodeShards, Sharding, ShardingMode
from hekla.placement.shard import ShardSide

NAMES, NODES = ("a", "b", "c"), ("n1", "n2", "n3")
Step = tuple[str, int, int]
"""What happens, to which scheduler, with which node."""

STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "hear", "hear", "tell"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=60,
)


@dataclass
class History:
    """The objects as the server has them, all changes in order, and how far each scheduler has heard."""

    shards: dict[str, NodeShard] = field(default_factory=dict)
    changes: list[tuple[NodeShard | None, NodeShard]] = field(default_factory=list)
    heard: list[int] = field(default_factory=lambda: [0] * len(NAMES))
    views: list[NodeShards] = field(
        default_factory=lambda: [NodeShards(Sharding(mode=ShardingMode.HARD, name=name)) for name in NAMES]
    )

    def write(self, name: str, desired: list[str], in_use: list[str]) -> None:
        before = self.shards.get(name)
        document = {
            "metadata": {"name": name, "resourceVersion": str(len(self.changes) + 1)},
            "spec": {"nodesDesired": desired}, "status": {"nodesInUse": in_use},
        }  # fmt: skip
        self.shards[name] = msgspec.convert(document, NodeShard)
        self.changes.append((before, self.shards[name]))

    def deal(self, name: str, desired: list[str]) -> None:
        self.write(name, desired, self.shards[name].status.nodes_in_use)

    def step(self, what: str, at: int, number: int) -> None:
        name, node = NAMES[at], NODES[number]
        own = self.shards[name]
        if what == "take" and node in own.spec.nodes_desired:
            self.deal(name, [one for one in own.spec.nodes_desired if one != node])
        elif what == "give" and all(node not in shard.spec.nodes_desired for shard in self.shards.values()):
            self.deal(name, [*own.spec.nodes_desired, node])
        elif what == "hear" and self.heard[at] < len(self.changes):
            list(self.views[at].put(*self.changes[self.heard[at]]))
            self.heard[at] += 1
        elif what == "tell":
            patch = self.views[at].status_patch("now")
            if patch is not None and patch["metadata"]["resourceVersion"] == own.metadata.resource_version:
                self.write(name, own.spec.nodes_desired, patch["status"]["nodesInUse"])

    def is_settled(self) -> bool:
        """Let all hear everything and tell once; whether nothing was left to hear or tell."""
        before = len(self.changes)
        for at in range(len(NAMES)):
            while self.heard[at] < len(self.changes):
                self.step("hear", at, 0)
            self.step("tell", at, 0)
        return len(self.changes) == before and all(heard == before for heard in self.heard)


def in_use(history: History) -> list[str]:
    return [node for shard in history.shards.values() for node in shard.status.nodes_in_use]


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_no_node_is_told_to_be_in_use_by_two_and_it_settles(steps: list[Step]) -> None:
    history = History()
    for name in NAMES:
        history.write(name, [], [])
    for step in steps:
        history.step(*step)
        told = in_use(history)
        assert len(told) == len(set(told)), f"{told} are told to be in use"
    assert any(history.is_settled() for _ in range(4 * len(NAMES))), "they never come to an end"
    for name, view in zip(NAMES, history.views, strict=True):
        desired = history.shards[name].spec.nodes_desired
        assert sorted(desired) == history.shards[name].status.nodes_in_use
        for node in NODES:
            assert (view.side_of(node) is ShardSide.OURS) == (node in desired)


@given(STEPS, st.permutations(range(len(NAMES))))
@settings(max_examples=50, deadline=None)
def test_the_order_in_which_shards_are_heard_of_decides_nothing(steps: list[Step], order: list[int]) -> None:
    """A scheduler that starts later is told the shards as they are now, one after the other."""
    history = History()
    for name in NAMES:
        history.write(name, [], [])
    for step in steps:
        history.step(*step)
    for name in NAMES:
        views = [NodeShards(Sharding(mode=ShardingMode.SOFT, name=name)) for _ in range(2)]
        for view, names in zip(views, (NAMES, [NAMES[at] for at in order]), strict=True):
            for one in names:
                list(view.put(None, history.shards[one]))
        assert [views[0].side_of(node) for node in NODES] == [views[1].side_of(node) for node in NODES]
        assert views[0].status_patch("now") == views[1].status_patch("now")
