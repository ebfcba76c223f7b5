"""Nobody grants what he does not have: roles and bindings are checked against the rights of their author."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader, User
from hekla.apiserver.auth.attributes import Attributes, Decision
from hekla.apiserver.auth.rbac import Rule, parse_rules, uncovered
from hekla.apiserver.status import forbidden

GROUP = "rbac.authorization.k8s.io"
ROLES = frozenset({"roles", "clusterroles"})


class Rights(Protocol):
    """What the escalation check must know; `RbacAuthorizer` is one."""

    def decide(self, attributes: Attributes) -> Decision:
        """Whether a request is allowed."""

    def rules_of(self, user: User, namespace: str) -> Iterator[Rule]:
        """The rules a user holds in a namespace."""


@dataclass(frozen=True)
class RbacEscalation:
    """Refuses roles and bindings that would give more than their author has."""

    rights: Rights
    name: str = "RbacEscalation"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """Roles and bindings that are written."""
        is_write = request.operation in {Operation.CREATE, Operation.UPDATE}
        return is_write and request.kind.group == GROUP

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Nothing is changed."""

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Compare what is granted with what the author holds."""
        assert request.object is not None
        if request.kind.plural in ROLES:
            wanted, exempting_verb = parse_rules(request.object), "escalate"
            exempting_kind, exempting_name = request.kind.plural, request.name
        else:
            wanted, exempting_verb = self._bound_rules(request, reader), "bind"
            exempting_kind, exempting_name = _role_reference(request.object)
        if request.old is not None and _same_grant(request.object, request.old):
            return
        if self._is_exempt(request, exempting_verb, exempting_kind, exempting_name):
            return
        held = list(self.rights.rules_of(request.user, request.namespace))
        missing = uncovered(wanted, held)
        if missing:
            raise forbidden(request.kind.plural, GROUP, request.name, _sentence(request.user, missing))

    def _bound_rules(self, request: AdmissionRequest, reader: Reader) -> tuple[Rule, ...]:
        assert request.object is not None
        kind, name = _role_reference(request.object)
        namespace = request.namespace if kind == "roles" else ""
        role = reader.get(f"{kind}.{GROUP}", namespace, name)
        return parse_rules(role) if role else ()

    def _is_exempt(self, request: AdmissionRequest, verb: str, resource: str, name: str) -> bool:
        asked = Attributes(
            user=request.user, verb=verb, group=GROUP, resource=resource, namespace=request.namespace, name=name
        )
        return self.rights.decide(asked).is_allowed


def _role_reference(binding: Document) -> tuple[str, str]:
    reference = binding["roleRef"]
    return ("clusterroles" if reference["kind"] == "ClusterRole" else "roles"), reference["name"]


def _same_grant(new: Document, old: Document) -> bool:
    return all(new.get(key) == old.get(key) for key in ("rules", "aggregationRule", "roleRef", "subjects"))


def _sentence(user: User, missing: list[Rule]) -> str:
    groups = "[" + " ".join(f'"{group}"' for group in user.groups) + "]"
    lines = "\n".join(_shown(rule) for rule in missing)
    return f'user "{user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{lines}'


def _shown(rule: Rule) -> str:
    parts = [("APIGroups", rule.groups), ("Resources", rule.resources), ("ResourceNames", rule.names)]
    parts += [("NonResourceURLs", frozenset(rule.paths)), ("Verbs", rule.verbs)]
    return "{" + ", ".join(f"{key}:{sorted(v)}".replace("'", '"') for key, v in parts if v) + "}"
