import asyncio
from dataclasses import replace

from structlog.testing import capture_logs

from hekla.api.core import ConfigMap
from hekla.kube import events as events_module
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock, SystemClock, rfc3339
from hekla.kube.commands import Event, Target
from hekla.kube.events import AT_ONCE, BURST, GIVES_WAY_S, LONGEST_REST_S, MAX_PENDING, REST_PER_WRITE, EventRecorder
from hekla.kube.in_process import InProcessTransport
from hekla.testing import virtual_time
from hekla.testing.server import api_server


def target(name="c"):
    return Target(kind=ConfigMap, name=name, namespace="default", uid=f"uid-{name}")


def run(scenario):
    async def main():
        async with api_server() as server:
            client = ApiClient(InProcessTransport(server.handle))
            recorder = EventRecorder(client, LoopClock(), component="tester")
            task = asyncio.create_task(recorder.run())
            await scenario(client, recorder)
            task.cancel()

    virtual_time.run(main())


async def events(client):
    return (await client.request("GET", "/api/v1/namespaces/default/events"))["items"]


def test_the_same_event_is_one_object_with_a_count_even_after_a_restart():
    async def scenario(client, recorder):
        for _ in range(3):
            recorder.record(Event(target(), "Waiting", "no room"))
            await recorder.written()
        other = EventRecorder(client, LoopClock(), component="tester")
        task = asyncio.create_task(other.run())
        other.record(Event(target(), "Waiting", "no room"))
        await other.written()
        task.cancel()
        assert [(one["reason"], one["count"]) for one in await events(client)] == [("Waiting", 4)]

    run(scenario)


def test_what_waits_counts_whatever_revision_it_was_about_and_says_apart_who_told_it():
    async def scenario(client, recorder):
        for revision in ("7", "8"):
            recorder.record(Event(replace(target(), resource_version=revision), "Waiting", "no room"))
        recorder.record(Event(target(), "Waiting", "no room at all"), component="another")
        await recorder.written()
        said = sorted((one["source"]["component"], one["count"]) for one in await events(client))
        assert said == [("another", 1), ("tester", 2)]

    run(scenario)


def test_more_events_than_may_wait_push_the_oldest_out_and_are_counted():
    recorder = EventRecorder(ApiClient(InProcessTransport(lambda request: None)), SystemClock(), component="tester")
    for number in range(MAX_PENDING + 10):
        recorder.record(Event(target(f"c{number}"), "Odd", "nobody writes yet"))
    assert recorder.dropped == 10


def test_an_object_that_says_ever_new_things_is_held_back():
    async def scenario(client, recorder):
        for number in range(BURST * 2):
            recorder.record(Event(target(), "Odd", f"message {number}"))
        recorder.record(Event(target("other"), "Odd", "still heard"))
        await recorder.written()
        said = await events(client)
        assert len(said) == BURST + 1
        assert recorder.dropped == BURST

    run(scenario)


def test_an_event_that_has_expired_is_made_anew():
    async def scenario(client, recorder):
        recorder.record(Event(target(), "Waiting", "no room"))
        await recorder.written()
        name = (await events(client))[0]["metadata"]["name"]
        await client.request("DELETE", f"/api/v1/namespaces/default/events/{name}")
        recorder.record(Event(target(), "Waiting", "no room"))
        await recorder.written()
        assert [one["count"] for one in await events(client)] == [1]

    run(scenario)


def test_a_namespace_that_is_gone_costs_no_more_than_its_events():
    async def scenario(client, recorder):
        recorder.record(Event(Target(kind=ConfigMap, name="x", namespace="nowhere"), "Odd", "lost"))
        recorder.record(Event(target(), "Waiting", "heard"))
        await recorder.written()
        assert [one["reason"] for one in await events(client)] == ["Waiting"]

    run(scenario)


def test_events_take_a_small_share_of_the_time_of_a_busy_owner_and_none_is_lost():
    async def main():
        async with api_server() as server:
            client, busy = ApiClient(InProcessTransport(server.handle)), [True]
            recorder = EventRecorder(client, LoopClock(), component="tester", is_busy=lambda: busy[0])
            slow, taken = recorder._write_or_log, []

            async def write(*event):
                began_s = LoopClock().elapsed_s()
                await asyncio.sleep(1)
                await slow(*event)
                taken.append(began_s)

            recorder._write_or_log = write
            asked_s = LoopClock().elapsed_s()
            task = asyncio.create_task(recorder.run())
            for number in range(AT_ONCE * 3):
                recorder.record(Event(target(f"c{number}"), "Odd", "told in time"))
            await asyncio.sleep(1)
            await asyncio.sleep(REST_PER_WRITE + 0.5)
            busy[0] = False
            await recorder.written()
            assert round(taken[0] - asked_s, 6) == GIVES_WAY_S, "what is urgent comes first"
            assert sorted(set(taken)) == [taken[0], taken[0] + 1 + REST_PER_WRITE, taken[0] + 2 + REST_PER_WRITE]
            assert len(await events(client)) == AT_ONCE * 3
            task.cancel()

    virtual_time.run(main())


def test_what_two_components_say_in_the_same_words_is_two_events_and_neither_ends_the_telling_when_they_expire():
    """Both forgot the one that had expired, the second found nothing to forget, and no event was ever written again."""

    async def scenario(client, recorder):
        async def told_by_both():
            for component in ("one", "another"):
                recorder.record(Event(target(), "Waiting", "no room"), component=component)
            await recorder.written()
            return sorted((one["source"]["component"], one["count"]) for one in await events(client))

        assert await told_by_both() == [("another", 1), ("one", 1)]
        assert await told_by_both() == [("another", 2), ("one", 2)]
        for one in await events(client):
            await client.request("DELETE", f"/api/v1/namespaces/default/events/{one['metadata']['name']}")
        assert await told_by_both() == [("another", 1), ("one", 1)]

    run(scenario)


def test_objects_of_one_name_in_two_namespaces_are_counted_apart_though_nobody_knows_their_uid():
    async def scenario(client, recorder):
        await client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
        for _ in range(2):
            for namespace in ("default", "other"):
                recorder.record(Event(Target(kind=ConfigMap, name="c", namespace=namespace), "Waiting", "no room"))
                await recorder.written()
        for namespace in ("default", "other"):
            found = (await client.request("GET", f"/api/v1/namespaces/{namespace}/events"))["items"]
            assert [one["count"] for one in found] == [2]

    run(scenario)


def test_a_mistake_with_one_event_silences_no_other():
    async def scenario(client, recorder):
        create = recorder._create

        async def mistaken(told, name):
            if told.event.message == "wrong":
                raise ValueError("a mistake of ours")
            await create(told, name)

        recorder._create = mistaken
        for message in ("wrong", "right"):
            recorder.record(Event(target(), "Odd", message))
        await recorder.written()
        assert [one["message"] for one in await events(client)] == ["right"]

    run(scenario)


def test_an_event_says_when_it_happened_first_and_last_however_late_it_is_written():
    async def main():
        async with api_server() as server:
            clock = LoopClock()
            client = ApiClient(InProcessTransport(server.handle))
            recorder = EventRecorder(client, clock, component="tester")
            first = clock.now()
            recorder.record(Event(target(), "Waiting", "no room"))
            await asyncio.sleep(20)
            last = clock.now()
            recorder.record(Event(target(), "Waiting", "no room"))
            await asyncio.sleep(100)
            task = asyncio.create_task(recorder.run())
            await recorder.written()
            [told] = await events(client)
            assert (told["firstTimestamp"], told["lastTimestamp"]) == (rfc3339(first), rfc3339(last))
            task.cancel()

    virtual_time.run(main())


def test_after_a_write_that_took_minutes_a_busy_owner_rests_for_no_hour():
    recorder = EventRecorder(ApiClient(InProcessTransport(lambda request: None)), LoopClock(), component="tester")
    assert recorder._rest_s(1.0) == REST_PER_WRITE
    assert recorder._rest_s(600.0) == LONGEST_REST_S


def test_an_event_that_is_pushed_out_of_memory_while_it_is_counted_is_written_all_the_same(monkeypatch):
    """2,500 groups that waited said more than is remembered: "event not written", with a KeyError, again and again."""
    monkeypatch.setattr(events_module, "MAX_REMEMBERED", 1)
    is_made = asyncio.Event()

    class Slow:
        patched = 0

        async def request(self, method, path, body=None, **_):
            if method == "PATCH":
                await is_made.wait()
                self.patched += 1
            elif "second" in body["involvedObject"]["name"]:
                asyncio.get_running_loop().call_later(0, is_made.set)

    async def scenario():
        recorder = EventRecorder(client := Slow(), LoopClock(), component="tester")
        task = asyncio.create_task(recorder.run())
        recorder.record(Event(target("first"), "Waiting", "no room"))
        await recorder.written()
        recorder.record(Event(target("first"), "Waiting", "no room"))
        recorder.record(Event(target("second"), "Waiting", "no room"))
        await recorder.written()
        task.cancel()
        return client.patched

    with capture_logs() as said:
        assert virtual_time.run(scenario()) == 1
    assert not said
