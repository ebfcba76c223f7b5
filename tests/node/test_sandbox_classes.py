"""Runtime classes of sandboxes on a whole node: containers of crun or runc, virtual machines; a strength that is demanded is kept or refused."""

import asyncio
import json

import msgspec
import pytest

from hekla.api.agents import Sandbox
from hekla.api.agents.names import MIN_ISOLATION, RESTORE_FROM
from hekla.api.agents.node_contract import Checkpoint, Claimed
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.app.first_objects import first_objects
from hekla.sandbox.sandbox_pod import pod_document
from hekla.wire.client import HttpClient
from hekla.wire.server import Server

CONTAINER = {"name": "main", "image": "code-interpreter"}
TOKEN = "secret"
BOOT_PATIENCE_S = 240.0
"""The first machine of a node boots, emulated, on a machine that may be busy."""


class Door:
    """The node's endpoint over HTTP, asked as the gateway asks."""

    def __init__(self, client, port):
        self._client, self._url = client, f"http://127.0.0.1:{port}"

    async def ask(self, method, path, body=None, *, status=200):
        kept = (("x-hekla-node-token", TOKEN), ("content-type", "application/json"))
        answer = await self._client.request(
            method, self._url + path, kept, json.dumps(body or {}).encode(), timeout_s=BOOT_PATIENCE_S
        )
        assert answer.status == status, answer.body
        return answer.body

    async def claim(self, pod, session):
        return msgspec.json.decode(
            await self.ask("POST", f"/sandboxes/default/{pod}/claim", {"session": session}), type=Claimed
        )

    async def run(self, pod, script):
        asked = {"command": ["sh", "-c", script]}
        body = json.loads(await self.ask("POST", f"/sandboxes/default/{pod}/ports/0/api/execute", asked))
        assert body["exit_code"] == 0, body
        return body["stdout"]


async def at_last_running(cluster, name):
    async with asyncio.timeout(BOOT_PATIENCE_S):
        while (await cluster.client.get(Pod, name, "default")).status.phase != "Running":
            await asyncio.sleep(0.1)


def living(live, runtime_class, story):
    async def with_door(cluster):
        runtime = cluster.agent.sandbox_runtimes[runtime_class]
        if runtime.refusal:
            pytest.skip(runtime.refusal)
        wire, client = Server(), HttpClient()
        await wire.start(cluster.endpoint.handle, host="127.0.0.1", port=0)
        try:
            await story(cluster, Door(client, wire.port))
        finally:
            await client.close()
            await wire.stop()

    live(with_door)


def test_a_pod_of_class_oci_serves_a_session_as_any_sandbox_does(live):
    async def story(cluster, door):
        await cluster.apply("box", {"runtimeClassName": "oci", "containers": [CONTAINER]})
        await cluster.running("box")
        assert not (await door.claim("box", "s-1")).was_claimed
        assert await door.run("box", "hostname; id -un; pwd") == "box\nuser\n/workspace\n"
        await door.ask("POST", "/sandboxes/default/box/freeze")
        await door.ask("POST", "/sandboxes/default/box/thaw")
        assert await door.run("box", "echo goes on") == "goes on\n"

    living(live, "oci", story)


def test_a_node_says_by_labels_which_classes_run_there(live):
    async def story(cluster, door):
        node = await cluster.client.get(Node, "n0")
        for name, runtime in cluster.agent.sandbox_runtimes.items():
            assert (node.metadata.labels.get(f"hekla.dev/runtime.{name}") == "true") == (not runtime.refusal)
        condition = next(each for each in node.status.conditions if each.type == "Sandboxes")
        assert "runtime class gvisor are" in condition.message

    living(live, "sandbox", story)


def test_a_strength_that_a_class_does_not_have_is_refused_with_a_sentence(live):
    async def story(cluster, door):
        pod = {"runtimeClassName": "oci", "containers": [CONTAINER]}
        await cluster.apply("box", pod, annotations={MIN_ISOLATION: "virtual-machine"})
        ended = await cluster.ended("box")
        assert (ended.status.reason, ended.status.phase) == ("Isolation", "Failed")
        assert 'runtime "oci" of this node has "shared-kernel"' in ended.status.message

    living(live, "oci", story)


@pytest.mark.parametrize(
    ("demanded", "runtime_class"),
    [("", "sandbox"), ("shared-kernel", "sandbox"), ("user-kernel", "gvisor"), ("virtual-machine", "microvm")],
)
def test_a_sandbox_that_demands_a_strength_gets_the_class_that_has_it(demanded, runtime_class):
    document = {"metadata": {"name": "s", "namespace": "default", "uid": "u", "annotations": {MIN_ISOLATION: demanded}}}
    sandbox = msgspec.convert({**document, "spec": {"podTemplate": {"spec": {"containers": [CONTAINER]}}}}, Sandbox)
    assert pod_document(sandbox, has_runtime=True)["spec"]["runtimeClassName"] == runtime_class


def test_classes_that_not_every_host_has_select_their_nodes():
    documents = {
        document["metadata"]["name"]: document
        for wave in first_objects()
        for path, document in wave
        if path.endswith("/runtimeclasses")
    }
    for name in ("oci", "gvisor", "microvm"):
        assert documents[name]["scheduling"]["nodeSelector"] == {f"hekla.dev/runtime.{name}": "true"}


@pytest.mark.slow
def test_a_machine_sleeps_in_a_checkpoint_and_goes_on_in_another_pod(live):
    async def story(cluster, door):
        machine = {"runtimeClassName": "microvm", "containers": [CONTAINER]}
        await cluster.apply("box", machine)
        await at_last_running(cluster, "box")
        await door.claim("box", "s-1")
        counting = "(i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.2; done) >/dev/null 2>&1 &"
        await door.run("box", f"{counting} until [ -s /tmp/n ]; do sleep 0.1; done")
        order = {"checkpoint": "c1", "kind": "memory"}
        told = await door.ask("POST", "/sandboxes/default/box/checkpoint", order)
        assert msgspec.json.decode(told, type=Checkpoint).size_bytes > 1 << 20
        await cluster.apply("again", machine, annotations={RESTORE_FROM: "c1"})
        await at_last_running(cluster, "again")
        await door.claim("again", "s-2")
        async with asyncio.timeout(BOOT_PATIENCE_S):
            first = await door.run("again", "cat /tmp/n")
            while await door.run("again", "cat /tmp/n") == first:
                pass

    living(live, "microvm", story)
