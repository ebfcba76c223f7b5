"""A node in a cluster of somebody else: what it follows, whom it takes, what it tells, how API servers and their clients reach it."""

import asyncio
import contextlib
import ssl
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace

import msgspec
import pytest

from hekla.api.agents.node_contract import NODE_AUTHORITY
from hekla.api.coordination import Lease
from hekla.api.core import ConfigMap, PersistentVolumeClaim, Secret, Service
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.apiserver.auth import pki
from hekla.app.node_serving import node_serving
from hekla.kube.client import PatchType
from hekla.kube.clock import SystemClock
from hekla.kube.errors import ApiError, NotFoundError, TransportError
from hekla.kube.informer import Informer
from hekla.node.addresses import NOWHERE, nowhere
from hekla.node.admission import uninvited
from hekla.node.callers import Callers
from hekla.node.endpoint import NodeEndpoint
from hekla.node.objects import SECRET_S, Objects
from hekla.node.registration import NodeTakenError, Registrar, Standing, VirtualNode, status_document
from hekla.sandbox.cluster_link import ClusterLink, NodeAddress
from hekla.sandbox.link import LinkError, SandboxGoneError, UnansweredError
from hekla.testing import virtual_time
from hekla.wire.client import HttpClient
from hekla.wire.messages import Request, Response

TAINTS = [{"key": "hekla.dev/node", "effect": "NoSchedule"}]


def pod(**spec):
    return msgspec.convert({"spec": {"containers": [{"name": "c"}], **spec}}, Pod)


@pytest.mark.parametrize(
    ("spec", "is_taken"),
    [
        ({}, False),
        ({"tolerations": [{"operator": "Exists"}]}, False),  # a DaemonSet that is part of every machine
        ({"tolerations": [{"key": "hekla.dev/node", "operator": "Exists"}]}, True),
        ({"runtimeClassName": "sandbox"}, True),
        ({"runtimeClassName": "kata"}, False),
    ],
)
def test_a_guest_takes_only_pods_that_asked_for_it(spec, is_taken):
    refusal = uninvited(pod(**spec), TAINTS, {"process", "sandbox"})
    assert (refusal is None) == is_taken
    assert uninvited(pod(**spec), (), {"process"}) is None  # without a taint everybody may come


def test_a_guest_follows_its_own_pods_alone_and_asks_for_what_they_name(live):
    async def story(cluster):
        await cluster.config_map("conf", colour="blue")
        await cluster.client.create(Secret, {"metadata": {"name": "sec"}, "stringData": {"pw": "hidden"}}, "default")
        key = {"valueFrom": {"configMapKeyRef": {"name": "conf", "key": "colour"}}}
        main = {
            "name": "main", "image": "busybox", "command": ["sh", "-c", "echo $COLOUR $(cat /sec/pw)"],
            "env": [{"name": "COLOUR", **key}], "volumeMounts": [{"name": "sec", "mountPath": "/sec"}],
        }  # fmt: skip
        volumes = [{"name": "sec", "secret": {"secretName": "sec"}}]
        ended, log = await cluster.run("reads", {"containers": [main], "volumes": volumes})
        assert (ended.status.phase, log) == ("Succeeded", "blue hidden\n")
        assert not cluster.agent._objects.secrets.is_synced  # nobody's Secrets are followed
        followed = {kind for kind, *_ in cluster.informers._informers}
        assert not followed & {Secret, ConfigMap, PersistentVolumeClaim}
        # what only pretends to run needs none of it
        await cluster.apply("pretends", {"containers": [{**main, "volumeMounts": []}]}, node="s0")
        await cluster.client.delete(ConfigMap, "conf", "default")
        assert (await cluster.running("pretends")).status.phase == "Running"

    live(story, is_guest=True)


def test_a_secret_that_each_request_of_a_sandbox_asks_for_is_asked_for_once_in_a_while():
    """The egress broker adds it to every request; and an API server that is away is no reason to say that there is no such key."""
    asked, answers = [], []

    class Server:
        async def get(self, kind, name, namespace):
            asked.append((namespace, name))
            await asyncio.sleep(0.1)
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    nobody = SimpleNamespace(prefers_watch_list=False)
    shelves = SimpleNamespace(client=nobody, of=lambda kind, **_: Informer(nobody, kind))
    objects = Objects(shelves, Server(), None, token_source=None, api_address=("", 0), guests=["n"])
    first, second = Secret(), Secret()

    async def story():
        answers.extend([first, TransportError("away"), second, ApiError(403, "Forbidden", "no relationship found")])
        assert await asyncio.gather(*(objects.secret("d", "s") for _ in range(9))) == [first] * 9
        assert await objects.secret("d", "s") is first
        assert len(asked) == 1
        await asyncio.sleep(SECRET_S)
        with pytest.raises(TransportError):
            await objects.secret("d", "s")
        assert await objects.secret("d", "s") is second  # what failed is asked again at once
        assert await objects.secret("d", "other") is None
        assert len(asked) == 4

    virtual_time.run(story())


def test_a_pod_reads_no_credential_of_its_node_by_no_way(live, tmp_path):
    """Whoever has the account's token may ask to be any node, and read what every pod of the cluster mounts."""
    kept = tmp_path / "etc"
    (kept / "serviceaccount").mkdir(parents=True)
    for name in ("node.kubeconfig", "serviceaccount/token", "plain"):
        (kept / name).write_text(f"said-{name}\n")

    async def story(cluster):
        script = f"cat {kept}/node.kubeconfig {kept}/serviceaccount/token /v/node.kubeconfig /v/serviceaccount/token; cat /v/plain"
        main = {
            "name": "main", "image": "b", "command": ["sh", "-c", script], "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
            "securityContext": {"readOnlyRootFilesystem": True},
        }  # fmt: skip
        volumes = [{"name": "v", "hostPath": {"path": str(kept)}}]
        _, log = await cluster.run("reads", {"containers": [main], "volumes": volumes})
        if cluster.agent.runtimes["process"].isolation.rung.has_mounts:
            assert [line for line in log.splitlines() if line.startswith("said")] == ["said-plain"]
        volumes = [{"name": "v", "hostPath": {"path": str(kept / "serviceaccount")}}]
        await cluster.apply("asks", {"containers": [main], "volumes": volumes})
        assert "is the node agent's own; no pod may mount it" in await cluster.event("FailedMount")

    live(story, is_guest=True, hidden=(kept / "node.kubeconfig", kept / "serviceaccount"))


def test_a_guest_tells_no_address_that_only_its_machine_reaches(live):
    """API servers refuse the whole slice of a Service in which one stands; and a Sandbox whose pod has none is never ready."""

    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000")
        running = await cluster.running("p")
        assert ip_address(running.status.pod_ip) in NOWHERE
        assert [one.ip for one in running.status.pod_ips] == [running.status.pod_ip] == [nowhere(running.metadata.uid)]
        assert cluster.agent.find("default", "p").record.pod_ip.startswith("127.")
        await cluster.apply(
            "host", {"containers": [{"name": "c", "image": "b", "command": ["sleep", "9"]}], "hostNetwork": True}
        )
        assert (await cluster.running("host")).status.pod_ip == "127.0.0.1"  # the node's own is everybody's to reach

    live(story, is_guest=True)


def test_a_node_that_has_moved_tells_its_new_address_alone(live):
    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000", node="elsewhere")
        told = {"status": {"hostIP": "10.9.9.9", "hostIPs": [{"ip": "10.9.9.9"}]}}
        await cluster.client.patch(Pod, "p", told, "default", patch_type=PatchType.STRATEGIC, subresource="status")
        bound = await cluster.client.get(Pod, "p", "default")
        ours = msgspec.structs.replace(bound.spec, node_name="n0")
        cluster.agent._take_up(msgspec.structs.replace(bound, spec=ours))
        moved = await cluster.until("p", lambda one: one.status.host_ip == "127.0.0.1")
        assert [one.ip for one in moved.status.host_ips] == ["127.0.0.1"]

    live(story)


def test_a_node_with_an_endpoint_is_known_by_its_address_and_not_by_a_name_that_nobody_resolves():
    standing, now = Standing(rung="r", isolation="", limits=""), SystemClock().now()
    node = VirtualNode(name="n", capacity={}, address="10.0.0.7", endpoint_port=10260)
    told = status_document(node, standing, now, now)
    assert told["addresses"] == [{"type": "InternalIP", "address": "10.0.0.7"}]


def test_the_name_of_somebody_elses_node_is_not_taken_nor_are_its_pods(live, tmp_path):
    """A name that is a machine's by mistake would show our capacity as its own, and start its pods as processes here."""

    async def story(cluster):
        theirs = {"metadata": {"name": "worker-1", "labels": {"a": "b"}}}
        await cluster.client.create(Node, theirs)
        info = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0"}}}
        await cluster.client.patch(Node, "worker-1", info, patch_type=PatchType.STRATEGIC, subresource="status")
        before = await cluster.client.get(Node, "worker-1")
        ours, standing = VirtualNode(name="worker-1", capacity={}), Standing(rung="r", isolation="", limits="")
        registrar = Registrar(cluster.client, SystemClock(), {"worker-1": ours}, lambda _: standing)
        with pytest.RaisesGroup(pytest.RaisesExc(NodeTakenError, match='node "worker-1" is another agent\'s already')):
            await registrar.register()
        assert await cluster.client.get(Node, "worker-1") == before
        with pytest.raises(NotFoundError):
            await cluster.client.get(Lease, "worker-1", "kube-node-lease")
        # one that nobody has spoken for is taken: our own life may have been cut short there
        await cluster.client.create(Node, {"metadata": {"name": "w2"}})
        other = replace(ours, name="w2")
        await Registrar(cluster.client, SystemClock(), {"w2": other}, lambda _: standing).register()

    live(story, is_guest=True)


def test_a_pod_that_began_elsewhere_and_never_asked_for_a_guest_is_refused(live):
    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000", node="elsewhere")
        told = {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}
        await cluster.client.patch(Pod, "p", told, "default", patch_type=PatchType.STRATEGIC, subresource="status")
        bound = await cluster.client.get(Pod, "p", "default")
        [taken] = [one for one in cluster.agent._nodes.values() if one.name == "n0"]
        cluster.agent._nodes["n0"] = replace(taken, taints=TAINTS)
        cluster.agent._take_up(msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_name="n0")))
        ended = await cluster.ended("p")
        assert (ended.status.phase, ended.status.reason) == ("Failed", "TaintToleration")

    live(story, is_guest=True)


def test_a_guest_that_takes_sandboxes_runs_no_process_of_its_machine(live):
    async def story(cluster):
        await cluster.apply("p", "exec sleep 1000")
        ended = await cluster.ended("p")
        assert (ended.status.phase, ended.status.reason) == ("Failed", "ProcessesNotAllowed")
        assert "would be a process of the machine" in ended.status.message
        await cluster.apply("pretends", "exec sleep 1000", node="s0")
        await cluster.running("pretends")

    live(story, is_guest=True, takes_processes=False)


def test_at_the_end_a_node_says_that_it_is_not_ready(live):
    async def story(cluster):
        await cluster.agent.say_goodbye("the node agent has ended")
        node = await cluster.client.get(Node, "n0")
        ready = {one.type: (one.status, one.reason) for one in node.status.conditions}["Ready"]
        assert ready == ("False", "KubeletNotReady")

    live(story, is_guest=True)


def test_or_it_goes_by_the_word_of_who_may_and_does_not_come_back(live):
    async def story(cluster):
        await cluster.agent.say_goodbye("the node agent has ended", cluster.client)
        await cluster.agent.registrar._all(["n0", "s0"], cluster.agent.registrar._renew)  # was on its way
        assert (await cluster.client.list(Node)).items == []

    live(story, is_guest=True)


def test_a_node_that_is_said_not_to_be_ready_or_deleted_says_that_it_lives(live):
    """Controllers say so when leases ran out while the API server was away; a kubelet corrects them within seconds."""

    async def story(cluster):
        async def ready(wanted):
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(NotFoundError):
                        node = await cluster.client.get(Node, "n0")
                        if any((one.type, one.status) == ("Ready", wanted) for one in node.status.conditions):
                            return
                    await asyncio.sleep(0.01)

        lost = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "",
            "lastTransitionTime": None,
        }
        told = {"status": {"conditions": [lost]}}
        await cluster.client.patch(Node, "n0", told, patch_type=PatchType.STRATEGIC, subresource="status")
        await ready("True")
        await cluster.client.delete(Node, "n0")
        await ready("True")

    live(story, is_guest=True)


class Reviewer:
    """Lets in whom it is told to."""

    def __init__(self, name):
        self.name, self.asked = name, []

    async def request(self, method, path, document):
        self.asked.append((document["kind"], document["spec"].get("user")))
        return {"status": {"allowed": document["spec"].get("user") == self.name, "authenticated": False}}


def test_a_certificate_that_somebody_keeps_is_shown_and_gateways_believe_it_without_its_authority(tmp_path):
    keys = pki.ensure_pki(tmp_path / "pki", pki.utc_now(), ("127.0.0.1",))
    given = (keys.server.certificate, keys.server.key)

    async def story():
        door = node_serving(host="127.0.0.1", port=0, address="127.0.0.1", clock=SystemClock(), given=given)
        async with door as serving:
            nobody = SimpleNamespace(prefers_watch_list=False)
            link = ClusterLink(SimpleNamespace(of=lambda kind: Informer(nobody, kind)), lambda: "token")
            address = NodeAddress("n", "127.0.0.1", serving.port, serving.annotations[NODE_AUTHORITY])
            assert (await link._ask(address, "GET", "/healthz", b""))[0] == 503  # no agent stands behind it
            by_authority = ssl.create_default_context(cadata=keys.authority.certificate.read_text())
            web = HttpClient(ssl_context=by_authority)
            assert (await web.request("GET", f"https://127.0.0.1:{serving.port}/healthz", (), b"", 30)).status == 503
            await web.close()
            await link.close()

    asyncio.run(story())


def test_a_checkpoint_is_looked_for_on_every_node():
    """It lies where its sandbox was."""

    class Nodes(ClusterLink):
        NEVER = object()
        answers = {"n1": (404, b""), "n2": (200, b"{}")}

        def _addresses(self):
            return [NodeAddress(name, "127.0.0.1", 1, "x") for name in self.answers]

        async def _ask(self, address, method, path, body):
            assert (method, path) == ("GET", "/checkpoints/c-1")
            if self.answers[address.name] is self.NEVER:
                await asyncio.Event().wait()
            if self.answers[address.name] is None:
                raise UnansweredError(f'node "{address.name}" does not answer')
            return self.answers[address.name]

    async def story():
        nobody = SimpleNamespace(prefers_watch_list=False)
        link = Nodes(SimpleNamespace(of=lambda kind: Informer(nobody, kind)), lambda: "token")
        assert await link.node_of("c-1") == "n2"
        link.answers = {"n1": None, "n2": (200, b"{}")}
        assert await link.node_of("c-1") == "n2"
        link.answers = {"n1": (404, b""), "n2": (404, b"")}
        with pytest.raises(SandboxGoneError, match=r'checkpoint "c-1" is on no node'):
            await link.node_of("c-1")
        link.answers = {"n1": None, "n2": (404, b"")}
        with pytest.raises(UnansweredError, match='node "n1" does not answer'):
            await link.node_of("c-1")
        link.answers = {"n1": (503, b"who calls cannot be asked"), "n2": (404, b"")}
        with pytest.raises(UnansweredError, match='node "n1" answered 503'):
            await link.node_of("c-1")
        link.answers = {"n1": Nodes.NEVER, "n2": (200, b"{}")}
        assert await link.node_of("c-1") == "n2", "one that is switched off keeps nobody waiting"

    asyncio.run(story())


def test_a_checkpoint_is_looked_for_where_its_row_says_and_elsewhere_only_if_it_is_not_there():
    """At each wake every node was asked; and all, those switched off as well, before a used up one was forgotten."""

    class Nodes(ClusterLink):
        NEVER = object()

        def __init__(self, **answers):
            nobody = SimpleNamespace(prefers_watch_list=False)
            super().__init__(SimpleNamespace(of=lambda kind: Informer(nobody, kind)), lambda: "token")
            self.answers, self.asked = answers, []

        def _addresses(self):
            return [NodeAddress(name, "127.0.0.1", 1, "x") for name in self.answers]

        async def _ask(self, address, method, path, body):
            self.asked.append(address.name)
            if self.answers[address.name] is self.NEVER:
                await asyncio.Event().wait()
            return self.answers[address.name], b""

    async def story():
        link = Nodes(n1=404, n2=200, n3=Nodes.NEVER)
        assert (await link.node_of("c-1", "n2"), link.asked) == ("n2", ["n2"])
        link = Nodes(n1=404, n2=200, n3=Nodes.NEVER)
        assert (await link.node_of("c-1", "n1"), link.asked) == ("n2", ["n1", "n2", "n3"])
        link = Nodes(n1=404, n2=200, n3=Nodes.NEVER)
        assert (await link.node_of("c-1", "n3"), link.asked) == ("n2", ["n3", "n1", "n2"])
        link = Nodes(n1=404, n2=200)
        assert await link.node_of("c-1", "one that is gone") == "n2"
        link = Nodes(n1=404, n2=204, n3=Nodes.NEVER)
        await link.drop_checkpoint("c-1", "n2")
        assert link.asked == ["n2"]
        await link.drop_checkpoint("c-1", "n1")
        assert link.asked == ["n2", "n1", "n2", "n3"]
        link = Nodes(n1=404, n2=503)
        with pytest.raises(LinkError, match='node "n2" answered 503'):
            await link.drop_checkpoint("c-1", "n1")
        await Nodes(n1=404, n2=404).drop_checkpoint("c-1", "n1")

    virtual_time.run(story())


def test_a_checkpoint_on_an_agent_of_several_nodes_is_on_any_of_them():
    class Nodes(ClusterLink):
        async def _ask(self, address, method, path, body):
            return 200, b"{}"

    async def story():
        informer = Informer(SimpleNamespace(prefers_watch_list=False), Node)
        for name in ("n1", "n2"):
            where = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
            }
            informer.cache.put(
                msgspec.convert(
                    {"metadata": {"name": name, "annotations": {NODE_AUTHORITY: "x"}}, "status": where}, Node
                )
            )
        link = Nodes(SimpleNamespace(of=lambda kind: informer), lambda: "token")
        assert await link.node_of("c-1") == ""

    asyncio.run(story())


def test_a_checkpoint_that_is_not_where_its_row_says_is_forgotten_beside_a_node_that_is_not_ready():
    """A snapshot whose checkpoint was lost could not be deleted for as long as any registered node was switched off."""

    class Nodes(ClusterLink):
        answers = {"n1": 404}

        async def _ask(self, address, method, path, body):
            if address.name not in self.answers:
                raise UnansweredError(f'node "{address.name}" does not answer')
            return self.answers[address.name], b""

    async def story():
        informer = Informer(SimpleNamespace(prefers_watch_list=False), Node)

        def there(name, ready):
            status = {
                "addresses": [{"type": "InternalIP", "address": f"127.0.0.{name[1]}"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
                "conditions": [{"type": "Ready", "status": ready}],
            }
            metadata = {"name": name, "annotations": {NODE_AUTHORITY: "x"}}
            informer.cache.put(msgspec.convert({"metadata": metadata, "status": status}, Node))

        there("n1", "True")
        there("n2", "Unknown")
        link = Nodes(SimpleNamespace(of=lambda kind: informer), lambda: "token")
        await link.drop_checkpoint("c-1", "n1")
        for likely in ("", "n2"):  # it may lie there
            with pytest.raises(UnansweredError, match='node "n2" does not answer'):
                await link.drop_checkpoint("c-1", likely)
        there("n2", "True")
        with pytest.raises(UnansweredError, match='node "n2" does not answer'):
            await link.drop_checkpoint("c-1", "n1")

    asyncio.run(story())


def test_api_servers_are_let_in_by_their_certificate_and_speak_as_to_a_kubelet(live, tmp_path):
    """Whoever shows none is nobody; who shows one that is not allowed is refused; parameters are a kubelet's: `output`, not `stdout`."""
    keys = pki.ensure_pki(tmp_path / "pki", pki.utc_now(), ("127.0.0.1",))
    believed, shown = keys.authority.certificate.read_text(), keys.admin

    async def story(cluster):
        await cluster.apply("p", "echo said; exec sleep 1000")
        await cluster.running("p")
        reviewer = Reviewer("kubernetes-admin")
        endpoint = NodeEndpoint(cluster.agent, callers=Callers(reviewer, asyncio.get_running_loop().time))
        door = node_serving(host="127.0.0.1", port=0, address="127.0.0.1", clock=SystemClock(), believed=believed)
        async with door as serving:
            serving.handler = endpoint.handle

            async def ask(path, *, is_shown=True):
                context = ssl.create_default_context(cadata=serving.certificates.authorities.decode())
                if is_shown:
                    context.load_cert_chain(shown.certificate, shown.key)
                web = HttpClient(ssl_context=context)
                try:
                    answer = await web.request("GET", f"https://127.0.0.1:{serving.port}{path}", (), b"", 30)
                    return answer.status, answer.body
                finally:
                    await web.close()

            assert await ask("/containerLogs/default/p/main") == (200, b"said\n")
            status, body = await ask("/pods")
            assert [one["metadata"]["name"] for one in msgspec.json.decode(body)["items"]] == ["p"]
            # the API server puts the text into a Status of its own
            status, body = await ask("/containerLogs/default/p/other")
            assert (status, body) == (400, b"container other is not valid for pod p")
            assert (await ask("/pods", is_shown=False))[0] == 401
            reviewer.name = "somebody else"
            endpoint._callers = Callers(reviewer, asyncio.get_running_loop().time)
            assert (await ask("/pods"))[0] == 401
        asked = Request("POST", "/exec/default/p/main?command=true&output=1", {"upgrade": "SPDY/3.1"})
        assert not isinstance(await endpoint._answer("exec", "default", "p", asked), Response)
        await endpoint.close()

    live(story)


def test_members_of_a_headless_service_meet_on_one_guest(live):
    async def story(cluster):
        spec = {"clusterIP": "None", "selector": {"app": "job"}, "publishNotReadyAddresses": True}
        await cluster.client.create(
            Service, {"metadata": {"name": "job"}, "spec": spec | {"ports": [{"port": 80}]}}, "default"
        )
        main = {"name": "main", "image": "b", "command": ["sleep", "1000"]}
        for name in ("w0", "w1"):
            hosted = {"hostname": name, "subdomain": "job", "containers": [main]}
            await cluster.apply(name, hosted, labels={"app": "job"})
            await cluster.running(name)
        own, other = (cluster.agent.find("default", name) for name in ("w0", "w1"))
        async with asyncio.timeout(30):
            while f"{other.record.pod_ip}\tw1.job" not in own.hosts_file.read_text():
                await asyncio.sleep(0.01)
        assert "100::" not in own.hosts_file.read_text()

    live(story, is_guest=True)
