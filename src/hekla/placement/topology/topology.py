"""Keeps the tree of domains right as HyperNodes and nodes come, change and go.

Which nodes a domain names is remembered, so that a node that changes is matched alone; the tree is grown anew when
somebody asks for it after a change. What cannot be right (a domain in two others, a parent that is not above its
member, a pattern that does not compile) is left out, told in `faults`, and stops nothing else: what is left of a domain
holds only nodes that were declared to be in it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hekla.placement.columns import Nodes, NodeSpec, natural_key
from hekla.placement.constraint import Requirement
from hekla.placement.topology.tree import Branch, Tree, grow


@dataclass(frozen=True, kw_only=True)
class Members:
    """Nodes or domains that a domain names: by exact name, by pattern, or by labels, whichever is given."""

    name: str = ""
    pattern: str = ""
    labels: tuple[Requirement, ...] | None = None
    are_domains: bool = False

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether an object is meant. A pattern may match any part of a name, as in Go; a broken one matches nothing."""
        if self.name:
            return name == self.name
        if self.pattern:
            compiled = _compiled(self.pattern)
            return compiled is not None and compiled.search(name) is not None
        return self.labels is not None and all(requirement.matches(labels) for requirement in self.labels)


@dataclass(frozen=True, kw_only=True)
class DomainSpec:
    """What a dialect knows of one domain."""

    name: str
    tier: int
    tier_name: str = ""
    members: tuple[Members, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


class Topology:
    """The domains of one cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.specs: dict[str, DomainSpec] = {}
        self.faults: tuple[str, ...] = ()
        """Sentences about what was left out of the tree."""

        self.is_known = True
        """False until all domains were told of; gangs that wish to be close wait for that."""

        self._named: dict[str, set[int]] = {}
        """By domain, the rows of the nodes that it names."""

        self._seen: list[tuple[str, Mapping[str, str]] | None] = []
        """By row, the name and labels that were matched last."""

        self._row_seen: dict[str, int] = {}
        """The rows of these, by name. A node may have gone and come back since without anybody matching it anew."""

        self._tree = grow((), loose=(), rows=0)
        self._version = -1

    def put(self, spec: DomainSpec) -> bool:
        """Add a domain or bring it up to date; whether anything changed."""
        if self.specs.get(spec.name) == spec:
            return False
        self.specs[spec.name] = spec
        self._named[spec.name] = set(self._matched(spec))
        self._version = -1
        return True

    def remove(self, name: str) -> bool:
        """Forget a domain; whether it was there."""
        self._named.pop(name, None)
        self._version = -1
        return self.specs.pop(name, None) is not None

    def tree(self) -> Tree:
        """The tree as of now."""
        if self._version != self._nodes.version:
            has_changed = self._follow_nodes()
            if has_changed or self._version < 0 or len(self._tree.leaf) != self._nodes.rows:
                self._grow()
            self._version = self._nodes.version
        return self._tree

    # How it is kept

    def _matched(self, spec: DomainSpec) -> Iterator[int]:
        """The rows of the nodes that a domain names, of those that were looked at."""
        for members in spec.members:
            if members.name in self._row_seen and not members.are_domains:
                yield self._row_seen[members.name]
        if _searches(spec):
            yield from (row for row, seen in enumerate(self._seen) if seen is not None and _names(spec, *seen))

    def _follow_nodes(self) -> bool:
        """Match the nodes that came, went or were labelled anew since; whether there were any."""
        specs, seen = self._nodes.specs, self._seen
        seen += [None] * (len(specs) - len(seen))
        changed = [row for row, spec in enumerate(specs) if not _is_same(seen[row], spec)]
        if not changed:
            return False
        by_name = self._by_exact_name()
        searching = [spec for spec in self.specs.values() if _searches(spec)]
        for row in changed:
            self._match(row, specs[row], by_name, searching)
        return True

    def _match(
        self, row: int, node: NodeSpec | None, by_name: Mapping[str, list[str]], searching: Iterable[DomainSpec]
    ) -> None:
        before = self._seen[row]
        if before is not None:
            if self._row_seen.get(before[0]) == row:
                del self._row_seen[before[0]]
            for named in self._named.values():
                named.discard(row)
        self._seen[row] = None if node is None else (node.name, node.labels)
        if node is None:
            return
        self._row_seen[node.name] = row
        for domain in by_name.get(node.name, ()):
            self._named[domain].add(row)
        for spec in searching:
            if _names(spec, node.name, node.labels):
                self._named[spec.name].add(row)

    def _by_exact_name(self) -> dict[str, list[str]]:
        """By node, the domains that name it exactly: ten thousand nodes are not compared with ten thousand names."""
        found: dict[str, list[str]] = {}
        for spec in self.specs.values():
            for member in spec.members:
                if member.name and not member.are_domains:
                    found.setdefault(member.name, []).append(spec.name)
        return found

    def _grow(self) -> None:
        faults: list[str] = []
        ranked = sorted(self.specs.values(), key=lambda spec: (spec.tier, natural_key(spec.name)))
        parents = _parents(ranked, faults)
        homes = self._homes(ranked, parents, faults)
        own: dict[str, list[int]] = {spec.name: [] for spec in ranked}
        loose: list[int] = []
        for row, seen in enumerate(self._seen):
            if seen is not None:
                own.get(homes.get(row, ""), loose).append(row)
        for spec in ranked:
            faults += (f'hypernode "{spec.name}" has the pattern {m.pattern!r}, which does not compile; it matches nothing'
                       for m in spec.members if m.pattern and _compiled(m.pattern) is None)  # fmt: skip
        self.faults = tuple(faults)
        self._tree = grow(
            (
                Branch(
                    name=spec.name, tier=spec.tier, tier_name=spec.tier_name, parent=parents.get(spec.name, ""),
                    rows=own[spec.name],
                )
                for spec in ranked
            ),
            loose=loose,
            rows=self._nodes.rows,
        )  # fmt: skip

    def _homes(self, ranked: list[DomainSpec], parents: Mapping[str, str], faults: list[str]) -> dict[int, str]:
        """The smallest domain of each node that is in one."""
        homes: dict[int, str] = {}
        for spec in ranked:
            for row in sorted(self._named[spec.name]):
                home = homes.setdefault(row, spec.name)
                if home != spec.name and spec.name not in _line(parents, home):
                    faults.append(_twice("node", self._nodes.names[row], home, spec.name))
        return homes


def _parents(ranked: list[DomainSpec], faults: list[str]) -> dict[str, str]:
    """The smallest domain around each domain that is in one. Tiers rise from child to parent, so there are no rings."""
    parents: dict[str, str] = {}
    claims: list[tuple[str, str]] = []
    tiers = {spec.name: spec.tier for spec in ranked}
    by_name = {spec.name: spec for spec in ranked}
    for spec in ranked:
        for child in _children(spec, by_name):
            if tiers[child] >= spec.tier:
                faults.append(
                    f'hypernode "{spec.name}" of tier {spec.tier} has the member "{child}" of tier {tiers[child]}, which is'
                    " not below it; it is left out until the tiers rise from member to parent"
                )
            elif parents.setdefault(child, spec.name) != spec.name:
                claims.append((child, spec.name))
    for child, other in claims:
        if other not in _line(parents, child):
            faults.append(_twice("hypernode", child, parents[child], other))
    return parents


def _children(spec: DomainSpec, by_name: Mapping[str, DomainSpec]) -> list[str]:
    found: set[str] = set()
    for members in spec.members:
        if members.are_domains and members.name:
            found |= {members.name} & by_name.keys()
        elif members.are_domains:
            found |= {
                name for name, other in by_name.items() if name != spec.name and members.matches(name, other.labels)
            }
    return sorted(found, key=natural_key)


def _line(parents: Mapping[str, str], name: str) -> Iterator[str]:
    """A domain's name and those of the domains around it."""
    while name:
        yield name
        name = parents.get(name, "")


def _twice(what: str, name: str, home: str, other: str) -> str:
    return (
        f'{what} "{name}" is a member of hypernode "{home}" and of "{other}", which is not around it; it counts for'
        f' "{home}" alone'
    )


def _searches(spec: DomainSpec) -> bool:
    """Whether it names nodes otherwise than by exact name."""
    return any(not members.name and not members.are_domains for members in spec.members)


def _names(spec: DomainSpec, name: str, labels: Mapping[str, str]) -> bool:
    return any(not members.are_domains and members.matches(name, labels) for members in spec.members)


def _is_same(seen: tuple[str, Mapping[str, str]] | None, spec: NodeSpec | None) -> bool:
    if seen is None or spec is None:
        return seen is None and spec is None
    return seen[0] == spec.name and (seen[1] is spec.labels or seen[1] == spec.labels)


_PATTERNS: dict[str, re.Pattern[str] | None] = {}
_MOST_PATTERNS = 4096


def _compiled(pattern: str) -> re.Pattern[str] | None:
    if pattern not in _PATTERNS:
        if len(_PATTERNS) >= _MOST_PATTERNS:
            _PATTERNS.clear()
        try:
            _PATTERNS[pattern] = re.compile(pattern)
        except re.error:
            _PATTERNS[pattern] = None
    return _PATTERNS[pattern]
