"""Who may do what: roles and their bindings."""

from msgspec import Struct

from hekla.api.meta import Resource, Scope, resource
from hekla.api.scalars import wire_names
from hekla.api.selectors import LabelSelector


class PolicyRule(Struct, kw_only=True, frozen=True, rename=wire_names(non_resource_urls="nonResourceURLs"), gc=False):
    """Verbs on resources."""

    api_groups: list[str] = []
    non_resource_urls: list[str] = []
    resource_names: list[str] = []
    resources: list[str] = []
    verbs: list[str] = []


class AggregationRule(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which cluster roles make up this one."""

    cluster_role_selectors: list[LabelSelector] = []


class RoleRef(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The role that is given."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class Subject(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """To whom it is given."""

    api_group: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


@resource("rbac.authorization.k8s.io/v1", plural="roles")
class Role(Resource, kw_only=True, frozen=True, rename="camel"):
    """Rights in one namespace."""

    rules: list[PolicyRule] | None = None


@resource("rbac.authorization.k8s.io/v1", plural="rolebindings")
class RoleBinding(Resource, kw_only=True, frozen=True, rename="camel"):
    """Gives a role in one namespace."""

    role_ref: RoleRef | None = None
    subjects: list[Subject] = []


@resource("rbac.authorization.k8s.io/v1", plural="clusterroles", scope=Scope.CLUSTER)
class ClusterRole(Resource, kw_only=True, frozen=True, rename="camel"):
    """Rights everywhere."""

    aggregation_rule: AggregationRule | None = None
    rules: list[PolicyRule] | None = None


@resource("rbac.authorization.k8s.io/v1", plural="clusterrolebindings", scope=Scope.CLUSTER)
class ClusterRoleBinding(Resource, kw_only=True, frozen=True, rename="camel"):
    """Gives a role everywhere."""

    role_ref: RoleRef | None = None
    subjects: list[Subject] = []
