"""Any watchers, however they join and however slowly they read, end up with what a list shows them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.apiserver import watch_hub
from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.store import CompactedError, Key, Stored, StoreFullError
from hekla.apiserver.watch_hub import WatchHub, WatchRequest

NAMESPACES, NAMES, COLORS = ("a", "b"), ("x", "y", "z"), ("red", "blue")


def is_red(stored: Stored) -> bool:
    return stored.labels.get("color") == "red"


@dataclass(frozen=True)
class Write:
    namespace: str
    name: str
    color: str
    kind: str
    waits: bool


@dataclass(frozen=True)
class Join:
    namespace: str
    field: tuple[str, str] | None
    is_selective: bool
    has_initial: bool
    speed: int
    """Frames read per step."""


WRITES = st.builds(
    Write,
    namespace=st.sampled_from(NAMESPACES),
    name=st.sampled_from(NAMES),
    color=st.sampled_from(COLORS),
    kind=st.sampled_from(["put", "put", "put", "delete", "refused"]),
    waits=st.booleans(),
)
JOINS = st.builds(
    Join,
    namespace=st.sampled_from(("", *NAMESPACES)),
    field=st.sampled_from((None, ("metadata.name", "x"), ("spec.color", "red"))),
    is_selective=st.booleans(),
    has_initial=st.booleans(),
    speed=st.sampled_from([0, 1, 100]),
)


class Client:
    """Reads events into a cache as an informer does, and checks that each is possible. 100 bytes a frame."""

    def __init__(self, join: Join, cache: dict[Key, int]) -> None:
        self.join, self.cache, self.seen = join, cache, dict(cache)
        self.buffered, self.is_gone, self.is_closed = 0, False, False

    def write(self, data: bytes) -> None:
        frames = data.splitlines()
        self.buffered += 100 * len(frames)
        for frame in frames:
            self.take(*frame.decode().split())

    def take(self, kind: str, resource: str, namespace: str, name: str, revision: str) -> None:
        if kind == "GONE":
            self.is_gone = True
            return
        key = Key(resource, namespace, name)
        assert int(revision) > self.seen.get(key, 0), "each event once, in order"
        self.seen[key] = int(revision)
        assert (kind == "ADDED") == (key not in self.cache)
        if kind == "DELETED":
            del self.cache[key]
        else:
            self.cache[key] = int(revision)

    def read(self, frames: int) -> None:
        self.buffered = max(0, self.buffered - 100 * frames)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def on_close(self, _callback: Callable[[], None]) -> None: ...


def frame(kind: str, stored: Stored, revision: int) -> bytes:
    return f"{kind} {' '.join(stored.key)} {revision}\n".encode()


@given(st.lists(st.one_of(WRITES, WRITES, WRITES, JOINS), max_size=80), st.sampled_from([5, 1000]))
@settings(deadline=None, max_examples=150)
def test_every_watcher_ends_with_what_a_list_shows(steps: list[Write | Join], window: int) -> None:
    limits = watch_hub.HIGH_WATER_BYTES, watch_hub.POLL_S
    watch_hub.HIGH_WATER_BYTES, watch_hub.POLL_S = 200, 0.0
    try:
        asyncio.run(_story(steps, window))
    finally:
        watch_hub.HIGH_WATER_BYTES, watch_hub.POLL_S = limits


async def _story(steps: list[Write | Join], window: int) -> None:
    store = MemoryStore(limits=WindowLimits(changes=window))
    hub = WatchHub(store)
    clients: list[Client] = []
    writing: list[asyncio.Future[None]] = []
    for step in steps:
        if isinstance(step, Join):
            clients.append(_join(store, hub, step))
        else:
            writing.append(asyncio.ensure_future(_write(store, step)))
            if step.waits:
                await asyncio.gather(*writing)
        for client in clients:
            client.read(client.join.speed)
    await asyncio.gather(*writing)
    while any(not client.is_gone and client.cache != _expected(store, client.join) for client in clients):
        for client in clients:
            client.read(100)
        await asyncio.sleep(0)
    assert all(client.is_closed for client in clients if client.is_gone)
    assert hub.count == sum(not client.is_gone for client in clients)
    if window == 1000:
        assert not any(client.is_gone for client in clients)
    hub.close()
    await store.close()


def _join(store: MemoryStore, hub: WatchHub, join: Join) -> Client:
    request = WatchRequest(
        resource="pods",
        encode=frame,
        namespace=join.namespace,
        field=join.field,
        matches=is_red if join.is_selective else None,
        has_initial=join.has_initial,
        gone=lambda _: b"GONE - - - 0\n",
        since=None if join.has_initial else max(store.oldest, store.revision - 3),
    )
    try:
        past = store.list_at("pods", join.namespace, revision=request.since) if request.since is not None else ()
    except CompactedError as error:
        raise AssertionError("what is not older than `oldest` can be listed") from error
    client = Client(join, {one.key: one.revision for one in past if request.wants(one)})
    hub.watch(request, client)
    return client


def _expected(store: MemoryStore, join: Join) -> dict[Key, int]:
    request = WatchRequest(
        resource="pods", encode=frame, field=join.field, matches=is_red if join.is_selective else None
    )
    return {one.key: one.revision for one in store.list("pods", join.namespace) if request.wants(one)}


async def _write(store: MemoryStore, step: Write) -> None:
    key = Key("pods", step.namespace, step.name)
    store.refuse_commits = int(step.kind == "refused")
    fields = {"metadata.name": step.name, "spec.color": step.color}
    try:
        if step.kind == "delete" and store.get(key):
            await store.delete(key, lambda _: (b"", b""), expected=None)
        else:
            await store.put(key, lambda _: (b"", b""), expected=None, labels={"color": step.color}, fields=fields)
    except StoreFullError:
        pass
