import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from hekla.api.core import ConfigMap, Secret
from hekla.api.kthena import ModelServer
from hekla.api.pods import Pod
from hekla.apiserver.memory_store import MemoryStore
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError, GoneError, TransportError
from hekla.kube.https import HttpsTransport
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import DOUBT_S, TOLD_IN_A_ROW, Informers
from hekla.testing import virtual_time
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server
from hekla.wire.server import Server


def config_map(name, **data):
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


class History:
    """What a handler was told, and what it must have been: every change once, old following new."""

    def __init__(self):
        self.told = []
        self.last = {}

    def __call__(self, old, new):
        obj = new if new is not None else old
        key = obj.metadata.name
        assert (old.metadata.resource_version if old else None) == self.last.get(key), f"{key}: a change was lost"
        if new is None:
            del self.last[key]
        else:
            assert new.metadata.resource_version != self.last.get(key), f"{key}: a change was repeated"
            self.last[key] = new.metadata.resource_version
        self.told.append((key, "deleted" if new is None else "added" if old is None else "changed"))


@asynccontextmanager
async def world(**settings):
    async with api_server(**settings) as server:
        flaky = FlakyTransport(InProcessTransport(server.handle))
        writer = ApiClient(InProcessTransport(server.handle))
        async with Informers(ApiClient(flaky), dice=random.Random(7)) as informers:
            yield writer, flaky, informers


async def settled(informer, writer):
    """Until the informer is as new as the server."""
    page = await writer.list(ConfigMap)
    for _ in range(10_000):
        mine = {obj.metadata.name: obj.metadata.resource_version for obj in informer.cache}
        if mine == {obj.metadata.name: obj.metadata.resource_version for obj in page.items}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the cache has {mine}")


def test_handlers_hear_of_what_is_there_and_of_every_change():
    async def scenario():
        async with world() as (writer, _, informers):
            await writer.create(ConfigMap, config_map("before"))
            informer = informers.of(ConfigMap, namespace="default")
            await informer.synced()
            history = History()
            informer.add_handler(history)
            await writer.create(ConfigMap, config_map("one"))
            await writer.patch(ConfigMap, "one", {"data": {"a": "b"}}, "default")
            await writer.delete(ConfigMap, "one", "default")
            await settled(informer, writer)
            changes = [told for told in history.told if told[0] == "one"]
            assert changes == [("one", "added"), ("one", "changed"), ("one", "deleted")]
            assert ("before", "added") in history.told

    virtual_time.run(scenario())


def test_an_informer_is_shared_by_all_who_ask():
    async def scenario():
        async with world() as (_, flaky, informers):
            assert informers.of(ConfigMap) is informers.of(ConfigMap)
            await informers.synced()
            assert flaky.streams == 1 or not flaky.streams

    virtual_time.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_or_repeated_when_streams_break_at_any_event(seed):
    async def scenario():
        dice = random.Random(seed)
        async with world() as (writer, flaky, informers):
            informer = informers.of(ConfigMap)
            history = History()
            informer.add_handler(history)
            alive = set()
            for step in range(200):
                flaky.cut_after = dice.choice([1, 2, 3, None])
                await change_something(writer, dice, alive, step)
                if dice.random() < 0.2:
                    flaky.cut()
                if dice.random() < 0.1:
                    flaky.is_away = True
                    await asyncio.sleep(dice.random() * 3)
                    flaky.is_away = False
                await asyncio.sleep(dice.choice([0, 0.01, 1]))
            flaky.cut_after = None
            await settled(informer, writer)

    virtual_time.run(scenario())


async def change_something(writer, dice, alive, step):
    choice = dice.random()
    if choice < 0.4 or not alive:
        name = f"c{dice.randrange(10)}"
        if name not in alive:
            await writer.create(ConfigMap, config_map(name))
            alive.add(name)
    elif choice < 0.8:
        await writer.patch(ConfigMap, dice.choice(sorted(alive)), {"data": {"step": str(step)}}, "default")
    else:
        name = dice.choice(sorted(alive))
        await writer.delete(ConfigMap, name, "default")
        alive.discard(name)


def test_a_forgotten_revision_leads_to_a_new_list_that_tells_only_the_differences():
    async def scenario():
        async with world() as (writer, flaky, informers):
            for name in ("same", "changed", "deleted", "replaced"):
                await writer.create(ConfigMap, config_map(name))
            informer = informers.of(ConfigMap, namespace="default")
            await informer.synced()
            history = History()
            informer.add_handler(history)
            history.told.clear()
            flaky.is_away = True
            flaky.cut()
            await writer.patch(ConfigMap, "changed", {"data": {"a": "b"}}, "default")
            await writer.delete(ConfigMap, "deleted", "default")
            await writer.delete(ConfigMap, "replaced", "default")
            await writer.create(ConfigMap, config_map("replaced"))
            await writer.create(ConfigMap, config_map("new"))
            flaky.before = gone_once()
            flaky.is_away = False
            await settled(informer, writer)
            assert sorted(history.told) == [
                ("changed", "changed"),
                ("deleted", "deleted"),
                ("new", "added"),
                ("replaced", "added"),
                ("replaced", "deleted"),
            ]

    virtual_time.run(scenario())


def gone_once():
    asked = []

    def verdict(request):
        if "watch=true" in request.target and not asked:
            asked.append(request.target)
            raise GoneError(410, "Expired", "too old resource version")

    return verdict


def test_those_who_wait_for_a_revision_are_called_when_the_cache_shows_it():
    async def scenario():
        async with world() as (writer, _, informers):
            informer = informers.of(ConfigMap)
            await informer.synced()
            made = await writer.create(ConfigMap, config_map("one"))
            seen, gone = asyncio.Event(), asyncio.Event()
            informer.when_seen(int(made.metadata.resource_version), seen.set)
            await seen.wait()
            assert informer.cache.get("default", "one") is not None
            informer.when_gone(("default", "one"), made.metadata.uid, gone.set)
            assert not gone.is_set()
            await writer.delete(ConfigMap, "one", "default")
            await gone.wait()

    virtual_time.run(scenario())


def test_a_kind_that_is_not_installed_is_known_to_be_so_and_told_of_once():
    async def scenario():
        async with world() as (_, _, informers):
            with capture_logs() as log:
                informer = informers.of(ModelServer)
                await informer.known()
                await asyncio.sleep(600)
            assert not informer.is_synced
            assert informer.trouble
            refused = [one["log_level"] for one in log if one["event"] == "watch refused"]
            assert refused[0] == "warning"
            assert len(refused) > 10
            assert set(refused[1:]) == {"debug"}

    virtual_time.run(scenario())


def test_a_server_that_is_back_and_still_begins_is_asked_again_at_once():
    """Half a minute away, and then `storage is (re)initializing` once: custom objects were followed half a minute after it was back."""

    class Beginning(InProcessTransport):
        answers = []

        async def send(self, request):
            self._refuse()
            return await super().send(request)

        async def stream(self, request):
            self._refuse()
            async for piece in super().stream(request):
                yield piece

        def _refuse(self):
            if asyncio.get_running_loop().time() < 300.0:
                raise TransportError("no connection")
            if self.answers:
                raise self.answers.pop()

    async def scenario():
        async with api_server() as server:
            transport = Beginning(server.handle)
            transport.answers = [ApiError(503, "", "storage is (re)initializing") for _ in range(3)]
            async with Informers(ApiClient(transport), dice=random.Random(7)) as informers:
                informer = informers.of(ConfigMap)
                while transport.answers[2:]:
                    await asyncio.sleep(0.1)
                back = asyncio.get_running_loop().time()
                await informer.synced()
                assert asyncio.get_running_loop().time() - back < 3.0

    virtual_time.run(scenario())


def test_a_handler_that_fails_does_not_stop_the_others():
    async def scenario():
        async with world() as (writer, _, informers):
            informer = informers.of(ConfigMap)
            await informer.synced()
            history = History()

            def broken(old, new):
                raise RuntimeError("a bug")

            informer.add_handler(broken)
            informer.add_handler(history)
            await writer.create(ConfigMap, config_map("one"))
            await settled(informer, writer)
            assert ("one", "added") in history.told

    virtual_time.run(scenario())


def test_a_streamed_list_fills_the_cache_and_is_given_up_where_it_is_unknown():
    async def scenario():
        async with world() as (writer, flaky, informers):
            await writer.create(ConfigMap, config_map("one"))
            informers.client.prefers_watch_list = True
            await informers.of(ConfigMap).synced()
            assert informers.of(ConfigMap).cache.get("default", "one") is not None
            assert any("sendInitialEvents=true" in request for request in flaky.requests)
            assert not any("limit=" in request for request in flaky.requests)

    virtual_time.run(scenario())


@pytest.mark.parametrize("forgets", [False, True])
def test_a_restart_of_the_server_loses_and_repeats_nothing(forgets):
    """Over real sockets: the server goes away, the world changes, and another one answers on the same port."""

    async def scenario():
        store, wire = MemoryStore(), Server()
        async with api_server(store) as server:
            await wire.start(server.handle)
            port = wire.port
            writer = ApiClient(InProcessTransport(server.handle))
            await writer.create(ConfigMap, config_map("stays"))
            await writer.create(ConfigMap, config_map("goes"))
            client = ApiClient(HttpsTransport(f"http://127.0.0.1:{port}"))
            async with Informers(client, dice=random.Random(7)) as informers:
                informer = informers.of(ConfigMap, namespace="default")
                await informer.synced()
                history = History()
                informer.add_handler(history)
                await wire.stop(grace_s=0)
                await writer.delete(ConfigMap, "goes", "default")
                await writer.create(ConfigMap, config_map("comes"))
                await server.stop()
                if forgets:
                    informer.resource_version = "1"
                async with api_server(store) as again:
                    wire = Server()
                    await wire.start(again.handle, port=port)
                    await settled(informer, ApiClient(InProcessTransport(again.handle)))
                    await client.close()
                    await wire.stop(grace_s=0)
            assert sorted(history.last) == sorted({"stays", "comes"} | ({"kube-root-ca.crt"} & set(history.last)))
            assert history.told.count(("goes", "deleted")) == 1
            assert history.told.count(("comes", "added")) == 1

    asyncio.run(scenario())


def test_who_follows_many_objects_hears_of_each_once_although_they_change_meanwhile():
    many = TOLD_IN_A_ROW * 2 + 10

    async def scenario():
        async with world() as (writer, _, informers):
            for number in range(many):
                await writer.create(ConfigMap, config_map(f"c{number:05}"))
            informer = informers.of(ConfigMap, namespace="default")
            await informer.synced()
            history, others = History(), []

            def hear(old, new):
                if not others and len(history.told) > TOLD_IN_A_ROW:
                    others.append(asyncio.create_task(change()))
                history(old, new)

            async def change():
                for name in ("c00000", f"c{many - 1:05}"):
                    await writer.patch(ConfigMap, name, {"data": {"is": "new"}}, "default")
                for name in ("c00001", f"c{many - 2:05}"):
                    await writer.delete(ConfigMap, name, "default")
                await writer.create(ConfigMap, config_map(f"c{many - 2:05}"))
                await writer.create(ConfigMap, config_map("late"))

            await informer.follow(hear)
            await others[0]
            await settled(informer, writer)
            assert history.last == {obj.metadata.name: obj.metadata.resource_version for obj in informer.cache}

    virtual_time.run(scenario())


def test_a_server_that_is_away_is_told_of_once_and_so_is_its_return():
    async def main():
        async with world() as (writer, flaky, informers):
            with capture_logs() as told:
                for kind in (ConfigMap, Secret, Pod):
                    informers.of(kind)
                await informers.synced()
                flaky.cut()
                await asyncio.sleep(5)
                assert not loud(told), "a watch that is taken up again is no news"
                flaky.is_away = True
                flaky.cut()
                await asyncio.sleep(600)
                assert loud(told) == [("warning", "the API server cannot be reached")]
                flaky.is_away = False
                await asyncio.sleep(40)
                await writer.create(ConfigMap, config_map("a"))
                await asyncio.sleep(1)
                assert loud(told)[1:] == [("info", "the API server is reached again")]
                flaky.is_away = True
                flaky.cut()
                await asyncio.sleep(60)
                assert loud(told)[2:] == [("warning", "the API server cannot be reached")]

    virtual_time.run(main())


def loud(told):
    """What an operator reads."""
    return [(one["log_level"], one["event"]) for one in told if one["log_level"] != "debug"]


def test_caches_that_missed_something_are_filled_anew_for_who_begins_to_act_and_the_others_are_not():
    """A replica that comes back from behind a cut takes the lease within a second, and its watches within half a minute."""

    async def main():
        async with world() as (writer, flaky, informers):
            maps, secrets = informers.of(ConfigMap), informers.of(Secret)
            await informers.synced()
            flaky.is_away = True
            flaky.cut()
            await asyncio.sleep(300)
            await writer.create(ConfigMap, config_map("a"))
            flaky.is_away = False
            await informers.current()
            assert maps.cache.get("default", "a"), "it waited for its next try"
            await asyncio.sleep(DOUBT_S)
            del flaky.requests[:]
            await informers.current()
            assert flaky.requests == [], "nothing was missed"
            assert not secrets.is_doubtful

    virtual_time.run(main())
