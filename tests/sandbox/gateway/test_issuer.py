"""Tokens of an OpenID issuer at a gateway: whose are taken, and that a change of keys turns nobody away. The issuer is a real one over HTTP."""

import asyncio
import base64
import hashlib
import hmac
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hekla.edge import key_fetching
from hekla.edge.bearer import Expected
from hekla.sandbox.gateway.guard import BELIEVED_S, LONGEST_LIFE_S, Guard
from hekla.sandbox.gateway.issuer import Issuer
from hekla.sandbox.sessions.desk import Desk
from hekla.testing.paper_sandboxes import BASE, PaperSandboxes
from hekla.testing.sandboxes import gateway
from hekla.wire.client import HttpClient
from hekla.wire.messages import Response
from hekla.wire.server import Server

NOW, AUDIENCE = 1_800_000_000.0, "agentcube-api"
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("old", "new", "theirs")}


@dataclass
class World:
    """A gateway, the issuer that it believes, and the time."""

    http: HttpClient
    url: str = ""
    issuer_url: str = ""
    now: float = NOW
    listed: list[str] = field(default_factory=lambda: ["old"])
    fetches: int = 0
    desk: Desk | None = None

    def answer(self, request):
        if request.path == "/.well-known/openid-configuration":
            told = {"issuer": self.issuer_url, "jwks_uri": f"{self.issuer_url}/keys"}
            return Response(200, json.dumps(told).encode())
        self.fetches += 1
        keys = [{**_jwk(KEYS[name]), "kid": name, "use": "sig"} for name in self.listed]
        return Response(200, json.dumps({"keys": keys}).encode())

    def token(self, key="old", *, headers=None, algorithm="ES256", without=(), **claims):
        body = {
            "iss": self.issuer_url, "aud": AUDIENCE, "sub": "ann", "exp": self.now + 600, "realm": {"roles": ["sandbox:invoke"]},
        } | claims  # fmt: skip
        body = {name: value for name, value in body.items() if name not in without}
        return jwt.encode(body, KEYS[key], algorithm, headers={"kid": key, **(headers or {})})

    async def status(self, token, path="/hekla/v1/sessions", method="GET", body=b"", headers=()):
        answer = await self.http.request(
            method, self.url + path, headers=(("authorization", f"Bearer {token}"), *headers), body=body, timeout_s=60
        )
        return answer.status, json.loads(answer.body)


def _jwk(key):
    return json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))


@asynccontextmanager
async def world():
    async with HttpClient() as http:
        made, server = World(http), Server()
        await server.start(made.answer)
        made.issuer_url = f"http://127.0.0.1:{server.port}"
        issuer = Issuer(made.issuer_url, http, lambda: made.now)
        guard = Guard(
            {}, wall=lambda: made.now, expected=Expected(made.issuer_url, (AUDIENCE,)), issuer=issuer,
            role_claim="realm.roles", required_role="sandbox:invoke",
        )  # fmt: skip
        fetching = asyncio.create_task(issuer.run())
        try:
            async with asyncio.timeout(60):
                while issuer.current() is None:
                    await asyncio.sleep(0.005)
            async with gateway(PaperSandboxes([BASE]), who=guard) as running:
                made.desk = running.desk
                made.url = f"http://127.0.0.1:{running.port}"
                yield made
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            await server.stop()


def run(scenario):
    async def main():
        async with world() as made:
            await scenario(made)

    asyncio.run(main())


def _unsigned(body, header):
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, body))
    return b".".join(parts).decode()


def _by_public_key(made):
    """Signed with HS256, and the issuer's public key as the secret."""
    secret = KEYS["old"].public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    body = {"iss": made.issuer_url, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 600}
    said = _unsigned(body, {"alg": "HS256", "kid": "old", "typ": "JWT"})
    sealed = base64.urlsafe_b64encode(hmac.new(secret, said.encode(), hashlib.sha256).digest()).rstrip(b"=")
    return f"{said}.{sealed.decode()}"


def _none(made):
    body = {"iss": made.issuer_url, "aud": AUDIENCE, "sub": "ann", "exp": NOW + 600}
    return _unsigned(body, {"alg": "none", "kid": "old", "typ": "JWT"}) + "."


FORGERIES = {
    "alg none": _none,
    "HS256 with the public key": _by_public_key,
    "another's key under our key's name": lambda made: made.token("theirs", headers={"kid": "old"}),
    "a key id that is a path": lambda made: made.token("theirs", headers={"kid": "../../../../dev/null"}),
    "a key set of its own (jku)": lambda made: made.token("theirs", headers={"jku": f"{made.issuer_url}/theirs"}),
    "a key in its own header": lambda made: made.token("theirs", headers={"kid": "old", "jwk": _jwk(KEYS["theirs"])}),
    "a changed body": lambda made: _changed(made.token()),
    "expired now": lambda made: made.token(exp=NOW),
    "no expiry": lambda made: made.token(without=("exp",)),
    "good for ten years": lambda made: made.token(exp=NOW + 10 * 365 * 86400),
    "not yet good": lambda made: made.token(nbf=NOW + 60.001),
    "another audience": lambda made: made.token(aud="kubernetes"),
    "no audience": lambda made: made.token(without=("aud",)),
    "another issuer": lambda made: made.token(iss="https://elsewhere"),
    "nobody's": lambda made: made.token(without=("sub",)),
}


def _changed(token):
    head, _, seal = token.split(".")
    body = {"iss": "x", "aud": AUDIENCE, "sub": "admin", "exp": NOW + 600}
    return f"{head}.{_unsigned(body, {}).partition('.')[2]}.{seal}"


@pytest.mark.parametrize("name", FORGERIES)
def test_a_token_that_is_not_what_it_says_opens_nothing(name):
    async def scenario(made):
        status, said = await made.status(FORGERIES[name](made))
        assert (status, said["reason"]) == (401, "UNAUTHORIZED")

    run(scenario)


def test_tokens_are_good_to_the_second_that_they_say():
    async def scenario(made):
        for told in (
            {"exp": NOW + 0.001},
            {"nbf": NOW + 60.0},
            {"exp": NOW + LONGEST_LIFE_S},
            {"aud": ["x", AUDIENCE]},
        ):
            assert (await made.status(made.token(**told)))[0] == 200, told
        brief = made.token(exp=NOW + 10)
        assert (await made.status(brief))[0] == 200
        made.now = NOW + 10  # believed already, and over all the same
        assert (await made.status(brief))[0] == 401

    run(scenario)


def test_a_role_is_asked_for_and_the_subject_owns_its_sessions():
    async def scenario(made):
        status, said = await made.status(made.token(realm={"roles": ["viewer"]}))
        assert (status, said["message"]) == (403, "insufficient permissions: missing role sandbox:invoke")
        ann, bob = made.token(), made.token(sub="bob")
        status, session = await made.status(ann, method="POST", body=b"{}")
        assert (status, session["owner"]) == (201, "ann")
        path = f"/hekla/v1/sessions/{session['id']}"
        assert (await made.status(bob, path))[0] == 404
        named_admin = made.token(sub="admin")  # whoever calls himself so is not
        assert (await made.status(named_admin, path))[0] == 404
        admin = made.token(sub="root", realm={"roles": ["admin", "sandbox:invoke"]})
        assert (await made.status(admin, path))[0] == 200

    run(scenario)


def test_with_an_issuer_the_id_of_an_agentcube_session_opens_neither_its_daemon_nor_its_ports():
    """At E2B's door it did: whoever had the id needed no token of the issuer's."""

    async def scenario(made):
        body = json.dumps({"name": "base", "namespace": "default"}).encode()
        status, session = await made.status(made.token(), "/v1/code-interpreter", method="POST", body=body)
        assert status == 200
        for port, wanted in (("49983", 401), ("49999", 401), ("8000", 403)):
            headers = (("e2b-sandbox-id", session["sessionId"]), ("e2b-sandbox-port", port))
            status, told = await made.status(made.token(sub="bob"), "/files?path=/etc/passwd", headers=headers)
            assert status == wanted, told

    run(scenario)


def test_when_and_why_a_session_ended_is_told_to_its_owner_and_to_who_sees_all_and_to_nobody_else_at_any_door():
    async def scenario(made):
        ann, bob = made.token(), made.token(sub="bob")
        admin = made.token(sub="root", realm={"roles": ["admin", "sandbox:invoke"]})
        _, session = await made.status(ann, method="POST", body=b"{}")
        await made.desk.end(session["id"], why="its time is over")
        invoked = "/v1/namespaces/default/code-interpreters/base/invocations/execute"
        for path, headers in (
            (f"/hekla/v1/sessions/{session['id']}", ()),
            (invoked, (("x-agentcube-session-id", session["id"]),)),
        ):
            said = {}
            for name, token in (("ann", ann), ("bob", bob), ("admin", admin)):
                status, told = await made.status(token, path, headers=headers)
                assert status == 404
                said[name] = "its time is over" in str(told)
            assert said == {"ann": True, "bob": False, "admin": True}, path

    run(scenario)


def test_keys_change_while_a_thousand_requests_are_under_way_and_none_fails():
    async def scenario(made):
        tokens = {key: [made.token(key, sub=f"user-{number}") for number in range(50)] for key in ("old", "new")}

        async def asks(number):
            key = "new" if "new" in made.listed and number % 2 else "old"
            return (await made.status(tokens[key][number % 50]))[0]

        async def changes():
            made.listed = ["old", "new"]
            made.now += key_fetching.AT_MOST_EVERY_S

        first = [asyncio.create_task(asks(number)) for number in range(500)]
        await changes()
        second = [asyncio.create_task(asks(number)) for number in range(500)]
        assert set(await asyncio.gather(*first, *second)) == {200}

        kept = made.token("old", exp=made.now + 3600)
        assert (await made.status(kept))[0] == 200
        made.listed = ["new"]  # withdrawn
        made.now += key_fetching.EVERY_S
        assert (await made.status(made.token("theirs")))[0] == 401  # whoever has an unknown key has the keys looked at
        made.now += BELIEVED_S
        assert (await made.status(kept))[0] == 401
        assert (await made.status(made.token("new")))[0] == 200

    run(scenario)


def test_made_up_keys_do_not_have_the_issuer_asked_for_each():
    async def scenario(made):
        before = made.fetches
        for number in range(20):
            assert (await made.status(made.token("theirs", headers={"kid": f"made-up-{number}"})))[0] == 401
        assert made.fetches - before <= 1

    run(scenario)
