"""What authorization is asked about one request, and what it answers."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hekla.apiserver.admission import User

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
"""Who asks without credentials; RBAC lets them see little more than /version and /healthz."""

ADMINISTRATORS = "system:masters"
"""Members of this group may do everything, whatever RBAC says."""


class Attributes(NamedTuple):  # one is made for every request, and a frozen dataclass takes five times as long
    """One request, as rules see it. `path` is set for requests that are not about resources."""

    user: User
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def rule_resource(self) -> str:
        """`pods/log`: how a rule names a subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True)
class Decision:
    """Yes or no, and why."""

    is_allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Decides whether a request may be made."""

    def decide(self, attributes: Attributes) -> Decision:
        """Yes or no; called for every request, so it must be cheap."""

    def rules_for(self, user: User, namespace: str) -> tuple[list[dict[str, list[str]]], list[dict[str, list[str]]]]:
        """(resource rules, non-resource rules) that apply to a user in a namespace: what `kubectl auth can-i --list` shows."""


class AllowAll:
    """Lets everybody do everything: for tests, and for a server that only this process can reach."""

    def decide(self, attributes: Attributes) -> Decision:
        """Yes."""
        return Decision(True, "everything is allowed")

    def rules_for(self, user: User, namespace: str) -> tuple[list[dict[str, list[str]]], list[dict[str, list[str]]]]:
        """Everything."""
        return [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}], [{"verbs": ["*"], "nonResourceURLs": ["*"]}]


def refusal(attributes: Attributes) -> str:
    """The sentence of a 403, as Kubernetes says it, without its `<resource> is forbidden: ` head."""
    user = f'User "{attributes.user.name}"'
    if attributes.path:
        return f'{user} cannot {attributes.verb} path "{attributes.path}"'
    where = f' in the namespace "{attributes.namespace}"' if attributes.namespace else " at the cluster scope"
    return f'{user} cannot {attributes.verb} resource "{attributes.rule_resource}" in API group "{attributes.group}"{where}'
