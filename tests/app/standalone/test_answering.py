"""Schedulers of different names beside one another: each is asked of its own pods. `tests/e2e/test_why_elsewhere.py` has one over HTTPS."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from app.standalone.test_office import office_of
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.explanation import EXPLANATION, version_of
from hekla.api.foreign import ApiService
from hekla.apiserver.auth import pki
from hekla.app.front_proxy import Trust, published
from hekla.app.standalone.answer_desk import ROOT, AnswerDesk
from hekla.app.standalone.answering import ANSWERS_OF, PERIOD_S, Answering
from hekla.kube.clock import SystemClock
from hekla.kube.errors import NotFoundError
from hekla.kube.timestamps import rfc3339
from hekla.testing import virtual_time
from hekla.testing.server import api_server, in_process_client
from scheduler.schedulerkit import until

TRUST = Trust(authorities="")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return pki.ensure_pki(tmp_path_factory.mktemp("pki"), pki.utc_now()).authority.certificate.read_text()


async def registered(client, version):
    try:
        return await client.request("GET", ApiService.kind_info.path(name=f"{version}.{EXPLANATION.group}"))
    except NotFoundError:
        return None


async def owner(client, version):
    found = await registered(client, version)
    return found and found["metadata"]["annotations"][ANSWERS_OF]


class Place:
    """Terms of schedulers in front of one server."""

    def __init__(self, server, client):
        self._server, self.client, self.terms, self._connections = server, client, {}, {}

    def begin(self, name):
        office, self._connections[name] = office_of(self._server, scheduler_names=(name,))
        office.clock = SystemClock()
        self.terms[name] = asyncio.create_task(Answering(office, office.client("answers"), None).run())

    async def end(self, name):
        term = self.terms.pop(name)
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)

    async def kill(self, name):
        for transport in self._connections[name].transports:
            transport.is_away = True
        await self.end(name)

    async def owners(self, *versions):
        return [await owner(self.client, version) for version in versions]

    async def come_to(self, *wanted):
        """Wait until v1 and team-a are these schedulers'."""

        async def are_so():
            return await self.owners("v1", "team-a") == list(wanted)

        await until(are_so, within_s=3 * PERIOD_S)


def story(authority, tell):
    async def main():
        async with api_server(kinds=(*CUSTOM_KINDS, ApiService)) as server, in_process_client(server) as client:
            [(_, trust), *_] = published(authority, authority)
            await client.request("POST", "/api/v1/namespaces/kube-system/configmaps", trust)
            place = Place(server, client)
            try:
                await tell(place)
            finally:
                for name in list(place.terms):
                    await place.end(name)

    virtual_time.run(main())


def test_each_of_two_schedulers_has_a_registration_that_the_other_leaves_alone(authority):
    """They took `v1` from one another every minute, and `hekla why` heard of half of the pods that they were another's."""

    async def tell(place):
        place.begin("team-a")
        await place.come_to("team-a", "team-a")  # alone it answers as v1, too
        place.begin("volcano")
        await place.come_to("volcano", "team-a")
        bundles = [(await registered(place.client, one))["spec"]["caBundle"] for one in ("v1", "team-a")]
        assert len(set(bundles)) == 2
        await asyncio.sleep(5 * PERIOD_S)
        assert await place.owners("v1", "team-a") == ["volcano", "team-a"]
        assert bundles == [(await registered(place.client, one))["spec"]["caBundle"] for one in ("v1", "team-a")]
        slices = (await place.client.request("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"))[
            "items"
        ]
        assert len({one["ports"][0]["port"] for one in slices}) == len(slices) == 2
        await place.end("volcano")
        assert await place.owners("v1", "team-a") == [None, "team-a"], "each takes back its own"
        await place.come_to("team-a", "team-a")
        await place.end("team-a")
        assert await place.owners("v1", "team-a") == [None, None]

    story(authority, tell)


def test_who_is_gone_without_a_word_keeps_v1_from_nobody(authority):
    async def tell(place):
        place.begin("volcano")
        await place.come_to("volcano", None)
        found = await registered(place.client, "v1")
        await place.kill("volcano")
        place.begin("team-a")
        await place.come_to("volcano", "team-a")
        gone = {"status": {"conditions": [{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck"}]}}
        path = ApiService.kind_info.path(name=found["metadata"]["name"])
        await place.client.request("PATCH", path, gone, content_type="application/merge-patch+json")
        await place.come_to("team-a", "team-a")

    story(authority, tell)


@pytest.mark.parametrize(
    ("since_s", "owner", "stays"),
    [(601, "team-a", False), (590, "team-a", True), (601, None, True), (None, "team-a", True)],
)
def test_another_takes_back_what_a_killed_scheduler_left(authority, monkeypatch, since_s, owner, stays):
    """Of a version that nobody answers for API servers cannot say what it holds: no namespace of the cluster could be deleted."""

    async def versions(_):
        return ["v1", "team-a", "nowhere"]  # as a real API server has it, whether they answer or not

    monkeypatch.setattr(Answering, "_versions", versions)

    async def tell(place):
        place.begin("team-a")
        await place.come_to("team-a", "team-a")
        await place.kill("team-a")
        since = "yesterday" if since_s is None else rfc3339(SystemClock().now() - timedelta(seconds=since_s))
        gone = {"type": "Available", "status": "False", "reason": "ServiceNotFound", "lastTransitionTime": since}
        left = {"status": {"conditions": [gone]}, "metadata": {"annotations": {ANSWERS_OF: owner}}}
        path = ApiService.kind_info.path(name=f"team-a.{EXPLANATION.group}")
        await place.client.request("PATCH", path, left, content_type="application/merge-patch+json")
        place.begin("volcano")

        async def leads():
            return (await place.owners("v1")) == ["volcano"]

        await until(leads, within_s=3 * PERIOD_S)
        await asyncio.sleep(PERIOD_S)
        assert (await registered(place.client, "team-a") is not None) == stays
        await place.end("volcano")

    story(authority, tell)


def test_who_was_away_for_long_registers_itself_again(authority):
    async def tell(place):
        place.begin("team-a")
        await place.come_to("team-a", "team-a")
        for version in ("v1", "team-a"):
            await place.client.request("DELETE", ApiService.kind_info.path(name=f"{version}.{EXPLANATION.group}"))
        await place.come_to("team-a", "team-a")

    story(authority, tell)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("volcano", "v1"), ("team-a", "team-a"), ("kube.example.com", "s-"), ("v2", "s-"), ("v1beta1", "s-"), ("Team", "s-"),
        ("9", "s-"), ("a" * 300, "s-"), ("a-", "s-"), ("", "s-"), ("vv", "vv"),
    ],
)  # fmt: skip
def test_versions_are_labels_that_tell_schedulers_apart(name, version):
    found = version_of(name)
    assert found == version or (version == "s-" and found.startswith("s-"))
    assert len(found) <= 30
    assert found != version_of(name + "x")


def test_a_desk_says_what_it_has_by_its_own_versions_alone():
    desk = AnswerDesk(None, None, TRUST, frozenset({"team-a", "v1"}))

    def asked(path):
        from hekla.apiserver.admission import User
        from hekla.app.standalone import answer_desk
        from hekla.wire.messages import Request

        before, answer_desk.user_of = answer_desk.user_of, lambda request, trust: User("u", ())
        try:
            return asyncio.run(desk.answer(Request("GET", path)))
        finally:
            answer_desk.user_of = before

    found = msgspec.json.decode(asked(f"{ROOT}/team-a").body)
    assert found["groupVersion"] == "scheduling.hekla.dev/team-a"
    assert {one["name"] for one in found["resources"]} == {"explanations", "schedulers", "snapshots"}
    assert asked(f"{ROOT}/team-b").status == 404
    assert asked(f"{ROOT}/team-b/namespaces/default/explanations/pod.a").status == 404
