import asyncio
import gc
import weakref

import pytest
from structlog.testing import capture_logs

from hekla.api.core import ConfigMap
from hekla.api.volcano import HyperNode
from hekla.app.standalone.components import is_optional
from hekla.app.standalone.health import Health
from hekla.app.standalone.office import FencedTransport, Office
from hekla.app.standalone.settings import StandaloneSettings
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.errors import TransportError
from hekla.kube.in_process import InProcessTransport
from hekla.testing import virtual_time
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server
from hekla.wire.messages import Request


class Elector:
    is_leader = True


class LocalConnection:
    """A connection to a server in this process, whose transports can be cut."""

    server = "local"

    def __init__(self, server):
        self._server = server
        self.transports = []

    def transport(self):
        self.transports.append(FlakyTransport(InProcessTransport(self._server.handle)))
        return self.transports[-1]


def office_of(server, **settings):
    connection = LocalConnection(server)
    said = StandaloneSettings(components=("scheduler",), namespace="default", **settings)
    return Office(said, connection, Health(), clock=LoopClock()), connection


def readiness(office):
    return office.health.answer(Request("GET", "/readyz"))


def test_who_leads_no_more_reads_but_does_not_write():
    async def main():
        async with api_server() as server:
            elector = Elector()
            client = ApiClient(FencedTransport(InProcessTransport(server.handle), elector))
            await client.create(ConfigMap, {"metadata": {"name": "a"}}, "default")
            elector.is_leader = False
            for write in (
                client.create(ConfigMap, {"metadata": {"name": "b"}}, "default"),
                client.patch(ConfigMap, "a", {"data": {"k": "v"}}, "default"),
                client.delete(ConfigMap, "a", "default"),
                client.bind("default", "pod", "node"),
            ):
                with pytest.raises(TransportError, match="leads no more"):
                    await write
            assert [one.metadata.name for one in (await client.list(ConfigMap, "default")).items if one.data == {}] == [
                "a"
            ]

    asyncio.run(main())


def test_two_offices_never_work_at_once_and_the_second_takes_over_with_fresh_caches():
    async def main():
        async with api_server() as server:
            offices, working, terms = [office_of(server) for _ in range(2)], [], []

            def work_of(number):
                async def work(informers):
                    assert not working, "two work at once"
                    assert informers.of(ConfigMap).is_synced, "caches were to be warm"
                    working.append(number)
                    terms.append(number)
                    try:
                        await offices[number][0].stopping.wait()
                    finally:
                        working.remove(number)

                return work

            tasks = [
                asyncio.create_task(office.serve_terms("scheduler", "boss", (ConfigMap,), is_optional, work_of(number)))
                for number, (office, _) in enumerate(offices)
            ]
            await asyncio.sleep(30)
            [leader] = working
            other = 1 - leader
            for transport in offices[leader][1].transports:
                transport.is_away = True
                transport.cut()
            await asyncio.sleep(60)
            assert working == [other]
            for transport in offices[leader][1].transports:
                transport.is_away = False
            await asyncio.sleep(60)  # the informers had backed off
            offices[other][0].stopping.set()
            await tasks[other]
            await asyncio.sleep(30)
            assert terms == [leader, other, leader], "who lost it waits for it again"
            offices[leader][0].stopping.set()
            await tasks[leader]

    virtual_time.run(main())


def test_a_standby_that_is_told_to_stop_ends_though_it_never_led():
    async def main():
        async with api_server() as server:

            async def work(informers):
                await asyncio.Event().wait()

            (first, _), (second, _) = office_of(server), office_of(server)
            leading = asyncio.create_task(first.serve_terms("a", "boss", (), is_optional, work))
            await asyncio.sleep(5)
            waiting = asyncio.create_task(second.serve_terms("a", "boss", (), is_optional, work))
            await asyncio.sleep(5)
            second.stopping.set()
            await waiting
            first.stopping.set()
            await leading

    virtual_time.run(main())


def test_who_was_told_to_wait_for_nobody_says_once_that_another_leads():
    """On a cluster where a first scheduler led, a second one with --no-leader-elect placed the same pods without a word."""

    async def main():
        async with api_server() as server:

            async def work(office):
                await office.stopping.wait()

            first, second, alone = office_of(server)[0], *(office_of(server, leader_elect=False)[0] for _ in range(2))
            with capture_logs() as told:
                tasks = [
                    asyncio.create_task(
                        one.serve_terms("scheduler", lease, (), is_optional, lambda _, one=one: work(one))
                    )
                    for one, lease in ((first, "boss"), (second, "boss"), (alone, "team"))
                ]
                await asyncio.sleep(300)
                for one in (first, second, alone):
                    one.stopping.set()
                await asyncio.gather(*tasks)
            [word] = [one for one in told if one["event"] == "another acts beside us"]
            assert (word["lease"], word["held_by"]) == ("boss", first.identity)
            assert "--no-leader-elect" in word["hint"]

    virtual_time.run(main())


def test_a_component_that_dies_says_so():
    async def main():
        async with api_server() as server:
            office, _ = office_of(server, leader_elect=False)

            async def work(informers):
                raise ValueError("broken")

            with pytest.raises(ExceptionGroup):
                await office.serve_terms("scheduler", "boss", (), is_optional, work)

    virtual_time.run(main())


def test_an_optional_kind_that_is_missing_keeps_nobody_from_being_ready():
    async def main():
        async with api_server() as server:
            office, _ = office_of(server, leader_elect=False)

            async def work(informers):
                await office.stopping.wait()

            task = asyncio.create_task(
                office.serve_terms("scheduler", "boss", (ConfigMap, HyperNode), is_optional, work)
            )
            await asyncio.sleep(5)
            assert readiness(office).status == 200
            office.stopping.set()
            await task
            strict, _ = office_of(server, leader_elect=False)
            task = asyncio.create_task(
                strict.serve_terms("scheduler", "boss", (HyperNode,), lambda _: False, lambda _: strict.stopping.wait())
            )
            await asyncio.sleep(5)
            answer = readiness(strict)
            assert answer.status == 503
            assert b"hypernodes.topology.volcano.sh" in answer.body
            strict.stopping.set()
            await task

    virtual_time.run(main())


def test_health_answers_what_the_kubelet_and_prometheus_ask():
    health = Health()
    said = {"scheduler": ""}
    health.checks["scheduler"] = lambda: said["scheduler"]
    for path, status, body in (
        ("/healthz", 200, b"ok"),
        ("/livez", 200, b"ok"),
        ("/readyz", 200, b"ok"),
        ("/x", 404, None),
    ):
        answer = health.answer(Request("GET", path))
        assert answer.status == status
        assert body is None or answer.body == body
    said["scheduler"] = "pods: being read"
    answer = health.answer(Request("GET", "/readyz"))
    assert (answer.status, answer.body) == (503, b"[-]scheduler: pods: being read\nreadyz check failed\n")
    assert b"python_info" in health.answer(Request("GET", "/metrics")).body
    assert health.answer(Request("POST", "/healthz")).status == 405


def test_a_lease_that_is_lost_and_taken_again_costs_the_server_no_second_list_and_leaves_nothing_behind():
    """An API server that was too busy to renew a lease was asked for every object anew; and what a term had frozen out of the garbage
    collector's sight was never freed, if it was a cycle: a scheduler of a large cluster grew by a cluster with each term."""

    async def main():
        async with api_server() as server:
            office, connection = office_of(server)
            terms, told = [], []

            class State:
                def __init__(self):
                    self.me = self  # what a term holds is full of cycles

                def on_map(self, old, new):
                    told.append((len(terms), new.metadata.name))

            async def work(informers):
                state = State()
                terms.append(weakref.ref(state))
                informers.of(ConfigMap).add_handler(state.on_map)
                gc.collect()
                gc.freeze()
                await office.stopping.wait()

            task = asyncio.create_task(office.serve_terms("scheduler", "boss", (ConfigMap,), is_optional, work))
            await asyncio.sleep(5)
            client = ApiClient(InProcessTransport(server.handle))
            await client.create(ConfigMap, {"metadata": {"name": "a"}}, "default")
            reading, renewing = sorted(
                connection.transports, key=lambda one: any("leases" in said for said in one.requests)
            )
            renewing.is_away = True
            await asyncio.sleep(30)
            renewing.is_away = False
            await asyncio.sleep(30)
            assert len(terms) == 2
            assert terms[0]() is None, "the first term's state lives"
            await client.create(ConfigMap, {"metadata": {"name": "b"}}, "default")
            await asyncio.sleep(1)
            lists = [one for one in reading.requests if "/configmaps" in one and "watch=" not in one]
            assert len(lists) == 1
            assert [(term, name) for term, name in told if name in "ab"] == [(1, "a"), (2, "a"), (2, "b")]
            office.stopping.set()
            await task

    try:
        virtual_time.run(main())
    finally:
        gc.unfreeze()
