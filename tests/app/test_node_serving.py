"""The certificate of a node's endpoint: what is published of it, and what stands in the way of its renewal ends nothing."""

import asyncio
import contextlib
import ssl

from hekla.api.agents.node_contract import NODE_AUTHORITY
from hekla.apiserver.auth import pki
from hekla.app.node_serving import LOOK_AGAIN_S, LOOK_EVERY_S, NodeServing
from hekla.kube.clock import SystemClock
from hekla.kube.errors import TransportError
from hekla.node.registration import VirtualNode
from hekla.testing import virtual_time


class Nodes:
    """An API server that takes patches, or is away."""

    def __init__(self):
        self.told, self.is_away = [], False

    async def patch(self, kind, name, document, **_):
        if self.is_away:
            raise TransportError("away")
        self.told.append((name, document["metadata"]["annotations"][NODE_AUTHORITY]))


@contextlib.asynccontextmanager
async def kept_fresh(serving, nodes):
    task = asyncio.create_task(serving.keep_fresh(nodes, ["n"]))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


def both(tmp_path, name):
    """A file as kubelets keep theirs: the certificate and its key together."""
    pair = pki.ensure_pki(tmp_path / name, pki.utc_now(), ("127.0.0.1",)).server
    return pair.certificate.read_text(), pair.certificate.read_text() + pair.key.read_text()


def test_a_key_that_lies_with_its_certificate_is_not_published(tmp_path):
    certificate, whole = both(tmp_path, "one")
    file = tmp_path / "kubelet-server-current.pem"
    file.write_text(whole)
    serving = NodeServing("127.0.0.1", SystemClock(), given=(file, file))
    assert "PRIVATE" not in serving.annotations[NODE_AUTHORITY]
    assert serving.annotations[NODE_AUTHORITY] == certificate


def test_files_that_are_missing_for_a_while_end_nothing_and_are_told_when_they_are_back(tmp_path):
    _, whole = both(tmp_path, "one")
    certificate, other = both(tmp_path, "two")
    file = tmp_path / "both.pem"
    file.write_text(whole)
    nodes = Nodes()

    async def story():
        serving = NodeServing("127.0.0.1", SystemClock(), given=(file, file))
        registered = VirtualNode(name="n", capacity={}, annotations=serving.annotations)
        async with kept_fresh(serving, nodes):
            file.unlink()
            await asyncio.sleep(LOOK_EVERY_S + 1)
            file.write_text("half of a")
            await asyncio.sleep(LOOK_AGAIN_S)
            assert nodes.told == []
            file.write_text(other)
            await asyncio.sleep(LOOK_AGAIN_S)
            assert nodes.told == [("n", certificate)]
            # a Node that somebody deletes comes back with it
            assert dict(registered.annotations) == {NODE_AUTHORITY: certificate}
            await asyncio.sleep(5 * LOOK_EVERY_S)  # what has not changed is not told again
            assert len(nodes.told) == 1

    virtual_time.run(story())


def test_a_certificate_that_could_not_be_told_is_told_soon(tmp_path):
    _, whole = both(tmp_path, "one")
    certificate, other = both(tmp_path, "two")
    file = tmp_path / "both.pem"
    file.write_text(whole)
    nodes = Nodes()

    async def story():
        serving = NodeServing("127.0.0.1", SystemClock(), given=(file, file))
        nodes.is_away = True
        async with kept_fresh(serving, nodes):
            file.write_text(other)
            await asyncio.sleep(LOOK_EVERY_S + 1)
            nodes.is_away = False
            await asyncio.sleep(LOOK_AGAIN_S)
            assert nodes.told == [("n", certificate)]

    virtual_time.run(story())


def test_an_authority_that_api_servers_change_to_is_let_in_beside_the_old_one(tmp_path):
    first, second = (
        pki.ensure_pki(tmp_path / name, pki.utc_now(), ("127.0.0.1",)).authority.certificate.read_text()
        for name in ("first", "second")
    )
    serving = NodeServing("127.0.0.1", SystemClock())
    assert serving.context.verify_mode == ssl.CERT_NONE
    serving.believe(first)
    serving.believe(first + second)
    serving.believe("")  # nobody says so any more
    assert serving.context.verify_mode == ssl.CERT_OPTIONAL
    assert serving.context.cert_store_stats()["x509_ca"] == 2
