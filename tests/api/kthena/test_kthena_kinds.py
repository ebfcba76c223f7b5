"""Whether Kthena's kinds read its manifests and give its definitions: groups, columns, subresources, limits, defaults."""

from typing import Any

import cel
import msgspec
import pytest

from hekla.api.crd import crd_document, object_schema
from hekla.api.foreign import FOREIGN_KINDS, Gateway, HttpRoute, LeaderWorkerSet
from hekla.api.kthena import (
    KTHENA_KINDS,
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    ExternalModelProvider,
    ModelBooster,
    ModelRoute,
    ModelServer,
    ModelServing,
)
from hekla.api.kthena.route import ONE_TARGET, SOME_NAME
from hekla.api.meta import KINDS

SERVING = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {name: llama, namespace: ml}
spec:
  replicas: 2
  template:
    gangPolicy: {minRoleReplicas: {prefill: 1}}
    roles:
    - name: prefill
      workerReplicas: 0
      maxUnavailable: 50%
      entryTemplate: {metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: vllm, newField: kept}]}}
"""


@pytest.mark.parametrize("kind", [*KTHENA_KINDS, *FOREIGN_KINDS], ids=lambda kind: kind.kind_info.resource)
def test_every_kind_is_declared_and_reads_an_empty_object(kind: Any) -> None:
    info = kind.kind_info
    assert KINDS[f"{info.resource}/{info.version}"] is kind
    assert kind() == msgspec.convert({}, kind)


@pytest.mark.parametrize(
    ("kind", "api_version", "plural", "columns"),
    [
        (ModelServer, "networking.serving.volcano.sh/v1alpha1", "modelservers", ["Engine", "Port", "Protocol", "Age"]),
        (
            ModelRoute,
            "networking.serving.volcano.sh/v1alpha1",
            "modelroutes",
            ["Model", "Accepted", "Resolved", "Targets", "Age"],
        ),
        (
            ExternalModelProvider,
            "networking.serving.volcano.sh/v1alpha1",
            "externalmodelproviders",
            ["Type", "URL", "Ready", "Age"],
        ),
        (
            ModelServing,
            "workload.serving.volcano.sh/v1alpha1",
            "modelservings",
            ["Replicas", "Available", "Updated", "Age"],
        ),
        (ModelBooster, "workload.serving.volcano.sh/v1alpha1", "modelboosters", ["Active", "Age"]),
        (
            AutoscalingPolicy,
            "workload.serving.volcano.sh/v1alpha1",
            "autoscalingpolicies",
            ["Target", "Min", "Max", "Ready", "Age"],
        ),
        (AutoscalingPolicyBinding, "workload.serving.volcano.sh/v1alpha1", "autoscalingpolicybindings", []),
    ],
)
def test_groups_and_plurals_are_kthenas_and_columns_say_as_much_or_more(
    kind: Any, api_version: str, plural: str, columns: list[str]
) -> None:
    definition = crd_document(kind)["spec"]
    version = definition["versions"][0]
    assert (kind.kind_info.api_version, definition["names"]["plural"]) == (api_version, plural)
    assert [one["name"] for one in version.get("additionalPrinterColumns", [])] == columns
    assert "shortNames" not in definition["names"]
    assert "status" in version["subresources"]


def test_a_model_serving_is_scaled_by_its_replicas_and_selector() -> None:
    assert crd_document(ModelServing)["spec"]["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.labelSelector",
    }


def test_a_pod_within_a_role_keeps_fields_of_tomorrow() -> None:
    serving = msgspec.yaml.decode(SERVING, type=ModelServing)
    role = serving.spec.template.roles[0]
    assert role.entry_template.spec["containers"][0]["newField"] == "kept"
    assert (role.replicas, role.max_unavailable, role.max_surge) == (1, "50%", 0)
    assert serving.spec.scheduler_name == "volcano"
    assert serving.spec.recovery_policy == "RoleRecreate"


def _field(kind: Any, path: str) -> dict[str, Any]:
    schema = object_schema(kind)
    for name in path.split("."):
        schema = schema["items"] if name == "[]" else schema["properties"][name]
    return schema


@pytest.mark.parametrize(
    ("kind", "path", "said"),
    [
        (ModelServer, "spec.inferenceEngine", {"enum": ["vLLM", "SGLang"]}),
        (ModelServer, "spec.model", {"maxLength": 256}),
        (ModelServer, "spec.workloadPort.protocol", {"default": "http", "enum": ["http", "https"]}),
        (ModelServer, "spec.kvConnector.type", {"default": "http"}),
        (ModelServer, "spec.trafficPolicy.retry", {"required": None}),
        (ModelServer, "spec.trafficPolicy.retry.retryInterval", {"default": "100ms"}),
        (ModelServer, "spec.trafficPolicy.sessionSticky.sources", {"maxItems": 16}),
        (ModelServer, "spec.trafficPolicy.connectionPool.maxIdleConnectionsPerHost", {"minimum": 0}),
        (ModelRoute, "spec.loraAdapters", {"maxItems": 10}),
        (ModelRoute, "spec.rules", {"maxItems": 16}),
        (ModelRoute, "spec.rules.[].targetModels", {"minItems": 1, "maxItems": 16}),
        (ModelRoute, "spec.rules.[].targetModels.[].weight", {"default": 100, "minimum": 0, "maximum": 100}),
        (ModelRoute, "spec.rateLimit.unit", {"default": "second"}),
        (ModelRoute, "spec.parentRefs.[].kind", {"default": "Gateway"}),
        (ExternalModelProvider, "spec.baseURL", {"pattern": "^https://.+", "minLength": 1}),
        (ExternalModelProvider, "spec.providerType", {"default": "OpenAI"}),
        (ModelServing, "spec.replicas", {"default": 1}),
        (ModelServing, "spec.template.roles", {"minItems": 1, "maxItems": 4}),
        (ModelServing, "spec.template.roles.[].name", {"maxLength": 12}),
        (ModelServing, "spec.template.roles.[].maxUnavailable", {"default": 1, "x-kubernetes-int-or-string": True}),
        (ModelServing, "spec.rolloutStrategy.rollingUpdateConfiguration.maxSurge", {"default": 0}),
        (ModelBooster, "spec.name", {"maxLength": 64, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
        (ModelBooster, "spec.backend.replicas", {"minimum": 0, "maximum": 1_000_000}),
        (ModelBooster, "spec.backend.workers", {"minItems": 1, "maxItems": 1000}),
        (ModelBooster, "spec.backend.workers.[].type", {"default": "server"}),
        (AutoscalingPolicy, "spec.tolerancePercent", {"default": 10, "minimum": 0, "maximum": 100}),
        (AutoscalingPolicy, "spec.behavior.scaleDown.period", {"default": "15s"}),
        (
            AutoscalingPolicy,
            "spec.behavior.scaleUp.panicPolicy.panicThresholdPercent",
            {"default": 200, "minimum": 110},
        ),
        (AutoscalingPolicy, "spec.heterogeneousTarget.costExpansionRatePercent", {"default": 200}),
        (AutoscalingPolicy, "spec.disaggregatedTarget.roles", {"minProperties": 1, "maxProperties": 2}),
    ],
)
def test_limits_and_defaults_are_kthenas(kind: Any, path: str, said: dict[str, Any]) -> None:
    schema = _field(kind, path)
    assert {name: schema.get(name) for name in said} == said


def test_a_route_needs_a_name_and_each_target_exactly_one_destination() -> None:
    def holds(rule: str, value: dict[str, Any]) -> bool:
        return bool(cel.evaluate(rule, {"self": value}))

    named, one = SOME_NAME.rules[0].rule, ONE_TARGET.rules[0].rule
    assert holds(named, {"modelName": "m"})
    assert holds(named, {"loraAdapters": ["a"]})
    assert not holds(named, {"modelName": "", "loraAdapters": []})
    assert holds(one, {"modelServerName": "a"})
    assert not holds(one, {})
    assert not holds(one, {"modelServerName": "a", "externalModelProviderName": "b"})


def test_the_older_policy_and_its_binding_are_read() -> None:
    policy = msgspec.convert({"spec": {"metrics": [{"metricName": "load", "targetValue": "10"}]}}, AutoscalingPolicy)
    assert policy.spec.metrics[0].metric_name == "load"
    bound = {"target": {"targetRef": {"name": "llama"}, "subTargets": {"kind": "Role", "name": "decode"}}}
    document = {
        "spec": {"policyRef": {"name": "p"}, "homogeneousTarget": {**bound, "minReplicas": 1, "maxReplicas": 4}}
    }
    binding = msgspec.convert(document, AutoscalingPolicyBinding)
    assert binding.spec.homogeneous_target is not None
    assert binding.spec.homogeneous_target.target.sub_targets is not None
    assert binding.spec.homogeneous_target.target.metric_endpoint.port == 8100


def test_kinds_of_kubernetes_own_groups_say_that_we_did_not_make_them() -> None:
    assert "api-approved.kubernetes.io" in crd_document(Gateway)["metadata"]["annotations"]
    assert "annotations" not in crd_document(LeaderWorkerSet)["metadata"]
    assert crd_document(HttpRoute)["spec"]["names"]["kind"] == "HTTPRoute"
