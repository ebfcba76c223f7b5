"""Any sequence of writes against a dictionary: both stores, refusals and restarts included."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import (
    GENESIS,
    Change,
    Key,
    RevisionMismatchError,
    Store,
    Stored,
    StoreFullError,
)
from hekla.apiserver.watch_cohorts import event_of
from hekla.testing.conformance.stores import body_of

KEYS = [Key(resource, namespace, name) for resource in ("pods", "jobs.batch") for namespace in "ab" for name in "xy"]


@dataclass(frozen=True)
class Step:
    """One write, or (refused) one that meets a full disk."""

    key: Key
    kind: str
    expectation: str
    color: str
    joins_next: bool
    """Whether the next step is taken before this one is durable."""


STEPS = st.lists(
    st.builds(
        Step,
        key=st.sampled_from(KEYS),
        kind=st.sampled_from(["put", "put", "put", "delete", "refused"]),
        expectation=st.sampled_from(["any", "right", "right", "wrong", "absent"]),
        color=st.sampled_from(["red", "blue"]),
        joins_next=st.booleans(),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What ought to be there: the revision of each key."""

    state: dict[Key, int] = field(default_factory=dict)
    log: list[tuple[int, Key]] = field(default_factory=list)


@given(STEPS)
@settings(deadline=None, max_examples=150)
def test_a_memory_store_is_a_dictionary_with_a_log(steps: list[Step]) -> None:
    async def story() -> None:
        store = MemoryStore()
        model = await live(store, steps, lambda count: setattr(store, "refuse_commits", count))
        await store.close()
        check(store, model)

    asyncio.run(story())


@given(STEPS, STEPS)
@settings(deadline=None, max_examples=25)
def test_a_sqlite_store_is_a_dictionary_with_a_log_across_restarts(first: list[Step], second: list[Step]) -> None:
    async def story(directory: Path) -> None:
        model = Model()
        for steps in (first, second, []):
            store = SqliteStore(directory)
            check(store, model)
            model = await live(store, [step for step in steps if step.kind != "refused"], lambda _: None, model)
            await store.close()
            check(store, model)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(story(Path(directory)))


async def live(store: Store, steps: list[Step], refuse: object, model: Model | None = None) -> Model:
    """Take the steps; what was acknowledged goes into the model."""
    model = model or Model()
    seen: list[Change] = []
    subscription = store.subscribe(seen.extend, resource="", since=store.revision)
    group: list[asyncio.Future[Stored]] = []
    for step in steps:
        if step.kind == "refused":
            await asyncio.gather(*group, return_exceptions=True)
            refuse(1)  # type: ignore[operator]  # a function of the number of commits
        group.append(asyncio.ensure_future(take(store, step)))
        await asyncio.sleep(0)
        if not step.joins_next or step.kind == "refused":
            await asyncio.gather(*group, return_exceptions=True)
            refuse(0)  # type: ignore[operator]  # likewise
            check_views_agree(store)
    await asyncio.gather(*group, return_exceptions=True)
    subscription.close()
    acknowledged = sorted(one.result().revision for one in group if not one.exception())
    assert all(isinstance(one.exception(), (RevisionMismatchError, StoreFullError, type(None))) for one in group)
    assert [change.revision for change in seen] == acknowledged
    for change in seen:
        assert (change.previous.revision if change.previous else None) == model.state.get(change.key)
        if change.current:
            model.state[change.key] = change.revision
        else:
            del model.state[change.key]
        model.log.append((change.revision, change.key))
    return model


async def take(store: Store, step: Step) -> Stored:
    """One step, with the revision that its expectation calls for."""
    current = store.get(step.key)
    right = current.revision if current else 0
    expected = {"any": None, "right": right, "wrong": right + 1, "absent": 0}[step.expectation]
    try:
        if step.kind == "delete":
            return await store.delete(step.key, body_of("gone"), expected=expected)
        return await store.put(step.key, body_of(step.color), expected=expected, labels={"color": step.color})
    except RevisionMismatchError as error:
        is_refused_rightly = (expected is not None and expected != right) or (step.kind == "delete" and not current)
        if not is_refused_rightly or error.current is not current:
            raise AssertionError(f"refused {step} wrongly") from error
        raise


def check_views_agree(store: Store) -> None:
    assert store.revision == store.decided
    for resource in store.resources():
        assert list(store.list(resource)) == list(store.list_durable(resource))


def check(store: Store, model: Model) -> None:
    """The store shows the model, and resuming from any revision gives exactly what is missing."""
    for key in KEYS:
        stored = store.get(key)
        assert (stored.revision if stored else None) == model.state.get(key)
    for resource in {key.resource for key in KEYS}:
        listed = store.list(resource)
        assert [one.key for one in listed] == sorted(key for key in model.state if key.resource == resource)
        for since in (GENESIS, *(revision for revision, _ in model.log)):
            missing = [revision for revision, key in model.log if revision > since and key.resource == resource]
            changes = store.changes(resource, since)
            assert [change.revision for change in changes] == missing
            past = {one.key: one for one in store.list_at(resource, revision=since)}
            assert list(past) == sorted(past)
            check_selected(past, changes, {one.key for one in listed if is_red(one)})


def is_red(stored: Stored) -> bool:
    return stored.labels.get("color") == "red"


def check_selected(past: dict[Key, Stored], changes: object, expected: set[Key]) -> None:
    """One who selects by label ends up with what a list by label shows, and is told nothing impossible."""
    seen = {key for key, stored in past.items() if is_red(stored)}
    for change in changes:  # type: ignore[attr-defined]  # a sequence of changes
        event = event_of(change, is_red)
        if event is None:
            continue
        assert (event[0] == "ADDED") == (change.key not in seen)
        if event[0] == "DELETED":
            seen.remove(change.key)
        else:
            seen.add(change.key)
    assert seen == expected
