"""Whether the kinds of AgentCube and agent-sandbox read their manifests and give their definitions."""

from typing import Any

import msgspec
import pytest

from hekla.api.agents import (
    AGENT_KINDS,
    AgentRuntime,
    CodeInterpreter,
    Sandbox,
    SandboxClaim,
    SandboxTemplate,
    SandboxWarmPool,
)
from hekla.api.crd import crd_document, object_schema
from hekla.api.meta import KINDS


@pytest.mark.parametrize("kind", AGENT_KINDS, ids=lambda kind: kind.kind_info.resource)
def test_every_kind_is_declared_and_reads_an_empty_object(kind: Any) -> None:
    info = kind.kind_info
    assert KINDS[f"{info.resource}/{info.version}"] is kind
    assert kind() == msgspec.convert({}, kind)


@pytest.mark.parametrize(
    ("kind", "api_version", "names", "columns", "subresources"),
    [
        (AgentRuntime, "runtime.agentcube.volcano.sh/v1alpha1", ("agentruntimes",), ["Age"], {"status"}),
        (CodeInterpreter, "runtime.agentcube.volcano.sh/v1alpha1", ("codeinterpreters",), ["Age"], {"status"}),
        (Sandbox, "agents.x-k8s.io/v1beta1", ("sandboxes", "sandbox"), ["Ready", "Reason", "Age"], {"status"}),
        (SandboxTemplate, "extensions.agents.x-k8s.io/v1beta1", ("sandboxtemplates", "sandboxtemplate"), [], set()),
        (
            SandboxWarmPool, "extensions.agents.x-k8s.io/v1beta1", ("sandboxwarmpools", "swp"),
            ["Ready", "Desired", "Age"], {"status", "scale"},
        ),
        (
            SandboxClaim, "extensions.agents.x-k8s.io/v1beta1", ("sandboxclaims", "sandboxclaim"),
            ["Ready", "Sandbox", "Reason", "Age"], {"status"},
        ),
    ],
)  # fmt: skip
def test_definitions_are_the_peers(
    kind: Any, api_version: str, names: tuple[str, ...], columns: list[str], subresources: set[str]
) -> None:
    spec = crd_document(kind)["spec"]
    version = spec["versions"][0]
    assert f"{spec['group']}/{version['name']}" == api_version
    assert (spec["names"]["plural"], *spec["names"].get("shortNames", ())) == names
    assert [one["name"] for one in version.get("additionalPrinterColumns", ())] == columns
    assert set(version.get("subresources", ())) == subresources


DEFAULTS = {
    (AgentRuntime, ".spec.sessionTimeout"): "15m",
    (AgentRuntime, ".spec.maxSessionDuration"): "8h",
    (AgentRuntime, ".spec.targetPort[].protocol"): "HTTP",
    (CodeInterpreter, ".spec.sessionTimeout"): "15m",
    (CodeInterpreter, ".spec.maxSessionDuration"): "8h",
    (CodeInterpreter, ".spec.authMode"): "picod",
    (Sandbox, ".spec.shutdownPolicy"): "Retain",
    (Sandbox, ".spec.operatingMode"): "Running",
    (SandboxTemplate, ".spec.networkPolicyManagement"): "Managed",
    (SandboxTemplate, ".spec.envVarsInjectionPolicy"): "Disallowed",
    (SandboxTemplate, ".spec.volumeClaimTemplatesPolicy"): "Disallowed",
    (SandboxClaim, ".spec.lifecycle.shutdownPolicy"): "Retain",
    (SandboxWarmPool, ".spec.replicas"): 1,
    (SandboxWarmPool, ".spec.updateStrategy.type"): "OnReplenish",
}


@pytest.mark.parametrize(("kind", "path"), DEFAULTS, ids=lambda one: getattr(one, "__name__", one))
def test_defaults_are_the_peers(kind: Any, path: str) -> None:
    schema = object_schema(kind)
    for part in path.strip(".").split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema
    assert schema["default"] == DEFAULTS[kind, path]


def test_a_sandbox_reads_what_a_template_shares_with_it() -> None:
    blueprint = {
        "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "python"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        "service": True,
    }  # fmt: skip
    sandbox = msgspec.convert({"spec": blueprint | {"shutdownTime": "2026-11-23T08:00:00Z"}}, Sandbox)
    template = msgspec.convert({"spec": blueprint}, SandboxTemplate)
    assert sandbox.spec.pod_template == template.spec.pod_template
    assert sandbox.spec.volume_claim_templates == template.spec.volume_claim_templates
    assert sandbox.spec.shutdown_time == "2026-11-23T08:00:00Z"
