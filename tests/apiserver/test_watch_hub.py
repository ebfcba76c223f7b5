import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hekla.apiserver import watch_hub
from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.store import CompactedError, Key, Stored
from hekla.apiserver.watch_hub import HIGH_WATER_BYTES, Watch, WatchHub, WatchRequest


class Reader:
    """A sink that remembers, reads when told, and hangs up when told."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.data, self.is_slow, self.unread = b"", is_slow, 0
        self.writes = 0
        self.ended = ""
        self._callbacks: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        if not self.ended:
            self.writes += 1
            self.data += data
            self.unread += len(data) if self.is_slow else 0

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def hang_up(self) -> None:
        self._end("hung up")

    @property
    def buffered(self) -> int:
        return self.unread

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            for callback in self._callbacks:
                callback()

    @property
    def events(self) -> list[tuple[str, str, int]]:
        found = [json.loads(line) for line in self.data.splitlines()]
        return [(event["type"], event.get("name", ""), event["revision"]) for event in found]


class Encoder:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, type: str, stored: Stored, revision: int) -> bytes:
        self.calls += 1
        return json.dumps({"type": type, "name": stored.key.name, "revision": revision}).encode() + b"\n"


encode = Encoder()


def is_red(stored: Stored) -> bool:
    return stored.labels.get("color") == "red"


def run(story: Callable[[MemoryStore, WatchHub], Awaitable[None]], limits: WindowLimits | None = None) -> None:
    async def told() -> None:
        store = MemoryStore(limits=limits)
        hub = WatchHub(store)
        await story(store, hub)
        hub.close()
        await store.close()

    asyncio.run(told())


async def put(
    store: MemoryStore, name: str, namespace: str = "ml", node: str = "", size: int = 1, **labels: str
) -> int:
    fields = {"metadata.name": name, "spec.nodeName": node}
    body = b"x" * size
    key = Key("pods", namespace, name)
    return (await store.put(key, lambda _: (body, b""), expected=None, labels=labels, fields=fields)).revision


async def delete(store: MemoryStore, name: str, namespace: str = "ml") -> int:
    return (await store.delete(Key("pods", namespace, name), lambda _: (b"gone", b""), expected=None)).revision


def watch(hub: WatchHub, reader: Reader, **options: Any) -> Watch:
    return hub.watch(WatchRequest(**{"resource": "pods", "encode": encode} | options), reader)


def test_a_watcher_sees_every_change_in_order() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader = Reader()
        watch(hub, reader)
        first = await put(store, "a")
        await put(store, "a")
        await store.put(Key("nodes", "", "n"), lambda _: (b"", b""), expected=0, labels={})
        last = await delete(store, "a")
        assert reader.events == [("ADDED", "a", first), ("MODIFIED", "a", first + 1), ("DELETED", "a", last)]

    run(story)


def test_an_event_is_encoded_once_for_all_who_see_it_alike() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        readers = [Reader() for _ in range(100)]
        mine = Encoder()
        for number, reader in enumerate(readers):
            watch(hub, reader, encode=mine, namespace="ml" if number % 2 else "")
        await asyncio.gather(*(put(store, f"p{i}") for i in range(10)))
        assert mine.calls == 10
        assert {reader.data for reader in readers} == {readers[0].data}
        assert [reader.writes for reader in readers] == [1] * 100

    run(story)


def test_namespace_and_pinned_field_narrow_what_is_seen() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        in_ml, on_n1, named, elsewhere = Reader(), Reader(), Reader(), Reader()
        watch(hub, in_ml, namespace="ml")
        watch(hub, on_n1, field=("spec.nodeName", "n1"))
        watch(hub, named, namespace="ml", field=("metadata.name", "a"))
        watch(hub, elsewhere, namespace="other")
        first = await put(store, "a")
        bound = await put(store, "a", node="n1")
        await put(store, "b", namespace="web", node="n1")
        moved = await put(store, "a", node="n2")
        assert in_ml.events == [("ADDED", "a", first), ("MODIFIED", "a", bound), ("MODIFIED", "a", moved)]
        assert on_n1.events == [("ADDED", "a", bound), ("ADDED", "b", bound + 1), ("DELETED", "a", moved)]
        assert named.events == in_ml.events
        assert elsewhere.events == []

    run(story)


def test_an_object_that_ceases_to_match_is_deleted_for_that_watcher_and_added_when_it_matches_again() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        live, resumed = Reader(), Reader()
        watch(hub, live, matches=is_red)
        start = store.revision
        for color in ("blue", "red", "red", "blue", "blue", "red"):
            await put(store, "a", color=color)
        await delete(store, "a")
        expected = [
            ("ADDED", "a", start + 2), ("MODIFIED", "a", start + 3), ("DELETED", "a", start + 4),
            ("ADDED", "a", start + 6), ("DELETED", "a", start + 7),
        ]  # fmt: skip
        assert live.events == expected
        watch(hub, resumed, matches=is_red, since=start)
        assert resumed.events == expected

    run(story)


def test_a_watch_resumes_after_a_revision_without_gap_or_repetition() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        revisions = [await put(store, f"p{i}") for i in range(600)]
        reader = Reader()
        watch(hub, reader, since=revisions[9])
        revisions.append(await put(store, "last"))
        assert [revision for _, _, revision in reader.events] == revisions[10:]

    run(story)


def test_a_watcher_that_knows_more_than_is_durable_is_told_nothing_twice() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        live, slow = Reader(), Reader(is_slow=True)
        since = store.revision + 2
        one, other = (watch(hub, reader, since=since) for reader in (live, slow))
        slow.unread = HIGH_WATER_BYTES + 1
        assert one.progress == since
        *_, last = await asyncio.gather(*(put(store, name) for name in "aab"))  # one batch, seen in part
        assert (one.progress, other.progress) == (last, since)
        slow.unread = 0
        while not slow.events:
            await asyncio.sleep(0.001)
        assert live.events == slow.events == [("ADDED", "b", last)]

    run(story)


def test_the_initial_state_comes_first_then_its_end_then_changes() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        for name in ("b", "a"):
            await put(store, name, color="red")
        at = await put(store, "c", color="blue")
        reader = Reader()
        ending = lambda revision: b'{"type":"BOOKMARK","revision":%d}\n' % revision  # noqa: E731  # as short as it is
        watch(hub, reader, has_initial=True, initial_end=ending, matches=is_red)
        later = await put(store, "d", color="red")
        assert reader.events == [
            ("ADDED", "a", at - 1), ("ADDED", "b", at - 2), ("BOOKMARK", "", at), ("ADDED", "d", later),
        ]  # fmt: skip

    run(story)


def test_a_revision_that_is_gone_is_refused_before_anything_is_written() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        for _ in range(10):
            await put(store, "a")
        reader = Reader()
        with pytest.raises(CompactedError):
            watch(hub, reader, since=store.oldest - 1)
        assert (reader.data, reader.ended, hub.count) == (b"", "", 0)

    run(story, WindowLimits(changes=3))


def test_a_slow_reader_is_fed_at_its_pace_and_misses_nothing() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader = Reader(is_slow=True)
        one = watch(hub, reader)
        reader.unread = HIGH_WATER_BYTES + 1
        revisions = [await put(store, f"p{i}") for i in range(50)]
        assert reader.events == []
        assert one.progress == revisions[0] - 1
        reader.unread = 0
        while one.progress < revisions[-1]:
            await asyncio.sleep(0.001)
        revisions.append(await put(store, "last"))
        assert [revision for _, _, revision in reader.events] == revisions

    run(story)


def test_a_reader_too_slow_for_the_window_is_told_that_its_revision_is_gone() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader = Reader(is_slow=True)
        gone = lambda error: b'{"type":"ERROR","revision":%d}\n' % error.oldest  # noqa: E731  # as short as it is
        watch(hub, reader, gone=gone)
        reader.unread = HIGH_WATER_BYTES + 1
        for _ in range(20):
            await put(store, "a")
        reader.unread = 0
        while not reader.ended:
            await asyncio.sleep(0.001)
        assert reader.events == [("ERROR", "", store.oldest)]
        assert (reader.ended, hub.count) == ("closed", 0)

    run(story, WindowLimits(changes=5))


def test_a_reader_that_reads_nothing_at_all_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_hub, "STALLED_S", 0.0)

    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader, other = Reader(is_slow=True), Reader()
        watch(hub, reader)
        watch(hub, other)
        reader.unread = HIGH_WATER_BYTES + 1
        await put(store, "a")
        while not reader.ended:
            await asyncio.sleep(0.001)
        await put(store, "b")
        assert (reader.ended, len(other.events), hub.count) == ("aborted", 2, 1)

    run(story)


def test_memory_for_a_slow_reader_is_bounded_however_much_there_is_to_send() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        await asyncio.gather(*(put(store, f"p{i}") for i in range(2000)))
        big = lambda _type, _stored, _revision: b"x" * 10_000  # noqa: E731  # as short as it is
        for options in ({"has_initial": True}, {"since": store.oldest}):
            reader = Reader(is_slow=True)
            watch(hub, reader, encode=big, **options)
            assert HIGH_WATER_BYTES < reader.unread < 5 * HIGH_WATER_BYTES

    run(story)


def test_one_who_hangs_up_is_forgotten() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        readers = [Reader() for _ in range(3)]
        for reader in readers:
            watch(hub, reader, field=("spec.nodeName", "n1"))
        readers[0].hang_up()
        await put(store, "a", node="n1")
        assert hub.count == 2
        assert [len(reader.events) for reader in readers] == [0, 1, 1]
        hub.close()
        assert (hub.count, readers[1].ended) == (0, "closed")
        await put(store, "b", node="n1")

    run(story)


def test_an_encoder_that_fails_costs_only_its_own_watchers() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        def broken(_type: str, _stored: Stored, _revision: int) -> bytes:
            raise ValueError("mine")

        bad, good, resumed = Reader(), Reader(), Reader()
        watch(hub, bad, encode=broken)
        watch(hub, good)
        await put(store, "a")
        assert (bad.ended, len(good.events)) == ("aborted", 1)
        watch(hub, resumed, encode=broken, since=store.oldest)
        assert (resumed.ended, hub.count) == ("aborted", 1)

    run(story)


def test_refused_writes_are_never_shown() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader = Reader()
        watch(hub, reader)
        store.refuse_commits = 1
        await asyncio.gather(put(store, "lost"), put(store, "also"), return_exceptions=True)
        kept = await put(store, "kept")
        assert reader.events == [("ADDED", "kept", kept)]

    run(story)


def test_bookmarks_tell_how_far_an_idle_watch_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_hub, "BOOKMARK_PAUSE_S", 0.0)

    async def story(store: MemoryStore, hub: WatchHub) -> None:
        reader = Reader()
        mark = lambda revision: b'{"type":"BOOKMARK","revision":%d}\n' % revision  # noqa: E731  # as short as it is
        watch(hub, reader, bookmark=mark, field=("metadata.name", "nobody"))
        last = await put(store, "a")
        while not reader.events or reader.events[-1] != ("BOOKMARK", "", last):
            await asyncio.sleep(0.001)

    run(story)


def test_a_change_is_offered_only_to_watchers_it_can_concern() -> None:
    async def story(store: MemoryStore, hub: WatchHub) -> None:
        asked = 0

        def count(_stored: Stored) -> bool:
            nonlocal asked
            asked += 1
            return True

        for number in range(1000):
            watch(hub, Reader(), matches=count, field=("spec.nodeName", f"n{number}"))
            watch(hub, Reader(), matches=count, namespace=f"ns{number}")
        await put(store, "a", node="n7")
        assert asked == 1
        assert hub.count == 2000

    run(story)
