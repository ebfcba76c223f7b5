"""Kthena's manifests on an API server that learned the kinds from our definitions: defaults, refusals, warnings, conversion."""

import asyncio
from typing import Any

import yaml

from hekla.api.crd import crd_document
from hekla.api.kthena import KTHENA_KINDS
from hekla.api.meta import Document
from hekla.serving.admission import ADMISSION_RULES
from hekla.testing.api_server import RULES, ApiCaller, api_server

WORKLOAD = "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default"
NETWORKING = "/apis/networking.serving.volcano.sh/v1alpha1/namespaces/default"
STRICT = "?fieldValidation=Strict"

SERVING = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {name: llama}
spec:
  template:
    gangPolicy: {minRoleReplicas: {prefill: 1, decode: 1}}
    roles:
    - name: prefill
      workerReplicas: 0
      entryTemplate: {metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: vllm}]}}
    - name: decode
      replicas: 2
      workerReplicas: 1
      entryTemplate: {spec: {containers: [{name: main, image: vllm}]}}
      workerTemplate: {spec: {containers: [{name: main, image: vllm}]}}
"""
ROUTE = """
apiVersion: networking.serving.volcano.sh/v1alpha1
kind: ModelRoute
metadata: {name: r}
spec:
  modelName: m
  rules:
  - modelMatch: {headers: {user-type: {exact: premium}}}
    targetModels: [{modelServerName: a}, {modelServerName: b, weight: 30}]
  rateLimit: {inputTokensPerUnit: 10, unit: minute, global: {redis: {address: "redis:6379"}}}
"""
POLICY = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: AutoscalingPolicy
metadata: {name: p}
spec:
  metrics: [{metricName: load, targetValue: 10}]
"""
BINDING = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: AutoscalingPolicyBinding
metadata: {name: b}
spec:
  policyRef: {name: p}
  homogeneousTarget: {target: {targetRef: {name: llama}}, minReplicas: 1, maxReplicas: 4}
"""


def document(text: str, **changes: Any) -> Document:
    return dict(yaml.safe_load(text)) | changes


async def ready(call: ApiCaller) -> None:
    for kind in KTHENA_KINDS:
        status, said = await call.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_document(kind))
        assert status == 201, said


def on_a_server(scenario: Any) -> None:
    async def run() -> None:
        async with ApiCaller(api_server(rules=(*RULES, *ADMISSION_RULES))) as call:
            await ready(call)
            await scenario(call)

    asyncio.run(run())


def test_a_model_serving_is_completed_scaled_and_kept_to_its_rules() -> None:
    async def scenario(call: ApiCaller) -> None:
        status, made = await call.post(f"{WORKLOAD}/modelservings{STRICT}", document(SERVING))
        assert status == 201, made
        spec = made["spec"]
        assert (spec["replicas"], spec["schedulerName"], spec["recoveryPolicy"]) == (1, "volcano", "RoleRecreate")
        assert spec["template"]["restartGracePeriodSeconds"] == 0
        assert (spec["template"]["roles"][0]["replicas"], spec["template"]["roles"][0]["maxUnavailable"]) == (1, 1)
        path = f"{WORKLOAD}/modelservings/llama"
        status, scale = await call.patch(f"{path}/scale", {"spec": {"replicas": 3}})
        assert (status, scale["spec"]["replicas"]) == (200, 3)
        gang = {"spec": {"template": {"gangPolicy": {"minRoleReplicas": {"decode": 2}}}}}
        status, refused = await call.patch(path, gang)
        assert status == 422
        assert "minRoleReplicas is immutable" in refused["message"]
        status, refused = await call.patch(path, {"spec": {"template": {"gangPolicy": None}}})
        assert status == 422
        assert "gangPolicy is required once set" in refused["message"]
        by_role = {"spec": {"rolloutStrategy": {"type": "RoleRollingUpdate", "rollingUpdateConfiguration": {}}}}
        status, refused = await call.patch(path, by_role)
        assert refused["message"] == (
            'admission webhook "validate-workload-ai-v1alpha1-modelserving.volcano.sh" denied the request: validation failed:\n'
            "  - spec.rolloutStrategy.rollingUpdateConfiguration: Forbidden: rollingUpdateConfiguration is only valid when "
            "rolloutStrategy.type is ServingGroupRollingUpdate"
        )

    on_a_server(scenario)


def test_a_route_gets_weights_and_keeps_its_name() -> None:
    async def scenario(call: ApiCaller) -> None:
        status, made = await call.post(f"{NETWORKING}/modelroutes{STRICT}", document(ROUTE))
        assert status == 201, made
        assert [one["weight"] for one in made["spec"]["rules"][0]["targetModels"]] == [100, 30]
        assert made["spec"]["rateLimit"]["global"]["redis"]["address"] == "redis:6379"
        status, refused = await call.patch(f"{NETWORKING}/modelroutes/r", {"spec": {"modelName": "other"}})
        assert status == 422
        assert "modelName is immutable" in refused["message"]
        nameless = document(ROUTE, metadata={"name": "s"}, spec={"rules": []})
        status, refused = await call.post(f"{NETWORKING}/modelroutes", nameless)
        assert status == 422
        assert "ModelName and LoraAdapters cannot both be empty" in refused["message"]

    on_a_server(scenario)


def test_manifests_of_kthena_0_3_are_taken_with_a_warning() -> None:
    async def scenario(call: ApiCaller) -> None:
        status, policy = await call.post(f"{WORKLOAD}/autoscalingpolicies{STRICT}", document(POLICY))
        assert status == 201, policy
        assert policy["spec"]["metrics"] == [{"metricName": "load", "name": "load", "targetValue": 10}]
        assert policy["spec"]["behavior"]["scaleDown"]["stabilizationWindow"] == "5m0s"
        body = yaml.safe_dump(document(BINDING)).encode()
        headers = {"content-type": "application/yaml"}
        response = await call.response("POST", f"{WORKLOAD}/autoscalingpolicybindings{STRICT}", body, **headers)
        assert response.status == 201
        warnings = [value for name, value in response.headers if name.lower() == "warning"]
        assert "AutoscalingPolicyBinding was removed in Kthena 1.0" in " ".join(warnings)

    on_a_server(scenario)
