import asyncio
import base64
from datetime import timedelta

import pytest

from hekla.app.standalone.certificate_keeper import CONFIGURATION, SECRET, CertificateKeeper
from hekla.app.standalone.manifests import Installation, files
from hekla.kube.clock import EPOCH
from hekla.kube.errors import ApiError, KubeError
from hekla.testing.server import api_server, in_process_client

SECRETS = "/api/v1/namespaces/hekla-system/secrets"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


class SetClock:
    def __init__(self):
        self.moment = EPOCH

    def now(self):
        return self.moment

    def elapsed_s(self):
        return (self.moment - EPOCH).total_seconds()


async def register(client):
    for document in files(Installation())["webhooks.yaml"]:
        if document["kind"] in KINDS:
            await client.request("POST", f"{REGISTRATION}/{KINDS[document['kind']]}", document)


async def bundles(client):
    found = [await client.request("GET", f"{REGISTRATION}/{plural}/{CONFIGURATION}") for plural in KINDS.values()]
    return {one["clientConfig"].get("caBundle") for each in found for one in each["webhooks"]}


def with_server(scenario):
    async def main():
        async with api_server() as server, in_process_client(server) as client:
            await client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "hekla-system"}})
            await scenario(client)

    asyncio.run(main())


@pytest.mark.parametrize("has_empty_secret", [True, False])
def test_a_certificate_is_stored_published_and_shown(has_empty_secret):
    async def scenario(client):
        await register(client)
        if has_empty_secret:
            await client.request("POST", SECRETS, {"metadata": {"name": SECRET}})
        keeper = CertificateKeeper(client, "hekla-system", clock=SetClock())
        await keeper.look()
        assert keeper.has_certificate.is_set()
        secret = await client.request("GET", f"{SECRETS}/{SECRET}")
        assert await bundles(client) == {secret["data"]["ca.crt"]}
        assert len(keeper.context.get_ca_certs()) == 0

    with_server(scenario)


def test_replicas_that_look_at_once_agree():
    async def scenario(client):
        await register(client)
        keepers = [CertificateKeeper(client, "hekla-system", clock=SetClock()) for _ in range(4)]
        for _ in range(3):
            await asyncio.gather(*(keeper.look() for keeper in keepers), return_exceptions=True)
        assert all(keeper.has_certificate.is_set() for keeper in keepers)
        secret = await client.request("GET", f"{SECRETS}/{SECRET}")
        assert await bundles(client) == {secret["data"]["ca.crt"]}
        assert {keeper._shown for keeper in keepers} == {
            base64.b64decode(secret["data"]["tls.crt"]) + base64.b64decode(secret["data"]["tls.key"])
        }

    with_server(scenario)


def test_a_rotation_reaches_everybody_before_it_is_shown():
    async def scenario(client):
        await register(client)
        clock = SetClock()
        keeper = CertificateKeeper(client, "hekla-system", clock=clock)
        seen = set()
        for _ in range(40):
            await keeper.look()
            seen |= await bundles(client)
            clock.moment += timedelta(days=20)
        assert len(seen) > 3

    with_server(scenario)


def test_a_broken_secret_is_made_anew():
    async def scenario(client):
        await register(client)
        data = {"ca.crt": base64.b64encode(b"nonsense").decode()}
        await client.request("POST", SECRETS, {"metadata": {"name": SECRET}, "data": data})
        keeper = CertificateKeeper(client, "hekla-system", clock=SetClock())
        await keeper.look()
        assert keeper.has_certificate.is_set()

    with_server(scenario)


def test_that_nobody_calls_us_is_said_though_we_answer():
    async def scenario(client):
        keeper = CertificateKeeper(client, "hekla-system", clock=SetClock())
        with pytest.raises(KubeError, match=f'no webhook configuration "{CONFIGURATION}" registers us'):
            await keeper.look()
        assert keeper.has_certificate.is_set()

    with_server(scenario)


def test_a_secret_that_was_deleted_is_told_with_who_can_make_it():
    """Roles cannot allow to make one Secret by its name, and this one came with the manifests."""

    class MayMakeNone:
        def __init__(self, client):
            self.client = client

        async def request(self, method, path, *args, **options):
            if (method, path) == ("POST", SECRETS):
                raise ApiError(403, "Forbidden", 'cannot create resource "secrets"')
            return await self.client.request(method, path, *args, **options)

    async def scenario(client):
        await register(client)
        await CertificateKeeper(client, "hekla-system", clock=SetClock()).look()
        await client.request("DELETE", f"{SECRETS}/{SECRET}")
        with pytest.raises(KubeError, match=r"hekla-webhooks is gone, .*hekla install --render \| kubectl apply"):
            await CertificateKeeper(MayMakeNone(client), "hekla-system", clock=SetClock()).look()

    with_server(scenario)
