"""A ModelServing that ran under Kthena goes on as it is: no pod is made, changed to another template, or deleted."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from hekla.api.core import Pod
from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Delete, Event, Patch, RequeueAfter, SetStatus
from hekla.serving.serving_revision import normal
from hekla.testing.serving_world import ServingWorld


def recorded() -> ModuleType:
    path = Path(__file__).parent / "worlds" / "under_kthena.py"
    spec = importlib.util.spec_from_file_location("under_kthena", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KTHENA = recorded()


def world(*, without: str = "", by_role: bool = False, **spec: object) -> ServingWorld:
    document = KTHENA.serving()
    document["spec"] |= spec
    if by_role:
        document["spec"] |= {"rolloutStrategy": {"type": "RoleRollingUpdate"}, "recoveryPolicy": "RoleRecreate"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
    others: list[Document] = [one for one in KTHENA.everything() if one["kind"] != without]
    return ServingWorld(document, node, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}, *others)


def changes(commands: list[Command]) -> list[Command]:
    return [one for one in commands if not isinstance(one, Event | RequeueAfter)]


def test_taking_over_changes_nothing_but_marks_of_our_own() -> None:
    found = changes(world().step())
    assert all(isinstance(one, Patch) and one.target.kind is Pod for one in found), found
    patches = [one.patch["metadata"] for one in found if isinstance(one, Patch)]
    assert {key for patch in patches for key in patch["annotations"]} <= {"serving.hekla.dev/whole"}
    assert all(set(patch) == {"annotations"} for patch in patches)


@pytest.mark.parametrize("by_role", [False, True])
@pytest.mark.parametrize("without", ["", "ControllerRevision", "PodGroup", "Service"])
def test_no_pod_is_rolled_whatever_is_missing(without: str, by_role: bool) -> None:
    taken = world(without=without, by_role=by_role)
    before = taken.pods
    taken.settle()
    assert {name: pod.spec for name, pod in taken.pods.items()} == {name: pod.spec for name, pod in before.items()}
    assert taken.status["updateRevision"] == taken.status["currentRevision"] == KTHENA.REVISION
    assert taken.revisions == [f"qwen-{KTHENA.REVISION}"]
    assert set(taken.pod_groups) == {"qwen-0", "qwen-1"}
    assert taken.condition() == "Available"


def test_a_revision_kept_before_ports_had_a_default_is_still_the_specs() -> None:
    """Found on a real server, which writes `protocol: TCP` into every port of a spec as it is stored: all groups were rolled."""
    taken = world()
    document = KTHENA.revision()
    for role in document["data"]["data"]:
        for template in (role["entryTemplate"], role.get("workerTemplate", {"spec": {"containers": []}})):
            for container in template["spec"]["containers"]:
                container["ports"] = [{"containerPort": 8000}]
    taken.world.put(document)
    assert not [one for one in taken.step() if isinstance(one, Create | Delete)]


@pytest.mark.parametrize("more", [{"protocol": "TCP"}, {"canary": ""}])
@pytest.mark.parametrize("where", ["labels", "annotations", "nodeSelector", "matchLabels"])
def test_what_is_anybodys_to_name_has_no_default(where: str, more: Document) -> None:
    """A label `protocol: TCP`, or an empty one, was never rolled out."""
    before: Document = {"entryTemplate": {where: {"app": "qwen"}}}
    after: Document = {"entryTemplate": {where: {"app": "qwen", **more}}}
    assert normal(before) != normal(after)


def test_what_is_made_later_carries_the_names_that_are_there() -> None:
    taken = world().settle()
    spec = KTHENA.spec()
    spec["template"]["roles"][1]["replicas"] = 3
    taken.change(replicas=3, template=spec["template"]).settle()
    new = taken.pods["qwen-2-decode-2-0"].metadata.labels
    assert new[labels.REVISION] == KTHENA.REVISION
    assert new[labels.ROLE_TEMPLATE_HASH] == KTHENA.DECODE_HASH
    assert taken.pods["qwen-0-decode-2-0"].metadata.labels[labels.ROLE_TEMPLATE_HASH] == KTHENA.DECODE_HASH
    assert sum(1 for pod in taken.pods.values() if pod.status.phase == "Running") == 8


def test_an_update_after_the_take_over_rolls_as_always() -> None:
    taken = world().settle()
    template = KTHENA.spec()["template"]
    for role in template["roles"]:
        role["entryTemplate"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.12.0"
    taken.change(template=template).settle()
    assert {name[:6] for name, image in taken.images().items() if image.endswith("0.12.0")} == {"qwen-1"}
    taken.roll()
    assert taken.status["updateRevision"] != KTHENA.REVISION
    entries = [pod for pod in taken.pods.values() if labels.ENTRY in pod.metadata.labels]
    assert {pod.spec.containers[0].image for pod in entries} == {"vllm/vllm-openai:v0.12.0"}


def test_an_update_that_kthena_had_begun_is_finished() -> None:
    """The spec is new, one group is of the new revision already, and only Kthena knows how it called it."""
    taken = world()
    template = KTHENA.spec()["template"]
    for role in template["roles"]:
        role["entryTemplate"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.12.0"
    document = KTHENA.revision()
    document["metadata"] |= {"name": "qwen-newer", "labels": {labels.NAME: "qwen", labels.REVISION: "newer"}}
    document["data"] = {"data": template["roles"]}
    taken.world.put(document)
    for name in taken.pods:
        if name.startswith("qwen-1-"):
            taken.world.change(Pod, "default", name, {"metadata": {"labels": {labels.REVISION: "newer"}}})
    taken.change(template=template)
    doomed = {one.target.name for one in taken.step() if isinstance(one, Delete) and one.target.kind is Pod}
    assert {name[:6] for name in doomed} == {"qwen-0"}
    assert taken.status["updateRevision"] == "newer"
    assert not [one for one in taken.step() if isinstance(one, Create | SetStatus) and "qwen-1" in str(one)]
