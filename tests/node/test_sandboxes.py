"""A pod of runtime class `sandbox` on a whole node: the node's door reaches its daemon and its servers, and what would open the host is refused."""

import asyncio
import json
import os

import msgspec
import pytest

from hekla.api.agents.node_contract import Checkpoint, Claimed, Forked, SandboxState, Usage
from hekla.api.nodes import Node
from hekla.wire.client import HttpClient
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

CONTAINER = {"name": "main", "image": "code-interpreter"}
SANDBOX = {"runtimeClassName": "sandbox", "containers": [CONTAINER]}
TOKEN = "secret"


class Door:
    """The node's endpoint over HTTP, asked as the gateway asks."""

    def __init__(self, client, port):
        self._client, self._url = client, f"http://127.0.0.1:{port}"

    async def ask(self, method, path, body=None, headers=(), *, status=200):
        data = b"" if body is None else json.dumps(body).encode()
        kept = (("x-hekla-node-token", TOKEN), ("content-type", "application/json"), *headers)
        answer = await self._client.request(method, self._url + path, kept, data)
        assert answer.status == status, answer.body
        return answer.body

    async def claim(self, pod, session="s-1", **more):
        body = await self.ask("POST", f"/sandboxes/default/{pod}/claim", {"session": session, **more})
        return msgspec.json.decode(body, type=Claimed)

    async def run(self, pod, script):
        """A shell command by AgentCube's dialect: what it printed."""
        asked = {"command": ["sh", "-c", script]}
        body = json.loads(await self.ask("POST", f"/sandboxes/default/{pod}/ports/0/api/execute", asked))
        assert body["exit_code"] == 0, body
        return body["stdout"]

    async def cell(self, pod, code, context=""):
        """Python in an interpreter context: what it printed."""
        asked = {"code": code, **({"context_id": context} if context else {})}
        body = await self.ask("POST", f"/sandboxes/default/{pod}/ports/49999/execute", asked)
        told = [json.loads(line) for line in body.splitlines()]
        assert not [one for one in told if one["type"] == "error"], told
        return "".join(one["text"] for one in told if one["type"] == "stdout")


@pytest.fixture
def told(live):
    """Live a story with a cluster and its node's door."""

    def told(story):
        async def with_door(cluster):
            runtime = cluster.agent.sandbox_runtimes["sandbox"]
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

    return told


def test_a_pod_without_a_command_runs_its_daemon_and_a_session_claims_it(told):
    async def story(cluster, door):
        await cluster.apply("box", SANDBOX)
        await cluster.running("box")
        await door.ask("POST", "/sandboxes/default/box/ports/0/api/execute", {"command": ["true"]}, status=503)
        claimed = await door.claim("box", env={"COLOUR": "red"}, hostname="mine", tokenKey="ab" * 32)
        assert (claimed.was_claimed, claimed.takes_key) == (False, True)
        assert await door.run("box", "echo $COLOUR; hostname; id -un") == "red\nmine\nuser\n"
        again = await door.claim("box", tokenKey="cd" * 32)  # whose secret it does not take
        assert (again.was_claimed, again.takes_key) == (True, False)
        await door.ask("POST", "/sandboxes/default/box/claim", {"session": "s-2"}, status=409)
        await cluster.client.delete(type(await cluster.running("box")), "box", "default", grace_s=0)
        await cluster.gone("box")
        await door.ask("POST", "/sandboxes/default/box/claim", {"session": "s-1"}, status=404)

    told(story)


def test_a_sandbox_without_a_command_has_nothing_on_the_nodes_disk_and_an_empty_log(told):
    async def story(cluster, door):
        def kept(pod):
            found = os.walk(cluster.directory)  # what goes meanwhile is passed over
            return [
                name for path, folders, files in found for name in (path, *folders, *files) if pod.metadata.uid in path
            ]

        await cluster.apply("bare", SANDBOX)
        bare = await cluster.running("bare")
        assert kept(bare) == []
        assert await cluster.log("bare") == ""
        volumes = {"volumes": [{"name": "work", "emptyDir": {}}]}
        mounts = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
        shell = {"command": ["sh", "-c", "echo hello; sleep 1000"]}
        await cluster.apply("full", {**SANDBOX, **volumes, "containers": [{**CONTAINER, **mounts, **shell}]})
        full = await cluster.running("full")
        async with asyncio.timeout(30):
            while await cluster.log("full") != "hello\n":
                await asyncio.sleep(0.01)
        assert {"work", "0.log"} <= set(kept(full))
        for pod in (bare, full):
            await cluster.client.delete(type(pod), pod.metadata.name, "default", grace_s=0)
            await cluster.gone(pod.metadata.name)
        async with asyncio.timeout(30):
            while kept(full):
                await asyncio.sleep(0.01)

    told(story)


def test_servers_inside_are_reached_through_the_node_and_by_websocket(told):
    async def story(cluster, door):
        await cluster.apply("box", SANDBOX)
        await cluster.running("box")
        await door.claim("box")
        server = "cd /tmp && echo hello > f && nohup python3 -m http.server 8000 >/dev/null 2>&1 &"
        await door.run("box", server)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await door.ask("GET", "/sandboxes/default/box/ports/8000/f?x=1") == b"hello\n"
                    break
                except AssertionError:
                    await asyncio.sleep(0.05)
        refusal = json.loads(await door.ask("GET", "/sandboxes/default/box/ports/8001/f", status=502))
        assert "nothing listens on port 8001" in refusal["message"]

    told(story)


def test_a_frozen_sandbox_stands_still_and_says_so(told):
    async def story(cluster, door):
        await cluster.apply("box", SANDBOX)
        await cluster.running("box")
        await door.claim("box")
        state = msgspec.json.decode(await door.ask("POST", "/sandboxes/default/box/freeze"), type=SandboxState)
        assert state.is_frozen
        await door.ask("GET", f"/sandboxes/default/box/ports/{'1' * 5000}/health", status=422)
        refusal = json.loads(await door.ask("GET", "/sandboxes/default/box/ports/0/health", status=409))
        assert "frozen" in refusal["message"]
        state = msgspec.json.decode(
            await door.ask("POST", "/sandboxes/default/box/thaw", {"order": 3}), type=SandboxState
        )
        assert not state.is_frozen
        refusal = json.loads(await door.ask("POST", "/sandboxes/default/box/freeze", {"order": 2}, status=409))
        assert "order 2 comes too late" in refusal["message"]
        # some work: without control groups processor time is counted in hundredths of a second
        assert await door.run("box", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo again") == "again\n"
        usage = msgspec.json.decode(await door.ask("GET", "/sandboxes/default/box/usage"), type=Usage)
        assert usage.frozen_s > 0
        assert usage.cpu_us > 0

    told(story)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"hostNetwork": True}, "SandboxNotAllowed", "hostNetwork"),
        ({"hostPID": True}, "SandboxNotAllowed", "hostPID"),
        ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "SandboxNotAllowed", "hostPath"),
        ({"containers": [CONTAINER | {"securityContext": {"privileged": True}}]}, "SandboxNotAllowed", "privileged"),
        ({"containers": [CONTAINER, CONTAINER | {"name": "two"}]}, "SandboxNotAllowed", "2 containers"),
    ],
)
def test_what_would_open_the_host_is_refused_with_a_sentence(told, change, reason, words):
    async def story(cluster, door):
        await cluster.apply("box", SANDBOX | change)
        pod = await cluster.ended("box")
        assert (pod.status.phase, pod.status.reason) == ("Failed", reason)
        assert words in pod.status.message

    told(story)


def test_a_demand_for_more_isolation_than_the_node_has_is_refused(told):
    async def story(cluster, door):
        await cluster.apply("box", SANDBOX, annotations={"hekla.dev/min-isolation": "virtual-machine"})
        pod = await cluster.ended("box")
        assert pod.status.reason == "Isolation"
        assert 'demands isolation "virtual-machine"' in pod.status.message
        node = await cluster.client.get(Node, "n0")
        assert node.metadata.labels["hekla.dev/isolation.shared-kernel"] == "true"
        offered = {each.isolation for each in cluster.agent.sandbox_runtimes.values() if not each.refusal}
        has_label = "hekla.dev/isolation.virtual-machine" in node.metadata.labels
        assert has_label is ("virtual-machine" in offered)  # another runtime of this machine may make them
        assert node.metadata.annotations["hekla.dev/sandbox-runtimes"].startswith("sandbox=shared-kernel:")

    told(story)


def test_without_the_nodes_token_nothing_is_answered(told):
    async def story(cluster, door):
        request = Request("POST", "/sandboxes/default/box/claim", {"authorization": "Bearer guessed"}, b"{}")
        answer = await cluster.endpoint.handle(request)
        assert isinstance(answer, Response)
        assert answer.status == 401

    told(story)


def test_a_fork_goes_on_with_files_and_variables_and_shares_no_secret(told):
    async def story(cluster, door):
        await cluster.apply("parent", SANDBOX)
        await cluster.running("parent")
        await door.claim("parent", session="s-parent", env={"SECRET": "of the parent"}, accessToken="")
        code = "import numpy as np, random\nclass P:\n    def __init__(self, n): self.n = n\n    def twice(self): return 2 * self.n\n"
        code += "p = P(21); q = [p, p]; f = (lambda k: lambda: k + p.n)(1); a = np.arange(3); x = open('/tmp/data', 'w'); x.write('kept'); x.flush()"
        await door.cell("parent", code)
        children = []
        for number in range(2):
            pod = await cluster.apply(f"child-{number}", SANDBOX, annotations={"hekla.dev/fork-of": "parent"})
            claim = {"session": f"s-{number}", "env": {"SECRET": str(number)}}
            children.append({"namespace": "default", "pod": f"child-{number}", "uid": pod.metadata.uid, "claim": claim})
        await cluster.running("child-0")
        await door.ask("POST", "/sandboxes/default/child-0/claim", {"session": "stranger"}, status=503)
        answer = await door.ask("POST", "/sandboxes/default/parent/fork", {"children": children})
        forked = msgspec.json.decode(answer, type=Forked)
        assert [each.error for each in forked.children] == ["", ""]
        assert len(forked.left_out) == 1
        assert " x: " in forked.left_out[0]
        seen = set()
        for number in range(2):
            code = "import os; print(p.twice(), q[0] is q[1], f(), a.sum(), open('/tmp/data').read(), os.environ['SECRET'])"
            assert await door.cell(f"child-{number}", code) == f"42 True 22 3 kept {number}\n"
            seen.add(
                await door.cell(f"child-{number}", "print(random.random(), np.random.rand(), os.urandom(8).hex())")
            )
        assert await door.cell("parent", "import os; print(p.twice(), os.environ['SECRET'])") == "42 of the parent\n"
        seen.add(await door.cell("parent", "print(random.random(), np.random.rand(), os.urandom(8).hex())"))
        assert len({value for line in seen for value in line.split()}) == 9

    told(story)


def test_nobody_changes_what_copies_are_made_of(told, monkeypatch):
    """It is one file for all children, and the parent was given it to write into."""

    async def story(cluster, door):
        await cluster.apply("parent", SANDBOX)
        await cluster.running("parent")
        await door.claim("parent")
        pod = await cluster.apply("child", SANDBOX, annotations={"hekla.dev/fork-of": "parent"})
        await cluster.running("child")
        runtime = cluster.agent.sandbox_runtimes["sandbox"]
        copy, problems = runtime.claim_as_copy, []

        async def claim_as_copy(key, source, claim):
            with open(f"/proc/self/fd/{source}", "r+b", buffering=0) as again:
                for spoil in (lambda: again.write(b"x"), lambda: again.truncate(0)):
                    with pytest.raises(PermissionError) as problem:
                        spoil()
                    problems.append(problem.value)
            return await copy(key, source, claim)

        monkeypatch.setattr(runtime, "claim_as_copy", claim_as_copy)
        child = {"namespace": "default", "pod": "child", "uid": pod.metadata.uid, "claim": {"session": "s-child"}}
        answer = await door.ask("POST", "/sandboxes/default/parent/fork", {"children": [child]})
        assert [each.error for each in msgspec.json.decode(answer, type=Forked).children] == [""]
        assert len(problems) == 2

    told(story)


def test_a_checkpoint_continues_in_another_sandbox_of_the_same_owner_only(told):
    async def story(cluster, door):
        owner = {"agentcube.io/owner": "ann"}
        await cluster.apply("box", SANDBOX, annotations=owner)
        await cluster.running("box")
        await door.claim("box")
        await door.run(
            "box",
            "mkdir -p /workspace/d; echo kept > /workspace/d/f; ln -s f /workspace/d/l; chmod 750 /workspace/d; mkfifo /tmp/p",
        )
        await door.cell("box", "n = 7")
        order = {"checkpoint": "c-1", "kind": "interpreter"}
        made = msgspec.json.decode(await door.ask("POST", "/sandboxes/default/box/checkpoint", order), type=Checkpoint)
        assert (made.owner, made.size_bytes > 0) == ("ann", True)
        assert made.left_out == ["/tmp/p: neither file, directory nor link"]
        await door.ask("POST", "/sandboxes/default/box/checkpoint", order, status=409)
        await cluster.apply("again", SANDBOX, annotations=owner | {"hekla.dev/restore-from": "c-1"})
        await cluster.running("again")
        await door.claim("again", session="s-2")
        assert await door.run("again", "cat /workspace/d/l; stat -c '%a %U' /workspace/d") == "kept\n750 user\n"
        assert await door.cell("again", "print(n)") == "7\n"
        await cluster.apply(
            "thief", SANDBOX, annotations={"agentcube.io/owner": "bob", "hekla.dev/restore-from": "c-1"}
        )
        pod = await cluster.ended("thief")
        assert 'there is no checkpoint "c-1"' in pod.status.container_statuses[0].state.terminated.message
        archive = cluster.directory / "node data" / "checkpoints" / "c-1.archive"
        data = bytearray(archive.read_bytes())
        data[100] ^= 1
        archive.write_bytes(data)
        await cluster.apply("tampered", SANDBOX, annotations=owner | {"hekla.dev/restore-from": "c-1"})
        pod = await cluster.ended("tampered")
        assert "not as it was written" in pod.status.container_statuses[0].state.terminated.message

    told(story)


def test_probes_ask_the_daemon_and_servers_inside(told):
    async def story(cluster, door):
        daemon = CONTAINER | {"readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}}
        await cluster.apply("box", SANDBOX | {"containers": [daemon]})
        serve = "cd /tmp; echo ok > up; exec python3 -m http.server 9000 --bind 127.0.0.1"
        server = CONTAINER | {
            "command": ["sh", "-c", serve],
            "readinessProbe": {"httpGet": {"path": "/up", "port": 9000}, "periodSeconds": 1},
            "startupProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1, "failureThreshold": 60},
        }
        await cluster.apply("server", SANDBOX | {"containers": [server]})
        for name in ("box", "server"):
            await cluster.until(
                name, lambda pod: any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
            )

    told(story)


def test_a_sandbox_shares_a_volume_in_memory_with_its_node(told):
    """Made after the zygote, which must see the mount yet."""

    async def story(cluster, door):
        mount = {"name": "fast", "mountPath": "/fast"}
        spec = {
            "runtimeClassName": "sandbox",
            "containers": [{**CONTAINER, "volumeMounts": [mount]}],
            "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        }
        await cluster.apply("p", spec)
        await cluster.running("p")
        await door.claim("p")
        await door.run("p", "echo here > /fast/a")
        (tracked,) = cluster.agent.pods
        assert (tracked.places["fast"] / "a").read_text() == "here\n"

    told(story)
