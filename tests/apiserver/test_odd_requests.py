"""The smallest cases of what random requests once made the server fail at."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hekla.apiserver.auth.authenticate import Authenticator
from hekla.apiserver.auth.pki import ensure_pki
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.auth.token_requests import TokenDesk
from hekla.apiserver.auth.tokens import Claims, TokenSigner
from hekla.apiserver.backend import random_uid
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.reviews import Reviews
from hekla.testing.api_server import KUBERNETES_RULES, ApiCaller, api_server

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def answers(*requests: tuple[str, str, Any]) -> list[tuple[int, Any]]:
    async def play() -> list[tuple[int, Any]]:
        store = MemoryStore()
        server = api_server(store, rules=KUBERNETES_RULES, authorizer=RbacAuthorizer(StoredRoles(store)))
        async with ApiCaller(server) as api:
            await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            return [await api.call(*request) for request in requests]

    return asyncio.run(play())


def test_a_priority_class_without_a_value_has_zero_and_serves_pods():
    made, pod = answers(
        ("POST", CLASSES, {"metadata": {"name": "a"}, "globalDefault": True}),
        ("POST", "/api/v1/namespaces/default/pods", POD),
    )
    assert made[1]["value"] == 0
    assert (pod[0], pod[1]["spec"]["priority"]) == (201, 0)


@pytest.mark.parametrize(
    "spec",
    [
        {"user": "a", "groups": [[]], "nonResourceAttributes": {"path": "/", "verb": "get"}},
        {"user": "a", "groups": [{}], "resourceAttributes": {"verb": "get"}},
        {"user": "a", "extra": {"k": [1]}, "resourceAttributes": {"verb": "get"}},
    ],
)
def test_groups_that_are_no_texts_are_refused(spec: dict[str, Any]):
    ((status, said),) = answers(("POST", REVIEWS, {"spec": spec}))
    assert (status, "must be a list of texts" in said["message"]) == (400, True)


def test_a_binding_to_a_kind_that_is_no_text_is_refused():
    binding = {"metadata": {"name": "p"}, "target": {"name": "n", "kind": []}}
    ((status, said),) = answers(("POST", "/api/v1/namespaces/default/bindings", binding))
    assert (status, said["message"]) == (400, "kind must be text, not a list")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("x", "spec must be an object, not text"),
        ({"boundObjectRef": "a/b"}, "boundObjectRef must be an object, not text"),
        ({"expirationSeconds": "x"}, "expirationSeconds must be a whole number, not text"),
        ({"audiences": True}, "audiences must be a list, not a boolean"),
        ({"audiences": [1]}, "audiences must be a list of texts, and a number is in it"),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": 3}}, "name must be text, not a number"),
    ],
)
def test_a_token_request_of_odd_shape_is_refused(tmp_path: Path, spec: Any, sentence: str):
    signer = TokenSigner(ensure_pki(tmp_path, datetime(2026, 1, 1, tzinfo=UTC)).token_key.read_bytes())

    async def play() -> tuple[int, Any]:
        authenticator = Authenticator(signer=signer, reader=None, clock=lambda: 5_000.0)
        desk = TokenDesk(signer, authenticator, lambda: server.backend, random_uid)
        server = api_server(reviews=Reviews(review_token=desk.review, issue_token=desk.issue))
        async with ApiCaller(server) as api:
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            await api.post(accounts, {"metadata": {"name": "a"}})
            return await api.post(f"{accounts}/a/token", {"spec": spec})

    status, said = asyncio.run(play())
    assert (status, said["message"]) == (400, sentence)


def test_a_review_tells_for_which_of_the_audiences_a_token_is_meant(tmp_path: Path):
    signer = TokenSigner(ensure_pki(tmp_path, datetime(2026, 1, 1, tzinfo=UTC)).token_key.read_bytes())

    async def play() -> list[Any]:
        authenticator = Authenticator(signer=signer, reader=None, clock=lambda: 5_000.0)
        desk = TokenDesk(signer, authenticator, lambda: server.backend, random_uid)
        server = api_server(reviews=Reviews(review_token=desk.review, issue_token=desk.issue))
        async with ApiCaller(server) as api:
            accounts, reviews = (
                "/api/v1/namespaces/default/serviceaccounts",
                "/apis/authentication.k8s.io/v1/tokenreviews",
            )
            await api.post(accounts, {"metadata": {"name": "a"}})
            _, made = await api.post(f"{accounts}/a/token", {"spec": {"audiences": ["vault"]}})
            token = made["status"]["token"]
            asked = [["vault", "other"], ["other"], []]
            return [
                (await api.post(reviews, {"spec": {"token": token, "audiences": one}}))[1]["status"] for one in asked
            ]

    both, other, ours = asyncio.run(play())
    assert both["audiences"] == ["vault"]
    assert not other.get("authenticated")
    assert not ours.get("authenticated")


def test_who_is_impersonated_has_the_uid_and_the_extra_of_the_headers():
    async def play() -> Any:
        async with ApiCaller() as api:
            headers = {"impersonate_user": "ann", "impersonate_uid": "u1", "impersonate_extra_team": "a"}
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            answer = await api.response("POST", path, b"{}", content_type="application/json", **headers)
            return json.loads(answer.body)["status"]["userInfo"]

    info = asyncio.run(play())
    assert (info["username"], info["uid"], info["extra"]) == ("ann", "u1", {"team": ["a"]})


@pytest.mark.parametrize("header", ["impersonate_uid", "impersonate_extra_team", "impersonate_group"])
def test_whoever_impersonates_names_a_user(header: str):
    async def play() -> Any:
        async with ApiCaller() as api:
            return await api.get("/api/v1/namespaces", **{header: "x"})

    status, said = asyncio.run(play())
    assert (status, "without impersonating a user" in said["message"]) == (400, True)


def test_extra_that_came_in_several_headers_has_several_values():
    async def play() -> Any:
        async with ApiCaller() as api:
            headers = {"impersonate_user": "ann", "impersonate_extra_team": "a, b"}
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            answer = await api.response("POST", path, b"{}", content_type="application/json", **headers)
            return json.loads(answer.body)["status"]["userInfo"]["extra"]

    assert asyncio.run(play()) == {"team": ["a", "b"]}


class CountingSigner(TokenSigner):
    asked = 0

    def verify(self, *arguments: Any, **named: Any) -> Claims:
        self.asked += 1
        return super().verify(*arguments, **named)


def test_a_review_reads_its_token_once_however_many_audiences_it_names(tmp_path: Path):
    key = ensure_pki(tmp_path, datetime(2026, 1, 1, tzinfo=UTC)).token_key.read_bytes()
    signer = CountingSigner(key)

    async def play() -> Any:
        authenticator = Authenticator(signer=signer, reader=None, clock=lambda: 5_000.0)
        desk = TokenDesk(signer, authenticator, lambda: server.backend, random_uid)
        server = api_server(reviews=Reviews(review_token=desk.review, issue_token=desk.issue))
        async with ApiCaller(server) as api:
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            await api.post(accounts, {"metadata": {"name": "a"}})
            _, made = await api.post(f"{accounts}/a/token", {"spec": {"audiences": ["vault"]}})
            audiences = [*(f"other{number}" for number in range(1000)), "vault"]
            spec = {"token": made["status"]["token"], "audiences": audiences}
            return await api.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})

    assert asyncio.run(play())[1]["status"]["audiences"] == ["vault"]
    assert signer.asked == 1


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("labelSelector=a=b=c", 400, "found '=', expected: ',' or 'end of string'"),
        ("labelSelector=a%20in%20(b", 400, "unable to parse requirement: found '', expected: ',' or ')'"),
        ("labelSelector=a%20in%20b", 400, "unable to parse requirement: found 'b' expected: '('"),
        ("labelSelector=a,,b", 400, "found ',', expected: identifier after ','"),
        ("labelSelector=,", 400, "found ',', expected: !, identifier, or 'end of string'"),
        ("labelSelector==b", 400, "found '=', expected: !, identifier, or 'end of string'"),
        (
            "labelSelector=a>x",
            400,
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("fieldSelector=metadata.name=a%5Cb", 400, "invalid field selector: invalid escape sequence: \\b"),
        (
            "resourceVersion=x",
            400,
            'invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax',
        ),
    ],
)
def test_a_wrong_list_is_refused_in_the_words_of_a_real_kubernetes(query: str, status: int, sentence: str):
    ((found, said),) = answers(("GET", f"{CONFIG_MAPS}?{query}", None))
    assert (found, said["message"]) == (status, sentence)


def test_an_empty_dry_run_is_none_of_the_ways_to_run_dry():
    ((status, said),) = answers(("POST", f"{CONFIG_MAPS}?dryRun=", {"metadata": {"name": "a"}}))
    assert status == 422
    assert said["details"]["causes"][0]["message"] == 'Unsupported value: [""]: supported values: "All"'


def test_an_apply_is_told_of_all_that_its_options_lack():
    path = f"{CONFIG_MAPS}/a?dryRun=Foo"
    config = b'{"apiVersion": "v1", "kind": "ConfigMap"}'

    async def play() -> tuple[int, Any]:
        async with ApiCaller() as api:
            return await api.call("PATCH", path, config, content_type="application/apply-patch+yaml")

    status, said = asyncio.run(play())
    assert status == 422
    assert [cause["field"] for cause in said["details"]["causes"]] == ["fieldManager", "dryRun"]
