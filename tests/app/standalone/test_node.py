"""What `hekla run node` can be told, who it becomes, and what `hekla install --with node` grants and leads there."""

import asyncio
import base64
import fcntl
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from hekla.api.agents.node_contract import NODE_RUNTIME_LABEL
from hekla.app.standalone.certificates import renewed
from hekla.app.standalone.manifests import Installation, InstallError, files, rendered
from hekla.app.standalone.node import ASK_AGAIN_S, _Being, declared, secret_places
from hekla.app.standalone.node_identity import AGAIN_S, REQUESTS, SIGNER, NodeIdentity, end_of
from hekla.app.standalone.node_settings import NodeSettings
from hekla.app.standalone.node_surroundings import address_towards
from hekla.app.standalone.rights import rights_of
from hekla.app.standalone.settings import StandaloneSettingsError
from hekla.kube.clock import SystemClock
from hekla.kube.credentials import FixedCredentials
from hekla.kube.errors import ApiError, NotFoundError, TransportError
from hekla.kube.kubeconfig import Connection
from hekla.node.registration import Standing, node_document, node_info
from hekla.testing import virtual_time

ACCOUNT = Connection(server="https://127.0.0.1:6443", credentials=FixedCredentials("token"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"runtime": "docker"}, '--runtime is "docker"; use process or simulated'),
        ({"count": 3}, "--nodes is 3, and there is one machine to run processes on"),
        ({"count": 0}, "--nodes is 0; it must lie between 1 and 10000"),
        ({"name": "Big_One"}, '--node-name is "Big_One"'),
        ({"address": "here"}, '--node-address is "here"; write an IP address'),
        ({"cpu": "many"}, '--cpu-per-node is "many"; write a quantity such as 8 or 64Gi'),
        ({"taints": ("a=b",)}, '--node-taint is "a=b"; write KEY[=VALUE]:EFFECT'),
        ({"taints": ("a:Never",)}, "effect NoSchedule or PreferNoSchedule or NoExecute"),
        ({"labels": ("a",)}, '--node-label is "a"; write KEY=VALUE'),
        ({"identity": "root"}, '--node-identity is "root"; use node or account'),
        ({"identity": "node", "runtime": "simulated", "count": 2}, "--node-identity node is of one node"),
        ({"tls_cert": "a.pem"}, "--tls-cert and --tls-key go together"),
        (
            {"tls_cert": "/no/a.pem", "tls_key": "/no/a.key"},
            '--tls-cert is "/no/a.pem", and cannot be read: No such file',
        ),
        ({"pod_grace_s": -1.0}, "--pod-grace-s is -1; it must be 0 or more"),
        ({"listen": "10260"}, '--node-listen is "10260"; write HOST:PORT'),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(StandaloneSettingsError) as refused:
        NodeSettings(**options)
    assert sentence in str(refused.value)


def test_nodes_keep_foreign_pods_off_unless_told_otherwise(tmp_path):
    [node] = declared(NodeSettings(name="n", directory=tmp_path), "10.0.0.7")
    assert (node.name, node.address, node.runtime) == ("n", "10.0.0.7", "process")
    assert list(node.taints) == [{"key": "hekla.dev/node", "effect": "NoSchedule"}]
    assert node.labels["type"] == "virtual-kubelet"
    [open_to_all] = declared(NodeSettings(name="n", directory=tmp_path, taints=("none",)), "10.0.0.7")
    assert not open_to_all.taints


def test_what_the_account_is_known_by_is_no_pods_to_see(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").mkdir()
    Path("node.kubeconfig").write_text(
        yaml.safe_dump({"users": [{"name": "n", "user": {"tokenFile": "tokens/t", "client-key": "/etc/k/n.key"}}]})
    )
    Path("both.pem").touch()
    Path("both.key").touch()
    told = NodeSettings(name="n", directory=tmp_path / "node", tls_cert="both.pem", tls_key="both.key")
    hidden = set(map(str, secret_places("node.kubeconfig", told)))
    assert hidden == {
        "/var/run/secrets", "node.kubeconfig", "tokens/t", "/etc/k/n.key", "both.pem", "both.key",
    }  # fmt: skip


def test_daemon_sets_that_choose_machines_by_their_system_do_not_choose_a_node_that_refuses_them(tmp_path):
    """kubeadm's kube-proxy tolerates everything: a pod that is refused counts as unavailable, and stops its rollout everywhere."""
    standing = Standing(rung="r", isolation="", limits="")

    def labels(**told):
        [node] = declared(NodeSettings(name="n", directory=tmp_path, **told), "10.0.0.7")
        return node_document(node, standing)["metadata"]["labels"]

    assert not [key for key in labels() if key.endswith("kubernetes.io/os")]
    assert labels(labels=("kubernetes.io/os=linux",))["kubernetes.io/os"] == "linux"
    assert labels(runtime="simulated")["kubernetes.io/os"] == "linux"  # these refuse nobody


def test_simulated_nodes_are_many_and_as_large_as_they_are_said_to_be():
    nodes = declared(NodeSettings(name="sim", count=1000, runtime="simulated", gpus=8, cpu="128"), "10.0.0.7")
    assert (len(nodes), nodes[7].name, nodes[7].capacity["cpu"]) == (1000, "sim-00007", "128")
    assert nodes[7].capacity["nvidia.com/gpu"] == "8"


def test_the_address_of_a_node_is_the_one_that_faces_the_api_server():
    assert asyncio.run(address_towards("https://127.0.0.1:6443")) == "127.0.0.1"


def being(server):
    """A node that has begun to ask."""
    office = SimpleNamespace(connection=Connection(server="https://api.test:6443", credentials=FixedCredentials("t")))
    return _Being(office, NodeSettings(name="n"), server)


def test_an_agent_that_still_leaves_is_waited_for(tmp_path):
    """Two at a time would take one another's containers for lost."""

    async def story():
        node = being(None)
        node.told = NodeSettings(name="n", directory=tmp_path)
        with (tmp_path / "lock").open("w") as before, (tmp_path / "lock").open("w") as lock:
            fcntl.flock(before, fcntl.LOCK_EX)
            waits = asyncio.create_task(node._be_alone(lock))
            await asyncio.sleep(ASK_AGAIN_S / 2)
            assert f"another process is the node of {tmp_path}" in node.complaint
            fcntl.flock(before, fcntl.LOCK_UN)
            await waits

    virtual_time.run(story())


def test_names_that_do_not_resolve_yet_are_waited_for(monkeypatch):
    answers = [socket.gaierror(-3, "Temporary failure in name resolution"), "10.0.0.7"]

    async def facing(server):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("hekla.app.standalone.node.address_towards", facing)

    async def story():
        node = being(None)
        asked = asyncio.create_task(node._address())
        await asyncio.sleep(ASK_AGAIN_S / 2)
        assert "Temporary failure in name resolution" in node.complaint
        assert await asked == "10.0.0.7"

    virtual_time.run(story())


class Refusing:
    """An API server that answers every question so."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def request(self, method, path, document=None):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_node_may_not_ask_whom_to_believe_and_begins_with_tokens_alone():
    """NodeRestriction and the Node authorizer: no ConfigMap that none of its pods mounts."""
    server = Refusing(TransportError("away"), ApiError(403, "Forbidden", "no relationship found"))
    assert virtual_time.run(being(server)._client_authorities()) == ""
    assert virtual_time.run(being(Refusing({"data": {"client-ca-file": "pem"}}))._client_authorities()) == "pem"


class Signing:
    """An API server whose controllers sign for nodes, after a while."""

    def __init__(self, user="system:serviceaccount:x:y", waits=2, refusal="", life=None):
        self.user, self.waits, self.refusal, self.asked = user, waits, refusal, []
        self.life, self.away, self.blips = life, 0, 0
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.clock, self.refused_from = SystemClock(), 1
        self.node = NotFoundError(404, "NotFound", "no such node")

    async def request(self, method, path, document=None):
        if self.away:
            self.away -= 1
            raise TransportError("away")
        if path.endswith("selfsubjectreviews"):
            return {"status": {"userInfo": {"username": self.user}}}
        if path.startswith("/api/v1/nodes/"):
            if isinstance(self.node, Exception):
                raise self.node
            return {"status": self.node}
        if method == "POST":
            assert path == REQUESTS
            self.asked.append(document["spec"])
            self.away = self.blips
            return {"metadata": {"name": f"r{len(self.asked)}"}}
        self.waits -= 1
        if self.waits >= 0:
            return {"status": {}}
        if self.refusal and (len(self.asked) == self.refused_from or 1 < self.refused_from < len(self.asked)):
            return {"status": {"conditions": [{"type": "Denied", "message": self.refusal}]}}
        request = x509.load_pem_x509_csr(base64.b64decode(self.asked[-1]["request"]))
        now = self.clock.now()
        authority = x509.load_pem_x509_certificate(renewed(None, [], now).authorities)
        made = (
            x509.CertificateBuilder().subject_name(request.subject).issuer_name(authority.subject)
            .public_key(request.public_key()).serial_number(1).not_valid_before(now)
            .not_valid_after(now + self.life if self.life else authority.not_valid_after_utc).sign(self.key, hashes.SHA256())
        )  # fmt: skip
        from cryptography.hazmat.primitives.serialization import Encoding

        return {"status": {"certificate": base64.b64encode(made.public_bytes(Encoding.PEM)).decode()}}


def test_a_node_asks_to_be_signed_for_as_kubelets_do_and_keeps_what_it_got(tmp_path):
    server = Signing()

    async def story():
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        connection = await identity.connection(ACCOUNT)
        shown = await connection.credentials.certificate()
        # the next life has it from the directory, readable by its owner alone
        again = await (
            await NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT)
        ).credentials.certificate()
        assert again.certificate.strip() == shown.certificate.strip()
        assert again.key == shown.key
        # another node's is not taken for its own
        await NodeIdentity(server, "n2", tmp_path, SystemClock()).connection(ACCOUNT)

    virtual_time.run(story())
    [first, second] = server.asked
    subject = x509.load_pem_x509_csr(base64.b64decode(first["request"])).subject.rfc4514_string()
    assert subject == "CN=system:node:n1,O=system:nodes"
    assert (first["signerName"], first["usages"]) == (SIGNER, ["digital signature", "client auth"])
    assert "n2" in x509.load_pem_x509_csr(base64.b64decode(second["request"])).subject.rfc4514_string()
    assert (tmp_path / "identity.pem").stat().st_mode & 0o077 == 0


def test_a_node_that_is_refused_says_so_and_asks_again(tmp_path):
    server = Signing(waits=0, refusal="not this one")
    seen = []

    async def story():
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        tell = identity._tell
        identity._tell = lambda why: (seen.append(why), tell(why))
        await identity.connection(ACCOUNT)
        assert identity.trouble == ""

    virtual_time.run(story())
    assert "the request r1 was refused: not this one" in seen
    assert len(server.asked) == 2


READY = [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0", "bootID": "b"}}, "is another agent's already"),
        ({"nodeInfo": {"containerRuntimeVersion": "hekla-process://1", "bootID": "b"}, "conditions": READY}, "is ready on another machine"),
        (ApiError(403, "Forbidden", "no get"), "let the account get nodes"),
    ],
    ids=["a kubelet's", "another machine's", "nobody's to know"],
)  # fmt: skip
def test_nothing_is_signed_for_a_node_that_is_somebody_elses(tmp_path, found, why):
    """With the certificate of a machine by mistake its pods' Secrets could be read, until the registrar saw whose it is."""
    server = Signing(waits=0)
    server.node = found

    async def story():
        identity = NodeIdentity(server, "worker-1", tmp_path, SystemClock())
        asked = asyncio.create_task(identity.connection(ACCOUNT))
        await asyncio.sleep(600)
        assert why in identity.trouble
        assert server.asked == []
        server.node = NotFoundError(404, "NotFound", "deleted")
        await asked
        assert identity.trouble == ""

    virtual_time.run(story())


def test_a_kept_certificate_is_not_used_while_the_node_is_somebody_elses(tmp_path):
    """Somebody took the name while this one was down: with its old certificate it would read the Secrets of his pods."""
    server = Signing(waits=0)

    async def story():
        await NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT)
        server.node = {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0", "bootID": "b"}}
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        begun = asyncio.create_task(identity.connection(ACCOUNT))
        await asyncio.sleep(600)
        assert not begun.done()
        assert "is another agent's already" in identity.trouble
        server.node = NotFoundError(404, "NotFound", "deleted")
        await begun
        assert identity.trouble == ""
        assert len(server.asked) == 1

    virtual_time.run(story())


@pytest.mark.parametrize("is_own", [True, False], ids=["of its own key", "of another key"])
def test_an_older_role_keeps_no_node_out_that_has_its_certificate(tmp_path, is_own):
    """An upgraded image under the role of before, which may not get nodes."""
    server = Signing(waits=0)

    async def story():
        await NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT)
        if not is_own:
            await NodeIdentity(server, "n1", tmp_path / "other", SystemClock()).connection(ACCOUNT)
            mark = b"-----BEGIN PRIVATE KEY-----"
            certificate, _, _ = (tmp_path / "identity.pem").read_bytes().partition(mark)
            _, _, key = (tmp_path / "other/identity.pem").read_bytes().partition(mark)
            (tmp_path / "identity.pem").write_bytes(certificate + mark + key)
        server.node = ApiError(403, "Forbidden", "no get")
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        begun = asyncio.create_task(identity.connection(ACCOUNT))
        with structlog.testing.capture_logs() as told:
            await asyncio.sleep(60)
        assert begun.done() is is_own
        assert ("let the account get nodes" in identity.trouble) is not is_own
        warnings = [each["why"] for each in told if each["log_level"] == "warning"]
        assert ["let the account get nodes" in each for each in warnings] == [True] * is_own
        begun.cancel()

    virtual_time.run(story())


def test_it_is_looked_again_soon_whether_the_node_is_free(tmp_path):
    """Nobody is asked by a look: refused requests alone are made ever more seldom."""
    server = Signing(waits=0)
    server.node = ApiError(403, "Forbidden", "no get")

    async def story():
        asked = asyncio.create_task(NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT))
        await asyncio.sleep(320)
        server.node = NotFoundError(404, "NotFound", "mended")
        await asyncio.sleep(AGAIN_S + 1)
        assert asked.done()

    virtual_time.run(story())


@pytest.mark.parametrize("key", ["machineID", "systemUUID"])
def test_a_reboot_does_not_wait_for_the_old_word_to_end(tmp_path, monkeypatch, key):
    ours = dict(node_info("process")) | {key: "0123456789abcdef"}
    monkeypatch.setattr("hekla.app.standalone.node_identity.node_info", lambda runtime: ours)
    server = Signing(waits=0)

    async def story():
        await NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT)
        server.node = {"nodeInfo": ours | {"bootID": "the boot before"}, "conditions": READY}
        begun = asyncio.create_task(NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT))
        await asyncio.sleep(1)
        assert begun.done()

    virtual_time.run(story())


def test_a_node_in_a_container_is_known_by_its_firmware_too(monkeypatch):
    """Images have no machine ID: after a reboot nothing else tells that it is the same machine."""
    files = {"/sys/class/dmi/id/product_uuid": "4c4c4544-0042"}
    monkeypatch.setattr("hekla.node.registration._read", lambda path: files.get(path, ""))
    assert node_info.__wrapped__("process")["systemUUID"] == "4c4c4544-0042"
    files = {"/etc/machine-id": "0123"}
    assert node_info.__wrapped__("process")["systemUUID"] == "0123"


def test_what_no_machine_is_called_makes_it_no_other(monkeypatch, tmp_path):
    ours = dict(node_info("process")) | {"machineID": "", "systemUUID": "uninitialized"}
    monkeypatch.setattr("hekla.app.standalone.node_identity.node_info", lambda runtime: ours)
    server = Signing(waits=0)
    server.node = {"nodeInfo": ours | {"bootID": "b"}, "conditions": READY}

    async def story():
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        begun = asyncio.create_task(identity.connection(ACCOUNT))
        await asyncio.sleep(60)
        assert "is ready on another machine" in identity.trouble
        begun.cancel()

    virtual_time.run(story())


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"nodeInfo": {"containerRuntimeVersion": "hekla-process://1", "bootID": "b"}},
        {"nodeInfo": dict(node_info("process")), "conditions": READY},
    ],
    ids=["nobody has spoken for it", "ours that has ended elsewhere", "ours of an earlier life"],
)
def test_a_node_of_ours_is_signed_for_again(tmp_path, found):
    server = Signing(waits=0)
    server.node = found
    virtual_time.run(NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT))
    assert len(server.asked) == 1


def test_an_api_server_that_is_away_for_a_moment_costs_no_other_request(tmp_path):
    """Each took the approval of a person."""
    server = Signing()
    server.blips = 3
    virtual_time.run(NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT))
    assert len(server.asked) == 1


def test_a_certificate_that_is_good_for_a_while_is_begun_with_and_the_next_asked_for_beside_it(tmp_path):
    server = Signing(life=timedelta(minutes=4))  # less than is to be left of one

    async def story():
        await NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT)
        server.waits = 10_000  # who approves it sleeps
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        connection = await identity.connection(ACCOUNT)
        old = await connection.credentials.certificate()
        assert len(server.asked) == 1
        renewing = asyncio.create_task(identity.keep_fresh())
        await asyncio.sleep(1.5)
        assert len(server.asked) == 2
        server.waits, server.life = 0, timedelta(days=1)
        await asyncio.sleep(2.5)
        assert await connection.credentials.certificate() != old
        assert identity.trouble == ""
        renewing.cancel()

    virtual_time.run(story())


def test_a_certificate_that_api_servers_do_not_know_is_replaced(tmp_path):
    server = Signing(waits=0)

    async def story():
        identity = NodeIdentity(server, "n1", tmp_path, SystemClock())
        credentials = (await identity.connection(ACCOUNT)).credentials
        old = await credentials.certificate()
        renewing = asyncio.create_task(identity.keep_fresh())
        await asyncio.sleep(1000)
        assert len(server.asked) == 1
        assert not credentials.rejected()  # 401
        await asyncio.sleep(1)
        assert (await credentials.certificate()) != old
        credentials.rejected()  # an answer to what was sent with the old one
        await asyncio.sleep(1000)
        assert len(server.asked) == 2
        renewing.cancel()

    virtual_time.run(story())


class Watch:
    """A clock that goes with virtual time, and can be put forward or back."""

    def __init__(self):
        self.put = timedelta()

    def now(self):
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time()) + self.put


def renewal(tmp_path, story, life=timedelta(hours=3)):
    """A node that has a certificate for a while, and renews it."""

    async def told():
        server = Signing(waits=0, life=life)
        server.clock = Watch()
        identity = NodeIdentity(server, "n1", tmp_path, server.clock)
        credentials = (await identity.connection(ACCOUNT)).credentials
        renewing = asyncio.create_task(identity.keep_fresh())
        await story(server, identity, credentials)
        renewing.cancel()

    virtual_time.run(told())


HOUR_S = 3600.0


def test_a_node_stays_ready_while_its_renewal_waits_and_not_once_its_certificate_is_over(tmp_path):
    async def story(server, identity, credentials):
        server.waits = 10**9
        await asyncio.sleep(2.5 * HOUR_S)
        assert "the request r2 waits" in identity.waits_for
        assert identity.trouble == ""
        await asyncio.sleep(HOUR_S)
        assert identity.trouble.startswith("the certificate ended at 2026-01-01T03:00:0")
        old, server.waits = credentials.shown, 0  # a person comes late
        await asyncio.sleep(10)
        assert (identity.trouble, identity.waits_for) == ("", "")
        assert credentials.shown != old

    renewal(tmp_path, story)


def test_a_renewal_that_is_denied_again_and_again_asks_more_and_more_seldom(tmp_path):
    """Each request lies before a person for an hour."""

    async def story(server, identity, credentials):
        server.refusal, server.refused_from = "not you", 2
        await asyncio.sleep(2.9 * HOUR_S)
        assert "was refused: not you" in identity.waits_for
        assert identity.trouble == ""
        assert 10 < len(server.asked) < 24
        server.refusal = ""
        await asyncio.sleep(HOUR_S / 2)
        assert identity.waits_for == ""

    renewal(tmp_path, story)


def test_a_certificate_that_ends_while_the_api_server_is_away_is_replaced_as_soon_as_it_is_back(tmp_path):
    async def story(server, identity, credentials):
        server.away = 10**9
        await asyncio.sleep(4 * HOUR_S)
        assert identity.trouble.startswith("the certificate ended at")
        assert len(server.asked) == 1
        server.away = 0
        await asyncio.sleep(10)
        assert identity.trouble == ""
        assert len(server.asked) == 2

    renewal(tmp_path, story)


@pytest.mark.parametrize(("put", "asked"), [(timedelta(days=1), 2), (timedelta(days=-1), 1)], ids=["on", "back"])
def test_a_clock_that_jumps_costs_one_certificate_or_none(tmp_path, put, asked):
    async def story(server, identity, credentials):
        await asyncio.sleep(60)
        server.clock.put = put
        await asyncio.sleep(600)
        assert identity.trouble == ""
        assert len(server.asked) == asked

    renewal(tmp_path, story)


def test_a_certificate_of_minutes_is_replaced_before_it_ends(tmp_path):
    async def story(server, identity, credentials):
        for _ in range(240):
            await asyncio.sleep(10)
            assert identity.trouble == ""
            assert end_of(credentials.shown) > server.clock.now()

    renewal(tmp_path, story, life=timedelta(minutes=4))


def test_a_certificate_that_no_disk_takes_serves_this_life(tmp_path):
    server = Signing()
    (tmp_path / "file").write_text("")
    identity = NodeIdentity(server, "n1", tmp_path / "file", SystemClock())
    connection = virtual_time.run(identity.connection(ACCOUNT))
    assert b"CERTIFICATE" in virtual_time.run(connection.credentials.certificate()).certificate
    assert len(server.asked) == 1


def test_who_is_the_node_already_asks_for_nothing(tmp_path):
    server = Signing(user="system:node:n1")
    server.away = 2
    connection = virtual_time.run(NodeIdentity(server, "n1", tmp_path, SystemClock()).connection(ACCOUNT))
    assert connection is ACCOUNT
    assert server.asked == []


def test_nodes_are_installed_only_when_asked_for():
    assert not {"node.yaml", "simulated-nodes.yaml"} & set(files(Installation()))
    assert "DaemonSet" not in rendered(Installation(without=frozenset({"crds"})))
    with pytest.raises(InstallError, match='--with names "nodes"; choose from node, node-processes, simulated-nodes'):
        Installation(also=frozenset({"nodes"}))


def test_the_agent_of_a_node_may_become_one_and_nothing_else():
    """Secrets and tokens are of its own pods by the Node authorizer; a role would give it everybody's."""
    rules = rights_of("node").everywhere
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "certificatesigningrequests", "certificatesigningrequests/nodeclient", "nodes",
    }  # fmt: skip
    assert [rule["verbs"] for rule in rules if "nodes" in rule["resources"]] == [["get"]]
    simulated = {resource for rule in rights_of("simulated-nodes").everywhere for resource in rule["resources"]}
    assert not simulated & {"secrets", "configmaps", "serviceaccounts/token"}


def test_simulated_nodes_may_look_whose_a_node_is_that_is_there_already():
    """Those that began again were refused it, and never registered: a real API server tells `get` from `list`."""
    asked = [rule for rule in rights_of("simulated-nodes").everywhere if "nodes" in rule["resources"]]
    assert any("get" in rule["verbs"] for rule in asked)


def test_simulated_nodes_delete_neither_nodes_nor_leases():
    """Their Deployment is never told to, and no role could confine it to its own."""
    found = list(
        yaml.safe_load_all(rendered(Installation(without=frozenset({"crds"}), also=frozenset({"simulated-nodes"}))))
    )
    roles = [
        one
        for one in found
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] == "hekla-simulated-nodes"
    ]
    assert {one["metadata"].get("namespace") for one in roles} == {None, "kube-node-lease"}
    deleted = {
        resource
        for one in roles
        for rule in one["rules"]
        if "delete" in rule["verbs"]
        for resource in rule["resources"]
    }
    assert deleted == {"pods"}


def test_the_daemon_set_is_privileged_in_a_namespace_of_its_own_and_runtime_classes_lead_past_the_taint():
    found = list(yaml.safe_load_all(rendered(Installation(without=frozenset({"crds"}), also=frozenset({"node"})))))
    [daemons] = [one for one in found if one["kind"] == "DaemonSet"]
    assert daemons["metadata"]["namespace"] == "hekla-system-nodes"
    levels = {
        one["metadata"]["name"]: one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for one in found
        if one["kind"] == "Namespace"
    }
    assert levels == {"hekla-system": "restricted", "hekla-system-nodes": "privileged"}
    spec = daemons["spec"]["template"]["spec"]
    assert "hostPID" not in spec
    # the network is the machine's: what asks nobody who he is listens for the machine alone
    [container] = spec["containers"]
    assert "--metrics-address=127.0.0.1:10261" in container["args"]
    assert {container[probe]["httpGet"]["host"] for probe in ("livenessProbe", "readinessProbe")} == {"127.0.0.1"}
    assert spec["nodeSelector"] == {"hekla.dev/host": "true"}
    # what it offers is what the machine's own kubelet counts as taken
    [container] = spec["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {"--cpu-per-node=$(CPU)", "--memory-per-node=$(MEMORY)"} <= set(container["args"])
    classes = {one["metadata"]["name"]: one["scheduling"] for one in found if one["kind"] == "RuntimeClass"}
    assert classes["sandbox"] == {
        "nodeSelector": {f"{NODE_RUNTIME_LABEL}sandbox": "true"},
        "tolerations": [{"key": "hekla.dev/node", "operator": "Exists"}],
    }
    assert set(classes) == {"sandbox", "oci", "microvm"}


def test_processes_of_the_machine_are_for_those_who_ask_for_them(tmp_path):
    """A runtime class that any tenant may name must not lead to root on a machine's devices and network."""
    [closed] = declared(NodeSettings(name="n", directory=tmp_path), "10.0.0.7")
    [opened] = declared(NodeSettings(name="n", directory=tmp_path, allows_processes=True), "10.0.0.7")
    assert set(opened.labels) - set(closed.labels) == {"hekla.dev/processes"}
    also = frozenset({"node", "node-processes"})
    found = list(yaml.safe_load_all(rendered(Installation(without=frozenset({"crds"}), also=also))))
    [process] = [one for one in found if (one["kind"], one["metadata"]["name"]) == ("RuntimeClass", "process")]
    assert process["scheduling"]["nodeSelector"] == {"hekla.dev/processes": "true"}
    [daemons] = [one for one in found if one["kind"] == "DaemonSet"]
    assert "--allow-processes" in daemons["spec"]["template"]["spec"]["containers"][0]["args"]
    with pytest.raises(InstallError, match="--with node-processes is of the nodes that --with node adds"):
        Installation(also=frozenset({"node-processes"}))
