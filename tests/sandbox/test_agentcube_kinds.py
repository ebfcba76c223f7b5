"""Whether a CodeInterpreter keeps its template and pool, and both of AgentCube's kinds say whether sessions can start."""

from datetime import UTC, datetime
from typing import Any

import pytest

from hekla.api.agents import AgentRuntime, CodeInterpreter, Sandbox, SandboxTemplate, SandboxWarmPool, names
from hekla.api.meta import Document
from hekla.sandbox.agent_runtime import reconcile_agent_runtime
from hekla.sandbox.code_interpreter import reconcile_code_interpreter
from hekla.sandbox.sandbox_warm_pool import reconcile_sandbox_warm_pool
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
AGENTCUBE = "runtime.agentcube.volcano.sh/v1alpha1"
META = {"name": "py", "namespace": "ns", "uid": "py-uid"}


def interpreter(annotations: dict[str, str] | None = None, **spec: Any) -> Document:
    """A CodeInterpreter `py`."""
    template = {"image": "python:3.12", "labels": {"team": "a"}, "annotations": {"note": "kept"}}
    metadata = {**META, "annotations": annotations or {}}
    return {
        "apiVersion": AGENTCUBE,
        "kind": "CodeInterpreter",
        "metadata": metadata,
        "spec": {"template": template, **spec},
    }


def settled(world: FakeWorld) -> FakeWorld:
    """After everything that could be done was done."""
    converge(reconcile_code_interpreter, world, "ns", "py", now=NOW)
    return world


def test_an_interpreter_has_a_template_and_says_that_it_is_ready() -> None:
    world = settled(FakeWorld(interpreter()))
    template = world.get(SandboxTemplate, "ns", "py")
    assert template is not None
    assert template.spec.network_policy_management == "Unmanaged"
    assert template.spec.pod_template.spec["containers"][0]["ports"] == [{"containerPort": 8080}]
    assert world.document(CodeInterpreter, "ns", "py")["status"]["ready"] is True
    assert world.get(SandboxWarmPool, "ns", "py") is None


def test_labels_of_the_interpreter_reach_the_pods_of_its_pool() -> None:
    world = settled(FakeWorld(interpreter(warmPoolSize=1)))
    converge(reconcile_sandbox_warm_pool, world, "ns", "py", now=NOW)
    (waiting,) = world.list(Sandbox, "ns")
    template = waiting.spec.pod_template.metadata
    assert template.labels["team"] == "a"
    assert template.annotations["note"] == "kept"


def test_a_pool_comes_changes_and_goes_with_its_size() -> None:
    world = settled(FakeWorld(interpreter(warmPoolSize=3)))
    assert world.document(SandboxWarmPool, "ns", "py")["spec"]["replicas"] == 3
    world.change(CodeInterpreter, "ns", "py", {"spec": {"warmPoolSize": 1}})
    assert settled(world).document(SandboxWarmPool, "ns", "py")["spec"]["replicas"] == 1
    world.change(CodeInterpreter, "ns", "py", {"spec": {"warmPoolSize": 0}})
    assert settled(world).get(SandboxWarmPool, "ns", "py") is None


def test_a_pool_that_sizes_itself_is_not_set_back() -> None:
    world = settled(FakeWorld(interpreter({names.POOL_POLICY: "adaptive"}, warmPoolSize=2)))
    world.change(SandboxWarmPool, "ns", "py", {"spec": {"replicas": 9}})
    assert settled(world).document(SandboxWarmPool, "ns", "py")["spec"]["replicas"] == 9


def test_a_new_image_reaches_the_template_and_nothing_of_the_old_one_stays() -> None:
    world = settled(FakeWorld(interpreter()))
    world.change(
        CodeInterpreter, "ns", "py", {"spec": {"template": {"image": "python:3.13", "labels": {"team": None}}}}
    )
    template = settled(world).get(SandboxTemplate, "ns", "py")
    assert template is not None
    assert template.spec.pod_template.spec["containers"][0]["image"] == "python:3.13"
    assert "team" not in template.spec.pod_template.metadata.labels


@pytest.mark.parametrize(("egress", "told"), [(None, None), ("pypi.org:443", "pypi.org:443")])
def test_code_that_a_model_wrote_reaches_nobody_unless_somebody_says_whom(egress: str | None, told: str | None) -> None:
    annotations = {} if egress is None else {names.EGRESS: egress}
    world = settled(FakeWorld(interpreter(annotations, warmPoolSize=1)))
    converge(reconcile_sandbox_warm_pool, world, "ns", "py", now=NOW)
    (waiting,) = world.list(Sandbox, "ns")
    assert waiting.metadata.annotations.get(names.EGRESS) == told


def test_what_an_interpreter_says_no_more_its_template_says_no_more() -> None:
    world = settled(FakeWorld(interpreter({names.BUDGET: "awake=6s", names.EGRESS: "pypi.org:443"}, warmPoolSize=1)))
    gone = {"metadata": {"annotations": {names.BUDGET: None, names.EGRESS: None}}}
    world.change(CodeInterpreter, "ns", "py", gone)
    converge(reconcile_code_interpreter, world, "ns", "py", now=NOW)
    assert world.document(SandboxTemplate, "ns", "py")["metadata"]["annotations"] == {names.EGRESS: ""}


def test_a_name_that_is_taken_is_said_and_left_alone() -> None:
    taken = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "py", "namespace": "ns", "uid": "t"}, "spec": {"podTemplate": {"spec": {"containers": []}}},
    }  # fmt: skip
    world = settled(FakeWorld(interpreter(warmPoolSize=2), taken))
    status = world.document(CodeInterpreter, "ns", "py")["status"]
    assert status["conditions"][0]["message"].startswith('SandboxTemplate "py" is nobody\'s')
    assert status["ready"] is False
    assert world.get(SandboxWarmPool, "ns", "py") is None


def test_whom_it_may_reach_is_told_when_it_makes_no_sense_and_what_held_before_holds_on() -> None:
    """Its sandboxes were started again and again, and it said that sessions can be asked for."""
    world = settled(FakeWorld(interpreter({names.EGRESS: "%%%"}, warmPoolSize=2)))
    status = world.document(CodeInterpreter, "ns", "py")["status"]
    told = 'annotation hekla.dev/egress: egress rule "%%%" names no host; write host[:port], *.example.com or *'
    assert (status["ready"], status["conditions"][0]["message"]) == (False, told)
    assert world.get(SandboxTemplate, "ns", "py") is None
    world.change(CodeInterpreter, "ns", "py", {"metadata": {"annotations": {names.EGRESS: "example.com"}}})
    settled(world)
    assert world.document(CodeInterpreter, "ns", "py")["status"]["ready"] is True
    world.change(CodeInterpreter, "ns", "py", {"metadata": {"annotations": {names.EGRESS: "example.com:0"}}})
    settled(world)
    template = world.document(SandboxTemplate, "ns", "py")
    assert template["metadata"]["annotations"][names.EGRESS] == "example.com"


def test_secrets_for_hosts_that_it_may_not_reach_are_told() -> None:
    secrets = '[{"host": "api.example.com", "secret": "api", "key": "token"}]'
    annotations = {names.EGRESS: "pypi.org", "hekla.dev/egress-secrets": secrets}
    status = settled(FakeWorld(interpreter(annotations))).document(CodeInterpreter, "ns", "py")["status"]
    told = "hekla.dev/egress-secrets names api.example.com:443, which hekla.dev/egress does not allow; add it there"
    assert (status["ready"], status["conditions"][0]["message"]) == (False, told)


def test_an_agent_that_may_reach_what_makes_no_sense_is_not_accepted() -> None:
    spec = {"targetPort": [{"port": 80}], "podTemplate": {"spec": {"containers": [{"name": "a"}]}}}
    metadata = {**META, "annotations": {names.EGRESS: "example.com:http"}}
    world = FakeWorld({"apiVersion": AGENTCUBE, "kind": "AgentRuntime", "metadata": metadata, "spec": spec})
    converge(reconcile_agent_runtime, world, "ns", "py", now=NOW)
    (told,) = world.document(AgentRuntime, "ns", "py")["status"]["conditions"]
    assert (told["status"], told["message"]) == (
        "False", 'annotation hekla.dev/egress: egress rule "example.com:http" has port "http"; write 1 to 65535',
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ports", "containers", "status"),
    [([{"port": 80}], [{"name": "a"}], "True"), ([], [{"name": "a"}], "False"), ([{"port": 80}], [], "False")],
)
def test_an_agent_is_accepted_when_it_can_be_reached(
    ports: list[Document], containers: list[Document], status: str
) -> None:
    spec = {"targetPort": ports, "podTemplate": {"spec": {"containers": containers}}}
    world = FakeWorld({"apiVersion": AGENTCUBE, "kind": "AgentRuntime", "metadata": META, "spec": spec})
    converge(reconcile_agent_runtime, world, "ns", "py", now=NOW)
    assert world.document(AgentRuntime, "ns", "py")["status"]["conditions"][0]["status"] == status


def test_it_keeps_the_rules_of_reconcilers() -> None:
    assert_converges(reconcile_code_interpreter, FakeWorld(interpreter(warmPoolSize=2)), "ns", "py", now=NOW)
    assert_heals(reconcile_code_interpreter, lambda: FakeWorld(interpreter(warmPoolSize=2)), "ns", "py", now=NOW)
    assert_touches_only_its_own(reconcile_code_interpreter, FakeWorld(interpreter(warmPoolSize=2)), "ns", "py", now=NOW)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"sessionTimeout": "abc"}, 'spec.sessionTimeout: "abc" is not a duration; write it like '),
        ({"sessionTimeout": "-5m"}, 'spec.sessionTimeout is "-5m"; write a duration from 0s on'),
        ({"maxSessionDuration": "9999999h"}, 'spec.maxSessionDuration: "9999999h" is longer than any duration'),
        ({"ports": [{"port": 80}, {"port": 70000}]}, "spec.ports[1].port is 70000; write 1 to 65535"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port is 0; "),
    ],
)
def test_what_the_schema_lets_in_and_no_session_can_begin_with_is_told(spec: Document, sentence: str) -> None:
    """Such an object was Ready: sessions had other times than it says, or waited two minutes for a pod that cannot be."""
    world = settled(FakeWorld(interpreter(**spec)))
    status = world.document(CodeInterpreter, "ns", "py")["status"]
    (ready,) = status["conditions"]
    assert (status["ready"], ready["reason"]) == (False, "Invalid")
    assert ready["message"].startswith(sentence)
    assert world.get(SandboxTemplate, "ns", "py") is None
    its = {**spec, "targetPort": spec.get("ports", [{"port": 80}])}
    its.pop("ports", None)
    pod = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    runtime = {"apiVersion": AGENTCUBE, "kind": "AgentRuntime", "metadata": META, "spec": {"podTemplate": pod, **its}}
    world = FakeWorld(runtime)
    converge(reconcile_agent_runtime, world, "ns", "py", now=NOW)
    (accepted,) = world.document(AgentRuntime, "ns", "py")["status"]["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
    assert accepted["message"].startswith(sentence.replace("spec.ports", "spec.targetPort"))
