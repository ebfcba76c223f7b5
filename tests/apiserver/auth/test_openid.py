"""Whoever has the server's documents alone can believe its tokens: with a library that knows nothing of Kubernetes."""

import asyncio
import base64
import json
from datetime import UTC, datetime

import jwt

from hekla.apiserver.auth.bootstrap import bootstrap_objects
from hekla.apiserver.auth.openid import Issuer
from hekla.apiserver.auth.pki import ensure_pki
from hekla.apiserver.auth.tokens import ISSUER, Claims, TokenSigner
from hekla.apiserver.memory_store import MemoryStore
from hekla.testing.api_server import ApiCaller, api_server


def test_a_token_is_verified_with_the_keys_that_the_server_shows(tmp_path):
    signer = TokenSigner(ensure_pki(tmp_path, datetime.now(UTC)).token_key.read_bytes())

    async def asked():
        async with ApiCaller(api_server(MemoryStore(), issuer=Issuer(signer))) as api:
            found = {
                path: await api.get(path)
                for path in ("/.well-known/openid-configuration", "/openid/v1/jwks", "/openid/v1/jwks/")
            }
            refused = await api.post("/openid/v1/jwks", {})
            return found, refused[0]

    found, refused = asyncio.run(asked())
    (status, said), (_, keys), (_, again) = found.values()
    assert (status, refused, keys == again) == (200, 405, True)
    assert (said["issuer"], said["id_token_signing_alg_values_supported"]) == (ISSUER, ["ES256"])
    assert said["jwks_uri"].startswith("https://")
    assert said["jwks_uri"].endswith("/openid/v1/jwks")
    now = int(datetime.now(UTC).timestamp())
    claims = Claims(namespace="ns", account="runner", account_uid="u1", expires_at=now + 600, audiences=("vault",))
    token = signer.sign(claims, issued_at=now)
    keys = json.loads(keys)
    (key,) = jwt.PyJWKSet.from_dict(keys).keys
    assert key.key_id == jwt.get_unverified_header(token)["kid"]
    told = jwt.decode(token, key.key, algorithms=["ES256"], audience="vault", issuer=ISSUER)
    assert told["sub"] == "system:serviceaccount:ns:runner"
    assert not {"d", "p", "q"} & set(keys["keys"][0])  # nothing of what is secret
    assert len(base64.urlsafe_b64decode(keys["keys"][0]["x"] + "=")) == 32


def test_without_an_issuer_there_is_no_such_path():
    async def asked():
        async with ApiCaller() as api:
            return (await api.get("/openid/v1/jwks"))[0]

    assert asyncio.run(asked()) == 404


def test_all_service_accounts_may_read_them_as_in_kubernetes():
    made = {(resource.partition(".")[0], one["metadata"]["name"]): one for resource, one in bootstrap_objects()}
    name = "system:service-account-issuer-discovery"
    paths = made["clusterroles", name]["rules"][0]["nonResourceURLs"]
    assert {"/openid/v1/jwks", "/.well-known/openid-configuration"} <= set(paths)
    assert made["clusterrolebindings", name]["subjects"][0]["name"] == "system:serviceaccounts"
