"""RBAC: decides from Roles, ClusterRoles and their bindings whether a user may do something.

`decide` looks up the bindings of the user and of each of its groups, so its cost grows with what is granted to
the one who asks and not with how many roles exist. The index is rebuilt when any RBAC object has changed, which is
rare; `rbac_source.py` tells by a counter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from hekla.api.meta import Document
from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import ADMINISTRATORS, Attributes, Decision


class RoleSource(Protocol):
    """Where roles and bindings come from."""

    @property
    def version(self) -> int:
        """Grows whenever any of them changed."""

    def list(self, resource: str) -> Sequence[Document]:
        """All objects of `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings` (rbac.authorization.k8s.io)."""


@dataclass(frozen=True)
class Rule:
    """One rule of a role."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()

    def covers(self, asked: Attributes) -> bool:
        """Whether this rule allows what is asked."""
        if not _holds(self.verbs, asked.verb):
            return False
        return self._covers_path(asked.path) if asked.path else self._covers_resource(asked)

    def _covers_path(self, path: str) -> bool:
        return any(path == one or (one.endswith("*") and path.startswith(one[:-1])) for one in self.paths)

    def _covers_resource(self, asked: Attributes) -> bool:
        named = asked.rule_resource
        return (
            _holds(self.groups, asked.group)
            and (
                _holds(self.resources, named)
                or (bool(asked.subresource) and f"*/{asked.subresource}" in self.resources)
            )
            and (not self.names or asked.name in self.names)
        )

    def to_document(self) -> dict[str, list[str]]:
        """The rule as SelfSubjectRulesReview shows it."""
        parts = {
            "verbs": self.verbs,
            "apiGroups": self.groups,
            "resources": self.resources,
            "resourceNames": self.names,
        }
        shown = {key: sorted(values) for key, values in parts.items() if values}
        return {**shown, "nonResourceURLs": list(self.paths)} if self.paths else shown


def parse_rules(role: Document) -> tuple[Rule, ...]:
    """The rules of a Role or ClusterRole."""
    return tuple(
        Rule(
            verbs=frozenset(rule.get("verbs") or ()),
            groups=frozenset(rule.get("apiGroups") or ()),
            resources=frozenset(rule.get("resources") or ()),
            names=frozenset(rule.get("resourceNames") or ()),
            paths=tuple(rule.get("nonResourceURLs") or ()),
        )
        for rule in role.get("rules") or ()
    )


Subject = tuple[str, str]
"""("User", name), ("Group", name) or ("ServiceAccount", "namespace:name")."""


@dataclass(frozen=True)
class Grant:
    """Rules that a binding gives, in one namespace or ("") everywhere."""

    binding: str
    namespace: str
    rules: tuple[Rule, ...]

    @cached_property
    def decision(self) -> Decision:
        """The yes that this grant gives."""
        return Decision(True, f'RBAC: allowed by binding "{self.binding}"')


@dataclass(frozen=True)
class Grants:
    """Every grant, by whom it is given to."""

    by_subject: Mapping[Subject, Sequence[Grant]] = field(default_factory=dict)

    def of(self, user: User) -> Iterator[Grant]:
        """What a user has, by name, as a service account, and by each group."""
        yield from self.by_subject.get(("User", user.name), ())
        if user.name.startswith("system:serviceaccount:"):
            yield from self.by_subject.get(("ServiceAccount", user.name.removeprefix("system:serviceaccount:")), ())
        for group in user.groups:
            yield from self.by_subject.get(("Group", group), ())


def index_grants(source: RoleSource) -> Grants:
    """All bindings resolved to rules. A binding to a role that does not exist grants nothing."""
    cluster_roles = {role["metadata"]["name"]: role for role in source.list("clusterroles")}
    rules = {name: _aggregated(role, cluster_roles.values()) for name, role in cluster_roles.items()}
    roles = {(r["metadata"]["namespace"], r["metadata"]["name"]): parse_rules(r) for r in source.list("roles")}
    found: dict[Subject, list[Grant]] = {}
    for binding in [*source.list("clusterrolebindings"), *source.list("rolebindings")]:
        namespace, name, reference = (
            binding["metadata"].get("namespace", ""),
            binding["metadata"]["name"],
            binding["roleRef"],
        )
        granted = (
            rules.get(reference["name"])
            if reference["kind"] == "ClusterRole"
            else roles.get((namespace, reference["name"]))
        )
        for subject in binding.get("subjects") or ():
            found.setdefault(_subject(subject, namespace), []).append(Grant(name, namespace, granted or ()))
    return Grants(found)


def _aggregated(role: Document, others: Iterable[Document]) -> tuple[Rule, ...]:
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    rules = list(parse_rules(role))
    for selector in selectors:
        wanted = (selector.get("matchLabels") or {}).items()
        for other in others:
            if other is not role and wanted and wanted <= (other["metadata"].get("labels") or {}).items():
                rules += parse_rules(other)
    return tuple(rules)


def _subject(subject: Document, namespace: str) -> Subject:
    if subject["kind"] == "ServiceAccount":
        return ("ServiceAccount", f"{subject.get('namespace') or namespace}:{subject['name']}")
    return (subject["kind"], subject["name"])


ALLOWED, DENIED = Decision(True), Decision(False)


class RbacAuthorizer:
    """Decides by what is bound to the user."""

    def __init__(self, source: RoleSource) -> None:
        self._source = source
        self._grants, self._seen = Grants(), -1

    def decide(self, attributes: Attributes) -> Decision:
        """Yes if any grant of the user covers it; the reason names the binding."""
        if ADMINISTRATORS in attributes.user.groups:
            return ALLOWED
        for grant in self._current().of(attributes.user):
            if grant.namespace and grant.namespace != attributes.namespace:
                continue
            for rule in grant.rules:
                if rule.covers(attributes):
                    return grant.decision
        return DENIED

    def rules_for(self, user: User, namespace: str) -> tuple[list[dict[str, list[str]]], list[dict[str, list[str]]]]:
        """Everything a user may do in a namespace."""
        rules = set(self.rules_of(user, namespace))
        shown = [
            rule.to_document() for rule in sorted(rules, key=lambda rule: (sorted(rule.resources), sorted(rule.verbs)))
        ]
        return [r for r in shown if "nonResourceURLs" not in r], [r for r in shown if "nonResourceURLs" in r]

    def rules_of(self, user: User, namespace: str) -> Iterator[Rule]:
        """The rules themselves: what the escalation check compares with."""
        if ADMINISTRATORS in user.groups:
            yield Rule(verbs=_ALL, groups=_ALL, resources=_ALL)
            yield Rule(verbs=_ALL, paths=("*",))
        for grant in self._current().of(user):
            if not grant.namespace or grant.namespace == namespace:
                yield from grant.rules

    def _current(self) -> Grants:
        if self._seen != self._source.version:
            # read the version first: a change during the rebuild makes the next call rebuild again
            self._seen = self._source.version
            self._grants = index_grants(self._source)
        return self._grants


_ALL = frozenset({"*"})


def uncovered(wanted: Iterable[Rule], held: Sequence[Rule]) -> list[Rule]:
    """The single permissions of `wanted` that nothing in `held` grants: what would be an escalation."""
    return [atom for rule in wanted for atom in _atoms(rule) if not any(_contains(one, atom) for one in held)]


def _atoms(rule: Rule) -> Iterator[Rule]:
    for verb in sorted(rule.verbs):
        for path in rule.paths:
            yield Rule(verbs=frozenset({verb}), paths=(path,))
        for group in sorted(rule.groups):
            for resource in sorted(rule.resources):
                for name in sorted(rule.names) or [""]:
                    names = frozenset({name}) if name else frozenset[str]()
                    yield Rule(frozenset({verb}), frozenset({group}), frozenset({resource}), names)


def _contains(held: Rule, atom: Rule) -> bool:
    verb = next(iter(atom.verbs))
    if not _holds(held.verbs, verb):
        return False
    if atom.paths:
        path = atom.paths[0]
        return any(path == one or one == "*" or (one.endswith("*") and path.startswith(one[:-1])) for one in held.paths)
    group, resource = next(iter(atom.groups)), next(iter(atom.resources))
    _, _, subresource = resource.partition("/")
    return (
        _holds(held.groups, group)
        and (_holds(held.resources, resource) or (bool(subresource) and f"*/{subresource}" in held.resources))
        and (not held.names or (bool(atom.names) and atom.names <= held.names))
    )


def _holds(values: frozenset[str], value: str) -> bool:
    return "*" in values or value in values
