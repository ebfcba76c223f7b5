import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hekla.api.core import ConfigMap
from hekla.apiserver.auth.pki import ensure_pki, subject_of, utc_now
from hekla.apiserver.server import everybody_is_admin
from hekla.kube.credentials import ClientCertificate
from hekla.kube.errors import TransportError
from hekla.kube.kubeconfig import client_from_kubeconfig, write_kubeconfig
from hekla.testing.conformance.clients import ClientContract
from hekla.testing.server import api_server, http_client, in_process_client
from hekla.wire.server import Server
from hekla.wire.tls import server_context


class TestInProcess(ClientContract):
    @asynccontextmanager
    async def client(self):
        async with api_server() as server, in_process_client(server) as client:
            yield client


class TestHttp(ClientContract):
    @asynccontextmanager
    async def client(self):
        async with api_server() as server, http_client(server) as client:
            yield client


@asynccontextmanager
async def tls_server(directory, **settings):
    pki = ensure_pki(directory / "pki", utc_now())
    wire = Server()
    async with api_server(**settings) as server:
        context = server_context(pki.server.certificate, pki.server.key, pki.authority.certificate)
        await wire.start(server.handle, ssl_context=context)
        try:
            yield pki, f"https://127.0.0.1:{wire.port}"
        finally:
            await wire.stop(grace_s=1)


class TestHttpsWithAKubeconfig(ClientContract):
    @asynccontextmanager
    async def client(self):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            async with tls_server(directory) as (pki, url):
                client = client_from_kubeconfig(admin_kubeconfig(directory, pki, url))
                yield client
                await client.close()


def admin_kubeconfig(directory, pki, url):
    path = directory / "kubeconfig"
    certificate = ClientCertificate(pki.admin.certificate.read_bytes(), pki.admin.key.read_bytes())
    ca_pem = pki.authority.certificate.read_bytes()
    write_kubeconfig(path, server=url, ca_pem=ca_pem, client_certificate=certificate)
    return path


def test_the_client_shows_its_certificate(tmp_path):
    seen = []

    async def scenario():
        def authenticate(request):
            seen.append(subject_of(request.peer.certificate))
            return everybody_is_admin(request)

        async with tls_server(tmp_path, authenticate=authenticate) as (pki, url):
            client = client_from_kubeconfig(admin_kubeconfig(tmp_path, pki, url))
            await client.list(ConfigMap)
            await client.close()

    asyncio.run(scenario())
    assert "system:masters" in seen[0][1]


def test_a_server_that_its_authority_did_not_sign_is_refused(tmp_path):
    async def scenario():
        async with tls_server(tmp_path) as (_, url):
            other = ensure_pki(tmp_path / "other", utc_now())
            client = client_from_kubeconfig(admin_kubeconfig(tmp_path, other, url))
            with pytest.raises(TransportError, match="TLS"):
                await client.list(ConfigMap)
            await client.close()

    asyncio.run(scenario())
