"""Whether a ModelServing is refused as Kthena's webhook refuses it (webhook e2e of the controller manager)."""

from typing import Any

import pytest

from hekla.api.kthena import ModelServing
from hekla.serving.admission_model_serving import refuse_model_serving
from serving.admissionkit import refused, request


def serving(*, name: str = "llama", roles: Any = None, **spec: Any) -> dict[str, Any]:
    roles = roles if roles is not None else [role()]
    spec = {"replicas": 1, **spec}
    template = {"roles": roles, **spec.pop("template", {})}
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {**spec, "template": template}}


def role(name: str = "server", image: str = "vllm", **more: Any) -> dict[str, Any]:
    entry = {"spec": {"containers": [{"name": "main", "image": image}]}}
    return {"name": name, "replicas": 1, "entryTemplate": entry, "workerReplicas": 0, **more}


def by_role(**more: Any) -> dict[str, Any]:
    return {"rolloutStrategy": {"type": "RoleRollingUpdate", **more}}


def by_group(**rolling: Any) -> dict[str, Any]:
    return {"rolloutStrategy": {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": rolling}}


ROLLING = "spec.rolloutStrategy.rollingUpdateConfiguration"
ROLE0 = "spec.template.roles[0]"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            serving(name="x" * 60),
            'metadata.name: Invalid value: "' + "x" * 60 + '": invalid name: must be no more than 63',
        ),
        (
            serving(roles=[role("Prefill")]),
            f'{ROLE0}.name: Invalid value: "Prefill": role name must be a valid DNS-1035',
        ),
        (
            serving(roles=[role(image="a b")]),
            f'{ROLE0}.entryTemplate.spec.containers[0].image: Invalid value: "a b": '
            "invalid container image reference: image cannot contain spaces",
        ),
        (serving(roles=[role(image=" ")]), "image cannot be empty or whitespace only"),
        (
            serving(roles=[role(workerReplicas=1, workerTemplate={"spec": {"containers": [{"image": "a b"}]}})]),
            f"{ROLE0}.workerTemplate.spec.containers[0].image",
        ),
        (serving(replicas=None), "spec.replicas: Invalid value: null: replicas must be a non-negative integer"),
        (serving(replicas=-1), "spec.replicas: Invalid value: -1: replicas must be a non-negative integer"),
        (serving(roles=[]), "spec.template.roles: Invalid value: []: roles must be specified"),
        (serving(roles=[role(replicas=-1)]), f"{ROLE0}.replicas: Invalid value: -1: role replicas must be"),
        (
            serving(**by_role(rollingUpdateConfiguration={"maxUnavailable": 1})),
            f"{ROLLING}: Forbidden: rollingUpdateConfiguration is only valid when rolloutStrategy.type is",
        ),
        (
            serving(**by_group(maxUnavailable=-1)),
            f"{ROLLING}.maxUnavailable: Invalid value: -1: must be a non-negative",
        ),
        (
            serving(**by_group(maxUnavailable="x")),
            f'{ROLLING}.maxUnavailable: Invalid value: "x": a valid percent string',
        ),
        (
            serving(**by_group(maxUnavailable="x")),
            "invalid maxUnavailable: invalid value for IntOrString: invalid type",
        ),
        (serving(**by_group(partition="101%")), f'{ROLLING}.partition: Invalid value: "101%": must be a valid percent'),
        (serving(**by_group(maxSurge=-1)), f"{ROLLING}.maxSurge: Invalid value: -1: must be a non-negative integer"),
        (serving(**by_group(maxUnavailable=0)), f'{ROLLING}: Invalid value: "": maxUnavailable cannot be 0'),
        (serving(**by_group(maxUnavailable="10%")), f'{ROLLING}: Invalid value: "": maxUnavailable cannot be 0'),
        (
            serving(roles=[role(partition=1)]),
            f"{ROLE0}.partition: Forbidden: partition is only valid when rolloutStrategy.type is RoleRollingUpdate",
        ),
        (
            serving(roles=[role(maxUnavailable=0)], **by_role()),
            f"{ROLE0}.maxUnavailable: Invalid value: 0: maxUnavailable cannot be 0",
        ),
        (
            serving(roles=[role(maxUnavailable=2)], **by_role()),
            f"{ROLE0}.maxUnavailable: Invalid value: 2: maxUnavailable cannot be greater than replicas (1)",
        ),
        (serving(roles=[role(maxSurge=-1)], **by_role()), f"{ROLE0}.maxSurge: Invalid value: -1"),
        (
            serving(template={"gangPolicy": {"minRoleReplicas": {"decode": 1}}}),
            'spec.template.gangPolicy.minRoleReplicas[decode]: Invalid value: "decode": '
            "role decode does not exist in template.roles",
        ),
        (
            serving(template={"gangPolicy": {"minRoleReplicas": {"server": 2}}}),
            "minRoleReplicas (2) for role server cannot exceed replicas (1)",
        ),
        (
            serving(template={"gangPolicy": {"minRoleReplicas": {"server": -1}}}),
            "minRoleReplicas for role server must be non-negative",
        ),
        (
            serving(roles=[role(workerReplicas=-1)]),
            f"{ROLE0}.workerReplicas: Invalid value: -1: workerReplicas must be a non-negative integer",
        ),
        (
            serving(roles=[role(workerReplicas=1)]),
            f"{ROLE0}.workerTemplate: Required value: workerTemplate is required when workerReplicas is greater than 0",
        ),
        (
            serving(recoveryPolicy="ServingGroupRecreate", **by_role()),
            'spec.rolloutStrategy.type: Invalid value: "RoleRollingUpdate": incompatible recoveryPolicy and '
            "rolloutStrategy.type after applying defaults: recoveryPolicy=ServingGroupRecreate, "
            "rolloutStrategy.type=RoleRollingUpdate; valid pairs: (ServingGroupRecreate,ServingGroupRollingUpdate) or "
            "(RoleRecreate,RoleRollingUpdate)",
        ),
    ],
)
def test_what_the_webhook_refuses(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_model_serving, ModelServing, document)
    assert sentence.startswith("validation failed:\n  - ")
    assert said in sentence


@pytest.mark.parametrize(
    "document",
    [
        serving(),
        serving(**by_group(maxUnavailable="50%", partition=1), replicas=4),
        serving(**by_group(maxUnavailable=0, maxSurge="10%")),
        serving(roles=[role(maxUnavailable=0, maxSurge=1)], **by_role()),
        serving(roles=[role(workerReplicas=1, workerTemplate={"spec": {"containers": []}})]),
        serving(template={"gangPolicy": {"minRoleReplicas": {"server": 1}}}),
        serving(recoveryPolicy="ServingGroupRecreate"),
    ],
)
def test_what_it_lets_in(document: dict[str, Any]) -> None:
    assert refuse_model_serving(request(ModelServing, document), _nobody()) == ""


def _nobody() -> Any:
    return None


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (
            {"name": "demo"},
            "spec.plugins[0]: plugin demo not registered; there are demo-pod-tweaks, lws-standard-labels;",
        ),
        (
            {"name": "demo-pod-tweaks", "config": {"env": "A=b"}},
            "spec.plugins[0]: build plugin demo-pod-tweaks: env is 'A=b', which is no list; no pod is made while it stands here",
        ),
        (
            {"name": "lws-standard-labels", "scope": {"roles": ["sever", "server"]}},
            "spec.plugins[0].scope.roles has sever; spec.template.roles are server",
        ),
    ],
)
def test_a_plugin_that_does_nothing_is_warned_of(plugin: dict[str, Any], said: str) -> None:
    asked = request(ModelServing, serving(plugins=[{"type": "BuiltIn", **plugin}]))
    assert refuse_model_serving(asked, None) == ""  # type: ignore[arg-type]  # it reads nothing
    [warning] = asked.warnings
    assert warning.startswith(said)
