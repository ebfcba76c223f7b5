from hypothesis import given
from hypothesis import strategies as st

from hekla.apiserver.admission import User
from hekla.apiserver.auth.attributes import Attributes, refusal
from hekla.apiserver.auth.bootstrap import bootstrap_objects
from hekla.apiserver.auth.rbac import RbacAuthorizer, Rule, uncovered

GROUP = "rbac.authorization.k8s.io"


class Roles:
    def __init__(self, *documents):
        self.version = 1
        self.documents = list(documents)

    def list(self, resource):
        kinds = {
            "roles": "Role",
            "clusterroles": "ClusterRole",
            "rolebindings": "RoleBinding",
            "clusterrolebindings": "ClusterRoleBinding",
        }
        return [one for one in self.documents if one["kind"] == kinds[resource]]


def role(name, *rules, namespace="", **more):
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata, "rules": list(rules), **more}


def binding(name, to, subject, namespace="", role_kind="ClusterRole"):
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"kind": kind, "metadata": metadata, "roleRef": {"kind": role_kind, "name": to}, "subjects": [subject]}


READ_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
ANN = User("ann", ("devs", "system:authenticated"))


def may(authorizer, user=ANN, verb="get", resource="pods", **more):
    return authorizer.decide(Attributes(user=user, verb=verb, resource=resource, **more)).is_allowed


def test_nobody_may_do_what_nobody_granted():
    assert not may(RbacAuthorizer(Roles()))


def test_a_cluster_binding_grants_in_every_namespace():
    authorizer = RbacAuthorizer(Roles(role("r", READ_PODS), binding("b", "r", {"kind": "User", "name": "ann"})))
    assert may(authorizer, namespace="a")
    assert may(authorizer)
    assert not may(authorizer, verb="delete")
    assert not may(authorizer, user=User("bob"))


def test_a_role_binding_grants_in_its_namespace_only():
    authorizer = RbacAuthorizer(
        Roles(role("r", READ_PODS), binding("b", "r", {"kind": "Group", "name": "devs"}, namespace="a"))
    )
    assert may(authorizer, namespace="a")
    assert not may(authorizer, namespace="b")
    assert not may(authorizer)


def test_a_subresource_needs_a_rule_of_its_own():
    exec_rule = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    authorizer = RbacAuthorizer(
        Roles(
            role("r", READ_PODS),
            role("e", exec_rule),
            binding("b", "r", {"kind": "User", "name": "ann"}),
            binding("c", "e", {"kind": "User", "name": "bob"}),
        )
    )
    assert not may(authorizer, verb="create", subresource="exec")
    assert may(authorizer, user=User("bob"), verb="create", subresource="exec")
    assert not may(authorizer, user=User("bob"), verb="create")


def test_resource_names_restrict_a_rule_and_do_not_grant_lists():
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["get", "list"]}
    authorizer = RbacAuthorizer(Roles(role("r", rule), binding("b", "r", {"kind": "User", "name": "ann"})))
    assert may(authorizer, resource="configmaps", name="mine")
    assert not may(authorizer, resource="configmaps", name="other")
    assert not may(authorizer, resource="configmaps", verb="list")


def test_a_service_account_is_granted_by_name_and_namespace():
    subject = {"kind": "ServiceAccount", "name": "runner", "namespace": "ci"}
    authorizer = RbacAuthorizer(Roles(role("r", READ_PODS), binding("b", "r", subject)))
    assert may(authorizer, user=User("system:serviceaccount:ci:runner"))
    assert not may(authorizer, user=User("system:serviceaccount:other:runner"))


def test_aggregated_roles_take_in_what_carries_their_label():
    whole = role("whole", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"to": "whole"}}]})
    part = role("part", READ_PODS, metadata={"labels": {"to": "whole"}})
    authorizer = RbacAuthorizer(Roles(whole, part, binding("b", "whole", {"kind": "User", "name": "ann"})))
    assert may(authorizer)


def test_a_change_is_seen_at_once():
    source = Roles(role("r", READ_PODS))
    authorizer = RbacAuthorizer(source)
    assert not may(authorizer)
    source.documents.append(binding("b", "r", {"kind": "User", "name": "ann"}))
    source.version += 1
    assert may(authorizer)


def test_paths_match_whole_or_by_prefix():
    rule = {"nonResourceURLs": ["/healthz", "/apis/*"], "verbs": ["get"]}
    authorizer = RbacAuthorizer(Roles(role("r", rule), binding("b", "r", {"kind": "User", "name": "ann"})))
    assert may(authorizer, resource="", path="/healthz")
    assert may(authorizer, resource="", path="/apis/batch/v1")
    assert not may(authorizer, resource="", path="/metrics")


def test_the_refusal_says_who_what_and_where():
    asked = Attributes(user=ANN, verb="list", resource="pods", namespace="a")
    assert refusal(asked) == 'User "ann" cannot list resource "pods" in API group "" in the namespace "a"'
    assert refusal(Attributes(user=ANN, verb="get", path="/metrics")) == 'User "ann" cannot get path "/metrics"'


def bootstrapped(*more):
    return RbacAuthorizer(Roles(*(document for _, document in bootstrap_objects()), *more))


def test_everybody_may_ask_for_the_version_and_the_authenticated_may_discover():
    authorizer = bootstrapped()
    nobody = User("system:anonymous", ("system:unauthenticated",))
    assert may(authorizer, user=nobody, resource="", path="/version")
    assert not may(authorizer, user=nobody, resource="", path="/apis")
    assert may(authorizer, resource="", path="/apis")
    assert not may(authorizer, user=nobody)


def test_a_viewer_sees_pods_and_volcano_jobs_but_no_secrets():
    authorizer = bootstrapped(binding("b", "view", {"kind": "User", "name": "ann"}, namespace="a"))
    assert may(authorizer, namespace="a")
    assert may(authorizer, namespace="a", resource="jobs", group="batch.volcano.sh")
    assert not may(authorizer, namespace="a", resource="secrets")
    assert not may(authorizer, namespace="a", verb="delete")


def test_an_editor_may_exec_but_not_grant():
    authorizer = bootstrapped(binding("b", "edit", {"kind": "User", "name": "ann"}, namespace="a"))
    assert may(authorizer, namespace="a", verb="create", subresource="exec")
    assert not may(authorizer, namespace="a", verb="create", resource="roles", group=GROUP)


words = st.sampled_from(["get", "list", "pods", "secrets", "*", "apps"])
rules = st.builds(
    Rule,
    verbs=st.frozensets(words, min_size=1),
    groups=st.frozensets(words, min_size=1),
    resources=st.frozensets(words, min_size=1),
)


@given(rules)
def test_whoever_holds_a_rule_may_grant_it(rule):
    assert uncovered([rule], [rule]) == []


@given(rules, rules)
def test_a_wider_rule_covers_and_a_covered_rule_allows_no_more(held, wanted):
    if not uncovered([wanted], [held]):
        for verb in ["get", "list"]:
            for resource in ["pods", "secrets"]:
                asked = Attributes(user=ANN, verb=verb, group="apps", resource=resource)
                assert not wanted.covers(asked) or held.covers(asked)
