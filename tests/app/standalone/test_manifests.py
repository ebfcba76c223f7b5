import json

import pytest
import yaml

from hekla.api.core import Pod
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.apiserver.cel_engine import cel
from hekla.app.standalone.answering import ANSWERS_OF, place_of, registration
from hekla.app.standalone.components import controller_kinds, is_optional, scheduler_kinds
from hekla.app.standalone.manifests import ROUTER_DATA, Installation, InstallError, crds, files, rendered
from hekla.app.standalone.rights import rights_of
from hekla.app.standalone.settings import (
    AGENTS,
    COMPONENTS,
    ROUTER,
    StandaloneSettings,
    StandaloneSettingsError,
    host_and_port,
)
from hekla.serving.router.configuration import read_configuration
from hekla.workloads.reconcilers import RECONCILERS

LAST_APPLIED_LIMIT = 262_144
"""Bytes of all annotations of an object; kubectl keeps what it applied in one."""


def documents(**options):
    return [one for group in files(Installation(**options)).values() for one in group]


def of_kind(found, kind):
    return [one for one in found if one["kind"] == kind]


def allowed(component, verb, group, resource):
    rules = rights_of(component).everywhere
    return any(verb in r["verbs"] and group in r["apiGroups"] and resource in r["resources"] for r in rules)


def test_nobody_is_given_everything():
    for component in COMPONENTS:
        rights = rights_of(component)
        for rule in (*rights.everywhere, *rights.at_home):
            assert "*" not in (*rule["verbs"], *rule["apiGroups"], *rule["resources"])
            assert not set(rule["verbs"]) & {"escalate", "bind", "impersonate", "deletecollection"}


def test_whatever_a_component_follows_it_may_read():
    for component, kinds in (("controllers", controller_kinds()), ("scheduler", scheduler_kinds())):
        for kind in kinds:
            info = kind.kind_info
            for verb in ("list", "watch"):
                assert allowed(component, verb, info.group, info.plural), f"{component} may not {verb} {info.resource}"


def test_reconcilers_may_write_what_they_own_and_only_look_at_what_they_read():
    owned = {kind.kind_info.resource for one in RECONCILERS for kind in one.owns}
    owned.add("hypernodes.topology.volcano.sh")  # made by what a ConfigMap says, which cannot own what is the cluster's
    for kind in controller_kinds():
        info = kind.kind_info
        assert allowed("controllers", "create", info.group, info.plural) == (info.resource in owned)


def test_only_the_scheduler_binds_and_only_webhooks_touch_their_configuration():
    assert [name for name in COMPONENTS if allowed(name, "create", "", "pods/binding")] == ["scheduler"]
    group, resource = "admissionregistration.k8s.io", "validatingwebhookconfigurations"
    assert [name for name in COMPONENTS if allowed(name, "patch", group, resource)] == ["webhooks"]


def test_the_scheduler_registers_its_own_answers_and_nobody_elses():
    """By its token any group of the API could have been registered, and any service led elsewhere."""
    rights = rights_of("scheduler")
    for rules, resource, name in (
        (rights.everywhere, "apiservices", "v1.scheduling.hekla.dev"),
        (rights.at_home, "endpointslices", "hekla-scheduler-answers"),
    ):
        [rule] = [rule for rule in rules if resource in rule["resources"]]
        assert rule["resourceNames"] == [name]
        assert "create" in rule["verbs"]


def test_secrets_are_out_of_reach_of_scheduler_and_webhooks_but_for_one():
    assert not allowed("scheduler", "get", "", "secrets")
    assert not allowed("scheduler", "list", "", "secrets")
    [rule] = [rule for rule in rights_of("webhooks").at_home if "secrets" in rule["resources"]]
    assert rule["resourceNames"] == ["hekla-webhooks"]


def test_kinds_of_volcano_that_a_cluster_may_lack_are_optional_and_the_three_that_matter_are_not():
    optional = {kind.kind_info.resource for kind in (*controller_kinds(), *scheduler_kinds()) if is_optional(kind)}
    assert {"hypernodes.topology.volcano.sh", "jobflows.flow.volcano.sh", "commands.bus.volcano.sh"} <= optional
    assert not optional & {"jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh"}
    assert not optional & {"pods", "nodes", "storageclasses.storage.k8s.io", "replicasets.apps"}


def test_every_deployment_is_held_by_what_a_restricted_namespace_asks_for():
    for deployment in of_kind(documents(), "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert {"livenessProbe", "readinessProbe", "startupProbe", "resources"} <= set(container)


def test_namespace_image_and_replicas_are_everywhere_where_they_belong():
    found = documents(namespace="batch", image="registry.example/h:1", replicas=3)
    assert "hekla-system" not in rendered(Installation(namespace="batch", without=frozenset({"crds"})))
    for deployment in of_kind(found, "Deployment"):
        assert deployment["metadata"]["namespace"] == "batch"
        assert deployment["spec"]["replicas"] == (1 if deployment["metadata"]["name"] == "hekla-agents" else 3)
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/h:1"
    for binding in (*of_kind(found, "ClusterRoleBinding"), *of_kind(found, "RoleBinding")):
        assert [subject["namespace"] for subject in binding["subjects"]] == ["batch"]


def test_another_schedulers_name_is_told_to_all_whom_it_concerns_with_the_rights_of_that_name():
    found = documents(scheduler_names=("team-a",))
    told = {
        one["metadata"]["name"]
        for one in of_kind(found, "Deployment")
        if "--scheduler-name=team-a" in one["spec"]["template"]["spec"]["containers"][0]["args"]
    }
    assert told == {"hekla-scheduler", "hekla-controllers", "hekla-webhooks"}
    services = {one["metadata"]["name"] for one in of_kind(found, "Service")}
    assert {"hekla-scheduler-answers", "hekla-scheduler-answers-team-a"} <= services
    rules = [
        rule
        for kind in ("Role", "ClusterRole")
        for one in of_kind(found, kind)
        if one["metadata"]["name"] == "hekla-scheduler"
        for rule in one["rules"]
    ]
    named = {name: rule["verbs"] for rule in rules for name in rule.get("resourceNames", ())}
    assert named["team-a"] == ["get", "patch"]
    assert "create" in named["hekla-scheduler-answers-team-a"]
    assert "create" in named["team-a.scheduling.hekla.dev"]
    assert "volcano" not in named


def test_a_scheduler_of_several_names_leads_by_the_usual_lease():
    found = documents(scheduler_names=("volcano", "team-a"))
    (deployment,) = (one for one in of_kind(found, "Deployment") if one["metadata"]["name"] == "hekla-scheduler")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--scheduler-name=volcano", "--scheduler-name=team-a"]
    assert "hekla-scheduler-answers-team-a" not in {one["metadata"]["name"] for one in of_kind(found, "Service")}


def test_what_is_left_out_leaves_nothing_behind():
    found = list(yaml.safe_load_all(rendered(Installation(without=frozenset({"webhooks", "crds"})))))
    assert not [one for one in found if "webhooks" in one["metadata"]["name"] or one["kind"].endswith("Definition")]
    assert len(of_kind(found, "Deployment")) == len((*COMPONENTS, ROUTER, AGENTS)) - 1


def test_monitoring_reads_every_component_and_brings_alerts_and_dashboards():
    found = documents(also=frozenset({"monitoring"}))
    assert not of_kind(documents(), "PodMonitor")
    (monitor,) = of_kind(found, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for deployment in of_kind(found, "Deployment"):
        pod = deployment["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"]["groups"]
    pages = [one for one in of_kind(found, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert {json.loads(text)["uid"] for page in pages for text in page["data"].values()} == {
        "hekla-scheduling", "hekla-serving", "hekla-sandboxes",
    }  # fmt: skip


def test_who_may_change_the_pods_of_a_namespace_may_change_its_jobs_and_not_the_cluster():
    roles = {one["metadata"]["name"]: one for one in of_kind(documents(), "ClusterRole")}
    joins = {
        name: {key.rpartition("-")[2] for key in roles[name]["metadata"]["labels"] if "aggregate-to" in key}
        for name in ("hekla-view", "hekla-edit")
    }
    assert joins == {"hekla-view": {"view", "edit", "admin"}, "hekla-edit": {"edit", "admin"}}
    may_change = {
        f"{r}.{g}" for rule in roles["hekla-edit"]["rules"] for g in rule["apiGroups"] for r in rule["resources"]
    }
    assert {
        "jobs.batch.volcano.sh",
        "podgroups.scheduling.volcano.sh",
        "modelservings/scale.workload.serving.volcano.sh",
    } <= (may_change)
    of_the_cluster = {kind.kind_info.resource for kind in CUSTOM_KINDS if not kind.kind_info.is_namespaced}
    assert not may_change & {*of_the_cluster, "colocationconfigurations.config.volcano.sh"}
    assert not [one for one in may_change if "/status" in one]
    assert {verb for rule in roles["hekla-view"]["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {
        f"{r}.{g}"
        for rule in roles["hekla-cluster-edit"]["rules"]
        for g in rule["apiGroups"]
        for r in rule["resources"]
    } == {*of_the_cluster, "snapshots.scheduling.hekla.dev"}
    assert not [key for key in roles["hekla-cluster-edit"]["metadata"]["labels"] if "aggregate-to" in key]
    left = of_kind(documents(without=frozenset({"user-roles"})), "ClusterRole")
    assert not {"hekla-view", "hekla-edit"} & {one["metadata"]["name"] for one in left}


def test_an_upgrade_can_leave_the_schedulers_configuration_as_it_is():
    names = [one["metadata"]["name"] for one in of_kind(documents(), "ConfigMap")]
    left = [
        one["metadata"]["name"]
        for one in of_kind(documents(without=frozenset({"scheduler-configuration"})), "ConfigMap")
    ]
    assert set(names) - set(left) == {"volcano-scheduler-configmap"}


def test_the_namespace_can_be_left_out_where_it_is_volcanos():
    """`kubectl delete -f` of what was rendered took Volcano's namespace along, with all of Volcano in it."""
    assert [one["metadata"]["name"] for one in of_kind(documents(), "Namespace")] == ["hekla-system"]
    assert not of_kind(documents(namespace="volcano-system", without=frozenset({"crds", "namespace"})), "Namespace")


def test_resource_groups_of_volcano_and_of_an_earlier_release_stay_as_they_are():
    """Moving from Volcano, and every upgrade, put `resourceGroups: []` in the place of what the administrator had written there."""
    assert "volcano-admission-configmap" not in [one["metadata"]["name"] for one in of_kind(documents(), "ConfigMap")]


def test_webhooks_are_registered_as_the_peers_charts_do_unless_more_is_asked_for():
    def paths(**options):
        found = documents(**options)
        configurations = (
            *of_kind(found, "MutatingWebhookConfiguration"),
            *of_kind(found, "ValidatingWebhookConfiguration"),
        )
        return {one["clientConfig"]["service"]["path"] for each in configurations for one in each["webhooks"]}

    default = {
        "/jobs/mutate", "/jobs/validate", "/podgroups/validate", "/queues/mutate", "/queues/validate",
        "/hypernodes/validate", "/cronjobs/validate", "/jobflows/validate",
        "/modelservings/validate", "/modelboosters/mutate", "/modelboosters/validate", "/modelroutes/validate",
        "/modelservers/validate",
        "/externalmodelproviders/validate", "/autoscalingpolicies/mutate", "/autoscalingpolicies/validate",
        "/autoscalingpolicybindings/validate",
    }  # fmt: skip
    assert paths() == default
    assert paths(also_ask=frozenset({"/pods/validate"})) == {*default, "/pods/validate"}


def test_the_failure_policy_is_chosen_and_the_cluster_never_waits_for_us_to_start():
    for policy in ("Fail", "Ignore"):
        for one in documents(failure_policy=policy):
            for webhook in one.get("webhooks", ()):
                assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == (
                    policy,
                    10,
                    "None",
                )
                [spared] = webhook["namespaceSelector"]["matchExpressions"]
                assert spared["values"] == ["hekla-system", "kube-system"]


def is_asked(webhook, operation, new, old=None):
    """Whether an API server asks it, by its match conditions."""
    context = cel.Context()
    for name, value in (("request", {"operation": operation}), ("object", new), ("oldObject", old)):
        context.add_variable(name, value)
    return all(cel.evaluate(one["expression"], context) for one in webhook.get("matchConditions", ()))


def test_writes_of_what_no_webhook_looks_at_do_not_wait_for_webhooks():
    """A PodGroup's status is written with the group; and what is deleted loses its finalizers by an update."""
    made = {"metadata": {"name": "x", "finalizers": ["foregroundDeletion"]}, "spec": {"queue": "a"}}
    gone = {"metadata": {"name": "x", "deletionTimestamp": "2026-11-28T15:00:00Z"}, "spec": {"queue": "a"}}
    told = {**made, "status": {"phase": "Inqueue"}}
    noted = {**made, "metadata": {"name": "x", "annotations": {"volcano.sh/hierarchy": "root/a"}}}
    webhooks = [each for one in documents() for each in one.get("webhooks", ())]
    for webhook in webhooks:
        assert is_asked(webhook, "CREATE", made)
        assert is_asked(webhook, "DELETE", None, made)
        assert is_asked(webhook, "UPDATE", {**made, "spec": {"queue": "b"}}, made)
        assert is_asked(webhook, "UPDATE", {"metadata": {"name": "x"}}, made)
        assert not is_asked(webhook, "UPDATE", told, made)
        assert not is_asked(webhook, "UPDATE", gone, made)
    by_annotations = {one["name"] for one in webhooks if is_asked(one, "UPDATE", noted, made)}
    queues = {"mutatequeue.volcano.sh", "validatequeue.volcano.sh"}
    read_too = queues | {"validate-modelbooster.volcano.sh", "validate-modelserver.volcano.sh"}
    assert by_annotations == read_too


def test_what_is_printed_is_what_was_made():
    installation = Installation()
    printed = list(yaml.load_all(rendered(installation), Loader=yaml.CSafeLoader))
    assert printed == [*crds(), *documents()]


def test_a_router_reads_what_it_routes_by_writes_statuses_and_has_time_to_drain():
    for kind in (ModelRoute, ModelServer, Pod):
        assert allowed("router", "watch", kind.kind_info.group, kind.kind_info.plural)
        assert not allowed("router", "patch", kind.kind_info.group, kind.kind_info.plural)
    [deployment] = [one for one in of_kind(documents(), "Deployment") if one["metadata"]["name"] == "hekla-router"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 300
    assert pod["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert read_configuration(ROUTER_DATA["routerConfiguration.yaml"]).recipe.name == "soonest"


def test_kubectl_can_keep_what_it_applied():
    for document in (*crds(), *(one for group in files(Installation()).values() for one in group)):
        size = len(json.dumps(document, separators=(",", ":")))
        assert size < LAST_APPLIED_LIMIT, f"{document['metadata']['name']} has {size} bytes; use server-side apply"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"without": frozenset({"scheduler", "node"})}, '--without names "node"; choose from'),
        ({"failure_policy": "Maybe"}, '--failure-policy is "Maybe"; use Fail or Ignore'),
        ({"replicas": 0}, "--replicas is 0; it must lie between 1 and 100"),
        ({"scheduler_names": ("Team A",)}, '--scheduler-name is "Team A"; a lease is called like it'),
        ({"scheduler_names": ("team-a", "default-scheduler")}, "which Kubernetes' own scheduler has"),
        ({"also_ask": frozenset({"/x"})}, '--also-ask names "/x"; choose from'),
    ],
)
def test_an_installation_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(InstallError, match=sentence):
        Installation(**options)


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), (":8080", ("0.0.0.0", 8080))],
)
def test_an_address_is_read(text, found):
    assert host_and_port("--metrics-address", text) == found


@pytest.mark.parametrize("text", ["", "8080", "host", "host:", "host:http", "host:65536", "host:-1", "host:٣"])
def test_an_address_that_cannot_be_is_refused(text):
    with pytest.raises(StandaloneSettingsError, match="write HOST:PORT"):
        StandaloneSettings(components=("scheduler",), metrics_address=text)


def test_a_scheduler_of_another_name_has_another_lease():
    assert StandaloneSettings(components=("scheduler",)).scheduler_lease == "volcano"
    assert StandaloneSettings(components=("scheduler",), scheduler_names=("mine",)).scheduler_lease == "mine"


def empty_places(value, path=""):
    """Where a document holds an empty `properties`, or no rules."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key in ("properties", "rules") and not one:
                yield f"{path}/{key}"
            yield from empty_places(one, f"{path}/{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from empty_places(one, f"{path}[{number}]")


def test_an_api_server_keeps_what_is_applied_so_that_applying_it_again_changes_nothing():
    """A real one dropped `properties: {}` and read `rules: []` back as null: `kubectl apply` said "configured" each time."""
    assert not [place for one in documents() for place in empty_places(one, f"{one['kind']}/{one['metadata']['name']}")]


def test_the_scheduler_may_give_devices_and_take_them_back():
    group = "resource.k8s.io"
    for verb, resource in (
        ("get", "resourceclaims"),
        ("patch", "resourceclaims"),
        ("patch", "resourceclaims/status"),
        ("patch", "resourceclaims/binding"),
    ):
        assert allowed("scheduler", verb, group, resource), f"{verb} {resource}"


def test_renewals_of_leases_do_not_wait_with_everything_else():
    """On an API server that had more to answer than it could, a renewal stood behind the bindings of its own account for 0.45 s on
    average and for longer than the lease at worst, so that scheduler and controllers lost their leases by their own work.
    """
    [schema] = of_kind(documents(namespace="batch"), "FlowSchema")
    assert schema["spec"]["priorityLevelConfiguration"] == {"name": "leader-election"}
    [rule] = schema["spec"]["rules"]
    [meant], [accounts] = rule["resourceRules"], rule["subjects"]
    assert accounts["serviceAccount"] == {"name": "*", "namespace": "batch"}
    assert (meant["resources"], meant["namespaces"]) == (["leases"], ["batch"])


def test_the_registration_that_a_scheduler_makes_anew_is_what_was_installed():
    """kubectl warns of an object without the note of what it applied."""
    [installed] = of_kind(documents(), "APIService")
    made = registration("hekla-system", "Yw==", place_of("volcano"))  # as a scheduler of that name finds it
    note = json.loads(made["metadata"]["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration"))
    assert note.pop("metadata") == {**installed["metadata"], "annotations": {}}
    assert note == {key: value for key, value in installed.items() if key != "metadata"}
    assert made["metadata"] == {**installed["metadata"], "annotations": {ANSWERS_OF: "volcano"}}
