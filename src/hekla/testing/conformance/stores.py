"""What every `Store` promises. A store's test class inherits `StoreContract` and says how to open one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.store import (
    GENESIS,
    Change,
    CompactedError,
    Key,
    Render,
    RevisionMismatchError,
    Store,
    StoreClosedError,
    Stored,
    StoreFullError,
    UndoneError,
)

A, B = Key("pods", "ml", "a"), Key("pods", "ml", "b")


def body_of(text: str) -> Render:
    """A body that carries its revision, as real ones do."""
    return lambda revision: (b'{"metadata":{"resourceVersion":"%d"},"text":"%s"}' % (revision, text.encode()), b"")


async def put(store: Store, key: Key, text: str = "x", *, expected: int | None = None) -> Stored:
    """Write an object without labels."""
    return await store.put(key, body_of(text), expected=expected, labels={})


async def delete(store: Store, key: Key, *, expected: int | None = None) -> Stored:
    """Remove an object."""
    return await store.delete(key, body_of("gone"), expected=expected)


async def raised(awaitable: Awaitable[object]) -> BaseException | None:
    """What awaiting raises."""
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001  # a test looks at whatever it is
        return error
    return None


class StoreContract:
    """The promises. Each test runs its own event loop, as the server does."""

    def open_store(self, directory: Path, limits: WindowLimits | None = None) -> Store:
        """A new store."""
        raise NotImplementedError

    def refuse_commits(self, store: Store, count: int) -> None:
        """Let the next commits fail as on a full disk."""
        raise NotImplementedError

    def run(
        self, directory: Path, story: Callable[[Store], Awaitable[None]], limits: WindowLimits | None = None
    ) -> None:
        """Open a store, live the story, close the store."""

        async def told() -> None:
            store = self.open_store(directory, limits)
            try:
                await story(store)
            finally:
                await store.close()

        asyncio.run(told())

    # ---- one object

    def test_an_empty_store_is_above_revision_one(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            assert store.revision == store.decided == store.oldest == GENESIS > 1
            assert store.get(A) is None
            assert list(store.list("pods")) == []
            assert store.count("pods") == 0

        self.run(tmp_path, story)

    def test_what_was_written_is_read_back(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            written = await store.put(
                A,
                lambda r: (b"body %d" % r, b"managed"),
                expected=0,
                labels={"app": "x"},
                fields={"spec.nodeName": "n"},
            )
            assert store.get(A) is written
            assert written.body == b"body %d" % written.revision
            assert written.managed_fields == b"managed"
            assert written.create_revision == written.revision == store.revision
            assert (written.labels, written.fields) == ({"app": "x"}, {"spec.nodeName": "n"})

        self.run(tmp_path, story)

    def test_fields_default_to_name_and_namespace(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            assert (await put(store, A)).fields == {"metadata.name": "a", "metadata.namespace": "ml"}
            assert (await put(store, Key("nodes", "", "n"))).fields == {"metadata.name": "n"}

        self.run(tmp_path, story)

    def test_a_kind_has_another_version_after_each_write_and_no_other_kind_has(self, tmp_path: Path) -> None:
        """Whoever made something of a kind's objects sees by it that this may be out of date."""

        async def story(store: Store) -> None:
            seen = [store.version_of("pods")]
            for write in (put(store, A), put(store, A, "y"), delete(store, A)):
                await write
                seen.append(store.version_of("pods"))
            assert len(set(seen)) == 4
            assert store.version_of("nodes") == 0

        self.run(tmp_path, story)

    def test_an_update_keeps_the_create_revision(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            second = await put(store, A, expected=first.revision)
            assert second.create_revision == first.revision < second.revision

        self.run(tmp_path, story)

    def test_a_stale_write_is_refused_with_what_is_there(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            for wrong in (0, first.revision - 1, first.revision + 1):
                error = await raised(put(store, A, expected=wrong))
                assert isinstance(error, RevisionMismatchError)
                assert error.current is first
            assert store.get(A) is first
            assert store.decided == first.revision

        self.run(tmp_path, story)

    def test_an_update_of_nothing_is_refused(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            error = await raised(put(store, A, expected=GENESIS))
            assert isinstance(error, RevisionMismatchError)
            assert error.current is None

        self.run(tmp_path, story)

    def test_of_two_writers_one_wins(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            both = [put(store, A, text, expected=first.revision) for text in ("left", "right")]
            results = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(results[0], Stored)
            assert isinstance(results[1], RevisionMismatchError)
            assert b"left" in results[0].body

        self.run(tmp_path, story)

    def test_a_deletion_leaves_its_last_state_to_watchers(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            seen: list[Change] = []
            store.subscribe(seen.extend, resource="pods")
            first = await store.put(A, body_of("x"), expected=0, labels={"app": "x"})
            last = await delete(store, A, expected=first.revision)
            assert store.get(A) is None
            assert last.revision > first.revision
            assert last.labels == {"app": "x"}
            assert seen[-1] == Change(last.revision, A, None, first, last)
            assert isinstance(await raised(delete(store, A)), RevisionMismatchError)

        self.run(tmp_path, story)

    def test_a_name_may_be_used_again(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            await put(store, A)
            gone = await delete(store, A)
            again = await put(store, A, expected=0)
            assert again.create_revision == again.revision > gone.revision

        self.run(tmp_path, story)

    def test_a_render_that_fails_changes_nothing(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            def render(_revision: int) -> tuple[bytes, bytes]:
                raise ValueError("no")

            assert isinstance(await raised(store.put(A, render, expected=0, labels={})), ValueError)
            assert store.get(A) is None
            assert store.decided == GENESIS
            assert (await put(store, A)).revision == GENESIS + 1

        self.run(tmp_path, story)

    # ---- lists

    def test_lists_are_in_order_of_namespace_and_name(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            keys = [Key("pods", ns, name) for ns in ("b", "a") for name in ("z", "a-1", "a", "m")]
            await asyncio.gather(*(put(store, key) for key in keys), put(store, Key("nodes", "", "n")))
            assert [one.key for one in store.list("pods")] == sorted(keys)
            assert [one.key.name for one in store.list("pods", "b")] == ["a", "a-1", "m", "z"]
            assert list(store.list("pods", "c")) == list(store.list("jobs")) == []
            assert store.count("pods") == 8
            assert list(store.resources()) == ["nodes", "pods"]

        self.run(tmp_path, story)

    def test_a_list_that_was_taken_does_not_change(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            before = store.list("pods")
            await put(store, B)
            await delete(store, A)
            assert list(before) == [first]

        self.run(tmp_path, story)

    def test_a_list_of_the_past_is_what_it_was(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            other = await put(store, B)
            await put(store, A)
            await delete(store, B)
            await put(store, Key("pods", "ml", "c"))
            assert list(store.list_at("pods", revision=other.revision)) == [first, other]
            assert list(store.list_at("pods", "ml", revision=first.revision)) == [first]
            assert list(store.list_at("pods", "other", revision=first.revision)) == []

        self.run(tmp_path, story)

    # ---- what is durable

    def test_readers_are_shown_only_what_is_durable(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = await put(store, A)
            writing = [asyncio.ensure_future(put(store, key, "new")) for key in (A, B)]
            await asyncio.sleep(0)
            assert store.get(A) is not first
            assert store.decided == first.revision + 2
            assert store.revision == first.revision
            assert store.get_durable(A) is first
            assert store.get_durable(B) is None
            assert list(store.list_durable("pods")) == [first]
            await asyncio.gather(*writing)
            assert store.get_durable(A) is store.get(A)
            assert len(store.list_durable("pods")) == 2

        self.run(tmp_path, story)

    def test_a_reader_of_what_was_decided_waits_until_it_is_durable(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            writing = asyncio.ensure_future(put(store, A))
            await asyncio.sleep(0)
            await store.settled(store.decided)
            assert store.revision == store.decided == GENESIS + 1
            await writing
            await store.settled(store.revision)

        self.run(tmp_path, story)

    def test_a_writer_that_goes_away_does_not_take_its_write_along(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            writing = asyncio.ensure_future(put(store, A))
            await asyncio.sleep(0)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await store.settled(GENESIS + 1)
            assert store.get_durable(A) is not None

        self.run(tmp_path, story)

    def test_what_watchers_are_told_is_what_readers_are_shown(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            batches: list[int] = []
            told: list[Change] = []

            def compare(changes: Sequence[Change]) -> None:
                batches.append(len(changes))
                assert store.revision == changes[-1].revision
                newest = {change.key: change.current for change in changes}
                assert {key: store.get_durable(key) for key in newest} == newest
                told.extend(changes)

            store.subscribe(compare, resource="pods")
            for _ in range(10):
                writing = [asyncio.ensure_future(put(store, key)) for key in (A, B, A)]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                writing.append(asyncio.ensure_future(put(store, A)))
                await asyncio.gather(*writing)
            assert len(told) == 40, "a comparison that fails is logged and tells nothing"
            assert max(batches) == 3

        self.run(tmp_path, story)

    def test_a_refused_commit_undoes_everything_that_was_built_on_it(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            seen: list[Change] = []
            store.subscribe(seen.extend, resource="pods")
            first = await put(store, A)
            self.refuse_commits(store, 1)
            writing = [asyncio.ensure_future(put(store, A, "lost", expected=first.revision))]
            await asyncio.sleep(0)
            lost = store.decided
            writing += [
                asyncio.ensure_future(put(store, A, "on top", expected=lost)),
                asyncio.ensure_future(put(store, B)),
                asyncio.ensure_future(delete(store, A)),
                asyncio.ensure_future(store.settled(lost)),  # type: ignore[arg-type]  # only its error is looked at
            ]
            errors = await asyncio.gather(*writing, return_exceptions=True)
            assert all(isinstance(error, StoreFullError) for error in errors)
            assert isinstance(errors[-1], UndoneError)
            assert store.get(A) is store.get_durable(A) is first
            assert store.get(B) is None
            assert store.revision == store.decided == first.revision
            assert [change.revision for change in seen] == [first.revision]

        self.run(tmp_path, story)

    def test_after_a_refusal_writes_go_on_with_new_revisions(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            self.refuse_commits(store, 2)
            assert isinstance(await raised(put(store, A)), StoreFullError)
            assert isinstance(await raised(put(store, A)), StoreFullError)
            written = await put(store, A, expected=0)
            assert written.revision == GENESIS + 3
            assert isinstance(await raised(store.settled(GENESIS + 1)), UndoneError)
            assert isinstance(await raised(store.settled(GENESIS + 2)), UndoneError)
            await store.settled(written.revision)
            assert [change.revision for change in store.changes("pods", GENESIS)] == [written.revision]

        self.run(tmp_path, story)

    # ---- watchers

    def test_a_subscriber_sees_the_past_and_then_the_present(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            revisions = [(await put(store, A)).revision for _ in range(5)]
            seen: list[Change] = []
            store.subscribe(seen.extend, resource="pods", since=revisions[1])
            assert [change.revision for change in seen] == revisions[2:]
            revisions.append((await put(store, B)).revision)
            await put(store, Key("nodes", "", "n"))
            assert [change.revision for change in seen] == revisions[2:]
            assert [(change.previous is None) for change in seen] == [False, False, False, True]

        self.run(tmp_path, story)

    def test_a_subscriber_to_everything_sees_all_resources_in_order(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            seen: list[Change] = []
            store.subscribe(seen.extend, resource="", since=GENESIS)
            await asyncio.gather(*(put(store, Key(kind, "", str(i))) for i in range(20) for kind in ("x", "y")))
            assert [change.revision for change in seen] == list(range(GENESIS + 1, GENESIS + 41))
            assert list(store.changes("", GENESIS + 10)) == seen[10:]

        self.run(tmp_path, story)

    def test_a_subscriber_that_knows_more_than_is_durable_is_told_nothing_twice(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            seen: list[Change] = []
            store.subscribe(seen.extend, resource="pods", since=GENESIS + 2)
            for _ in range(3):
                await put(store, A)
            assert [change.revision for change in seen] == [GENESIS + 3]

        self.run(tmp_path, story)

    def test_a_closed_subscription_hears_no_more(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            seen: list[Change] = []
            subscription = store.subscribe(seen.extend, resource="pods")
            subscription.close()
            subscription.close()
            await put(store, A)
            assert seen == []

        self.run(tmp_path, story)

    def test_a_subscriber_that_fails_harms_nobody(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            def fail(_changes: Sequence[Change]) -> None:
                raise ValueError("mine")

            seen: list[Change] = []
            store.subscribe(fail, resource="pods")
            store.subscribe(seen.extend, resource="pods")
            await put(store, A)
            assert len(seen) == 1

        self.run(tmp_path, story)

    def test_the_past_is_bounded_and_says_so(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            revisions = [(await put(store, A)).revision for _ in range(10)]
            assert store.oldest == revisions[-5]
            assert len(store.changes("pods", store.oldest)) == 4
            error = await raised(_subscribe(store, revisions[-6]))
            assert isinstance(error, CompactedError)
            assert (error.wanted, error.oldest) == (revisions[-6], revisions[-5])

        self.run(tmp_path, story, WindowLimits(changes=4))

    def test_the_past_is_bounded_in_bytes(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            for _ in range(10):
                await put(store, A, "x" * 1000)
            assert 1 <= len(store.changes("pods", store.oldest)) <= 5

        self.run(tmp_path, story, WindowLimits(superseded_bytes=5000))

    # ---- telling early

    def test_what_an_early_listener_writes_is_in_the_commit_of_what_it_was_told(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            batches: list[list[Key]] = []
            store.subscribe(lambda changes: batches.append([change.key for change in changes]), resource="")
            early = Early(store, reacts=lambda: put(store, B) if store.get(B) is None else asyncio.sleep(0))
            first = await put(store, A)
            assert early.told == [(A, first.revision)]
            assert early.durable_then < first.revision
            await asyncio.gather(*early.reactions)
            assert batches == [[A, B]]
            await put(store, Key("pods", "ml", "c"))
            assert [key.name for key, _ in early.told] == ["a", "c"], (
                "what came too late to be told early is told as ever"
            )

        self.run(tmp_path, story)

    def test_an_early_listener_hears_of_creations_of_its_resource_alone_each_once(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            await put(store, A)
            early = Early(store)
            await put(store, A, "changed")
            await put(store, Key("nodes", "", "n"))
            await asyncio.gather(put(store, B), put(store, B, "changed"))
            await delete(store, B)
            again = await put(store, B)
            assert [key for key, _ in early.told] == [B, B]
            assert early.told[1] == (B, again.revision)
            assert early.undone_keys == []

        self.run(tmp_path, story)

    def test_an_early_listener_that_never_answers_or_fails_holds_nobody_up(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            silent = Early(store, answers=False)
            await asyncio.wait_for(put(store, A), 60)
            assert [key for key, _ in silent.told] == [A]
            silent.subscription.close()
            failing = Early(store, fails=True)
            await asyncio.wait_for(put(store, B), 60)
            assert [key for key, _ in failing.told] == [B]

        self.run(tmp_path, story)

    def test_an_early_listener_is_told_what_could_not_be_made_durable(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            early = Early(store, reacts=lambda: put(store, Key("events", "ml", "because")))
            await put(store, B)
            await asyncio.gather(*early.reactions)
            self.refuse_commits(store, 1)
            assert isinstance(await raised(put(store, A)), StoreFullError)
            assert isinstance(await raised(early.reactions[-1]), StoreFullError)
            assert early.undone_keys == [A]
            assert store.get(A) is None
            await put(store, A)
            assert [key for key, _ in early.told] == [B, A, A]

        self.run(tmp_path, story)

    def test_an_early_listener_hears_nothing_early_of_what_comes_with_something_to_be_known_first(
        self, tmp_path: Path
    ) -> None:
        async def story(store: Store) -> None:
            early, node = Early(store), Key("nodes", "", "n")
            cordoned, _ = await asyncio.gather(put(store, node), put(store, A))
            assert early.told == []
            await asyncio.gather(put(store, Key("events", "ml", "e")), put(store, B))
            assert [key for key, _ in early.told] == [B]
            assert early.newest == {"nodes": cordoned.revision}
            self.refuse_commits(store, 1)
            assert isinstance(await raised(put(store, Key("queues", "", "q"))), StoreFullError)
            await delete(store, A)
            await put(store, A)
            assert early.newest == {"nodes": cordoned.revision}, "what was undone need not be known"

        self.run(tmp_path, story)

    def test_a_closed_early_listener_hears_nothing_and_another_may_follow_it(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            first = Early(store)
            first.subscription.close()
            second = Early(store)
            first.subscription.close()
            await put(store, A)
            second.subscription.close()
            await put(store, B)
            assert (first.told, [key for key, _ in second.told]) == ([], [A])

        self.run(tmp_path, story)

    # ---- the end

    def test_closing_finishes_what_was_decided(self, tmp_path: Path) -> None:
        async def story(store: Store) -> None:
            writing = [asyncio.ensure_future(put(store, Key("pods", "", str(i)))) for i in range(50)]
            await asyncio.sleep(0)
            await store.close()
            assert len(await asyncio.gather(*writing)) == 50
            assert isinstance(await raised(put(store, A)), StoreClosedError)
            assert store.count("pods") == 50

        self.run(tmp_path, story)


class Early:
    """An early listener of pods that writes down what it hears, and answers once it has reacted."""

    def __init__(
        self, store: Store, *, reacts: Callable[[], Coroutine[None, None, object]] | None = None, answers: bool = True,
        fails: bool = False,
    ) -> None:  # fmt: skip
        self.told: list[tuple[Key, int]] = []
        self.undone_keys: list[Key] = []
        self.durable_then = 0
        self.reactions: list[asyncio.Task[object]] = []
        self._store, self._reacts, self._answers, self._fails = store, reacts, answers, fails
        self.newest: Mapping[str, int] = {}
        self.subscription = store.listen_early(self, resource="pods", after={"nodes", "queues"})

    def created(self, objects: Sequence[Stored], newest: Mapping[str, int]) -> "asyncio.Future[None] | None":
        """Write down and react."""
        self.newest = dict(newest)
        self.told += [(stored.key, stored.revision) for stored in objects]
        self.durable_then = self._store.revision
        if self._fails:
            raise ValueError("a listener that fails")
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        if self._reacts is not None:
            self.reactions.append(loop.create_task(self._reacts()))
        if self._answers:
            loop.call_soon(answered.set_result, None)
        return answered

    def undone(self, objects: Sequence[Stored]) -> None:
        """Write down."""
        self.undone_keys += [stored.key for stored in objects]


async def _subscribe(store: Store, since: int) -> None:
    store.subscribe(lambda _: None, resource="pods", since=since)
