"""Queues as a tree: whether a queue may hang where it wants to, and whether shares fit into their parents'.

The sentences are Volcano's, with its units: CPU and extended resources in thousandths, memory in bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hekla.api.fields import ResourceList
from hekla.api.volcano import Queue
from hekla.lib import quantity
from hekla.lib.quantity import Form, Quantity

MAX_DEPTH = 5
Amounts = dict[str, Fraction]


@dataclass(frozen=True)
class QueueTree:
    """All queues by name."""

    by_name: Mapping[str, Queue]

    @classmethod
    def of(cls, queues: Sequence[Queue]) -> "QueueTree":
        """The tree of these queues."""
        return cls({queue.metadata.name: queue for queue in queues})

    @property
    def queues(self) -> list[Queue]:
        """All of them, in order of name."""
        return [self.by_name[name] for name in sorted(self.by_name)]

    def with_queue(self, queue: Queue) -> "QueueTree":
        """The tree with a queue added or replaced."""
        return QueueTree({**self.by_name, queue.metadata.name: queue})

    def children(self, name: str) -> list[Queue]:
        """The queues below one, in order of name."""
        return [queue for queue in self.queues if queue.spec.parent == name]

    def ancestors(self, queue: Queue) -> Iterator[Queue]:
        """The queues above one, nearest first, without `root`; it ends at one that does not exist."""
        seen: set[str] = set()
        name = queue.spec.parent
        while name not in ("", "root", *seen) and name in self.by_name:
            seen.add(name)
            yield self.by_name[name]
            name = self.by_name[name].spec.parent


def wrong_parent(queue: Queue, tree: QueueTree) -> str:
    """Why a queue may not hang below its parent; empty if it may."""
    name, parent = queue.metadata.name, queue.spec.parent
    if parent in ("", "root"):
        return ""
    if parent == name:
        return f"queue {name} cannot use itself as parent"
    above_it = list(tree.ancestors(queue))
    if any(one.metadata.name == name for one in above_it):
        return f"queue {name} cannot be below queue {parent}, which is below it; give one of them another parent"
    if len(above_it) >= MAX_DEPTH:
        return f"queue {name} exceeds the maximum allowed depth of {MAX_DEPTH}"
    above = tree.by_name.get(parent)
    if above is None:
        missing = f'queue.scheduling.volcano.sh "{parent}" not found'
        return f"failed to get parent queue {parent} of queue {name}: {missing}"
    pods = quantity.to_int(str(above.status.allocated.get("pods", 0)))
    others = [child for child in tree.children(parent) if child.metadata.name != name]
    if pods and not others:
        return f"queue {parent} cannot be the parent queue of queue {name} because it has allocated Pods: {pods}"
    return ""


def wrong_shares(queue: Queue, tree: QueueTree) -> str:
    """Why a queue's amounts do not fit those above and below it; empty if they do."""
    parent = tree.by_name.get(queue.spec.parent)
    if parent is not None and parent.metadata.name != "root":
        name = parent.metadata.name
        said = _above_ancestors(queue, tree) or _over_parent(
            parent, tree.children(name), f"parent queue {name} validation failed"
        )
        if said:
            return said
    children = tree.children(queue.metadata.name)
    if not children:
        return ""
    below = f"queue {queue.metadata.name} validation failed"
    return _below_descendants(queue, children, tree) or _over_parent(queue, children, below)


def _above_ancestors(queue: Queue, tree: QueueTree) -> str:
    for name, mine in amounts(queue.spec.capability).items():
        limits = (amounts(above.spec.capability).get(name, Fraction(0)) for above in tree.ancestors(queue))
        limit = next((one for one in limits if one > 0), None)
        if limit is not None and mine > limit:
            told = f"capability[{name}]={_shown(name, mine)} exceeds its ancestor's capability={_shown(name, limit)}"
            return f"queue {queue.metadata.name} {told}"
    return ""


def _below_descendants(queue: Queue, children: Sequence[Queue], tree: QueueTree) -> str:
    for name, mine in amounts(queue.spec.capability).items():
        most = max(_subtree_most(child, name, tree) for child in children)
        if mine < most:
            told = f"capability[{name}]={_shown(name, mine)} is smaller than its descendants' max capability"
            return f"queue {queue.metadata.name} {told}={_shown(name, most)}"
    return ""


def _subtree_most(queue: Queue, name: str, tree: QueueTree) -> Fraction:
    own = amounts(queue.spec.capability).get(name, Fraction(0))
    if own > 0:
        return own
    return max((_subtree_most(child, name, tree) for child in tree.children(queue.metadata.name)), default=Fraction(0))


def _over_parent(parent: Queue, children: Sequence[Queue], said: str) -> str:
    """Whether children together are given more than their parent has; a resource that it does not name is 0."""
    for word, of in (("guarantee", _guarantee), ("deserved", _deserved)):
        limit, total = of(parent), _total([of(child) for child in children])
        if any(amount > limit.get(name, 0) for name, amount in total.items()):
            told = f"sum of children's {word} ({_listed(total)}) exceeds parent's {word} limit ({_listed(limit)})"
            return f"{said}: {told}"
    return ""


def amounts(resources: ResourceList) -> Amounts:
    """Amounts in Volcano's units."""
    found: Amounts = {}
    for name, amount in resources.items():
        value = quantity.parse(amount if isinstance(amount, int) else str(amount)).value
        found[name] = value if name in ("memory", "pods") else value * 1000
    return found


def _guarantee(queue: Queue) -> Amounts:
    return amounts(queue.spec.guarantee.resource)


def _deserved(queue: Queue) -> Amounts:
    return amounts(queue.spec.deserved)


def _total(several: Sequence[Amounts]) -> Amounts:
    total: Amounts = {}
    for one in several:
        for name, amount in one.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def _listed(found: Amounts) -> str:
    rest = [f", {name} {float(found[name]):.2f}" for name in sorted(found) if name not in ("cpu", "memory")]
    return f"cpu {float(found.get('cpu', 0)):.2f}, memory {float(found.get('memory', 0)):.2f}" + "".join(rest)


def _shown(name: str, value: Fraction) -> str:
    if name == "cpu":
        return str(Quantity(value / 1000, Form.DECIMAL))
    if name == "memory":
        return str(Quantity(value, Form.BINARY))
    return f"{float(value):.2f}"
