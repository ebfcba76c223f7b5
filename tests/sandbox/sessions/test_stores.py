"""One suite for all stores of sessions: in memory, in SQLite, in a real Redis."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import apsw
import msgspec
import pytest

from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.records import EntryPoint, Session, Snapshot
from hekla.sandbox.sessions.sqlite_store import SqliteSessions
from hekla.sandbox.sessions.store import MemoryStore, StoreUnavailableError
from hekla.testing import redis
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish

ROW = Session(
    id="a" * 26, kind="code-interpreters", namespace="default", name="base", owner="alice", created_s=1000.0, touched_s=1000.0,
    expires_s=2000.0, ends_s=9000.5, idle_s=900.0, metadata={"a": "b"}, entry_points=(EntryPoint("/", 8080),), sandbox="base-1",
    sandbox_uid="uid", pod="base-1", access_token="secret",
)  # fmt: skip


@pytest.fixture(params=["memory", "sqlite", "redis"])
def opened(request, tmp_path):
    if request.param == "redis" and redis.program() is None:
        pytest.skip("neither redis-server nor valkey-server is installed")

    @asynccontextmanager
    async def opened():
        if request.param == "redis":
            from redis.asyncio import Redis

            from hekla.sandbox.sessions.redis_store import RedisSessions

            with redis.redis_server() as server:
                store = RedisSessions(Redis.from_url(server.url))
                yield store
                await store.close()
            return
        store = MemoryStore() if request.param == "memory" else SqliteSessions(tmp_path / "agents.db")
        yield store
        await store.close()

    return opened


def run(opened, scenario):
    async def main():
        async with opened() as store:
            await scenario(store)

    asyncio.run(main())


def test_a_row_is_made_once_and_read_as_it_was_written(opened):
    async def scenario(store):
        assert await store.create(ROW)
        assert not await store.create(msgspec.structs.replace(ROW, owner="mallory"))
        assert await store.get(ROW.id) == ROW
        assert await store.get("b" * 26) is None
        assert await store.all() == [ROW]

    run(opened, scenario)


def test_only_who_saw_the_row_as_it_stands_writes_over_it(opened):
    async def scenario(store):
        await store.create(ROW)
        first = await store.update(msgspec.structs.replace(ROW, state=State.RUNNING))
        assert first is not None
        assert (first.revision, first.state) == (1, State.RUNNING)
        assert await store.update(msgspec.structs.replace(ROW, state=State.PAUSED)) is None
        assert await store.get(ROW.id) == first
        second = await store.update(msgspec.structs.replace(first, state=State.FROZEN))
        assert second is not None
        assert second.revision == 2

    run(opened, scenario)


def test_of_many_who_write_at_once_one_does(opened):
    async def scenario(store):
        await store.create(ROW)
        written = await asyncio.gather(*(store.update(ROW) for _ in range(20)))
        assert len([one for one in written if one is not None]) == 1

    run(opened, scenario)


def test_a_row_that_is_gone_is_not_written_nor_touched_into_being(opened):
    async def scenario(store):
        assert await store.update(ROW) is None
        await store.touch({ROW.id: 5000.0})
        assert await store.all() == []
        assert not await store.delete(ROW.id)

    run(opened, scenario)


def test_a_use_is_kept_without_a_new_revision_and_never_goes_back(opened):
    async def scenario(store):
        await store.create(ROW)
        await store.touch({ROW.id: 5000.0, "unknown": 1.0})
        await store.touch({ROW.id: 3000.0})
        found = await store.get(ROW.id)
        assert (found.touched_s, found.revision) == (5000.0, 0)
        assert await store.update(found) is not None

    run(opened, scenario)


def test_what_was_deleted_leaves_nothing(opened):
    async def scenario(store):
        await store.create(ROW)
        assert await store.delete(ROW.id)
        assert await store.get(ROW.id) is None
        assert await store.all() == []
        assert await store.create(ROW)

    run(opened, scenario)


def test_snapshots_are_kept_listed_and_forgotten(opened):
    snapshot = Snapshot(
        id="s1", owner="alice", namespace="default", session=ROW.id, kind=ROW.kind, name="base", checkpoint="c1", checkpoint_node="n1", names=("x",)
    )  # fmt: skip

    async def scenario(store):
        await store.put_snapshot(snapshot)
        assert await store.snapshots() == [snapshot]
        assert await store.delete_snapshot("s1")
        assert not await store.delete_snapshot("s1")
        assert await store.snapshots() == []
        await store.ping()

    run(opened, scenario)


def test_sqlite_has_the_rows_after_kill_9(tmp_path):
    async def scenario():
        first = SqliteSessions(tmp_path / "agents.db")
        await first.create(ROW)
        claimed = await first.update(msgspec.structs.replace(ROW, state=State.CLAIMED))
        # nobody closes it
        second = SqliteSessions(tmp_path / "agents.db")
        assert await second.all() == [claimed]
        await second.close()
        await first.close()

    asyncio.run(scenario())


def test_sqlite_has_nothing_of_a_session_that_had_only_just_been_asked_for_when_it_was_killed(tmp_path):
    """Its first change, which names its sandbox, is its first row on disk; what was found without one is given back."""

    async def scenario():
        first = SqliteSessions(tmp_path / "agents.db")
        await first.create(ROW)
        assert await first.all() == [ROW]
        second = SqliteSessions(tmp_path / "agents.db")
        assert await second.all() == []
        await second.close()
        await first.close()

    asyncio.run(scenario())


def test_a_file_that_is_no_database_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "agents.db").write_text("this is no database, and it is long enough to be looked at as one")
    with pytest.raises(StoreUnavailableError, match=r"agents\.db cannot be opened"):
        SqliteSessions(tmp_path / "agents.db")


@pytest.mark.skipif(redis.program() is None, reason="neither redis-server nor valkey-server is installed")
def test_redis_has_agentcubes_layout_and_leaves_agentcubes_own_rows_alone():
    async def scenario():
        from redis.asyncio import Redis

        from hekla.sandbox.sessions.redis_store import RedisSessions

        with redis.redis_server() as server:
            client = Redis.from_url(server.url)
            store = RedisSessions(client)
            await store.create(ROW)
            shown = json.loads(await client.get(f"session:{ROW.id}"))
            assert {key: shown[key] for key in ("sessionId", "ownerId", "status", "idleTimeout", "sandboxNamespace", "name")} == {
                "sessionId": ROW.id, "ownerId": "alice", "status": "creating", "idleTimeout": "15m0s",
                "sandboxNamespace": "default", "name": "base-1",
            }  # fmt: skip
            assert shown["entryPoints"] == [{"path": "/", "protocol": "HTTP", "endpoint": "base-1:8080"}]
            assert await client.zscore("session:expiry", ROW.id) == 2000
            await client.set("session:theirs", json.dumps({"sessionId": "theirs"}))
            await client.zadd("session:expiry", {"theirs": 1, "orphan": 2})
            assert await store.get("theirs") is None
            assert not await store.create(msgspec.structs.replace(ROW, id="theirs"))
            assert [one.id for one in await store.all()] == [ROW.id]
            server.stop()
            with pytest.raises(StoreUnavailableError, match="the session store does not answer"):
                await store.ping()
            server.start()
            await store.close()

    asyncio.run(scenario())


class CountingFile(apsw.VFSFile):
    """A file that counts how often the disk was waited for."""

    syncs = 0

    def __init__(self, name, flags):
        super().__init__("unix", name, flags)

    def xSync(self, flags):
        CountingFile.syncs += 1
        super().xSync(flags)


class CountingDisk(apsw.VFS):
    """The host's files, with their waits counted."""

    def __init__(self):
        super().__init__("counting", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return CountingFile(name, flags)


def test_a_row_waits_for_no_disk_and_what_outlives_a_power_cut_waits_for_it_elsewhere(tmp_path, monkeypatch):
    """Each row held up the event loop until the disk had it: of three pragmas in one text only the first was carried out."""
    elsewhere = []
    monkeypatch.setattr(
        "hekla.sandbox.sessions.sqlite_store.os.fdatasync", lambda file: elsewhere.append(threading.current_thread())
    )

    async def main():
        disk = CountingDisk()
        store = SqliteSessions(tmp_path / "agents.db")
        disk.unregister()
        await store.create(ROW)  # the first frame of a new log waits for its header
        before = CountingFile.syncs
        row = ROW
        for number in range(20):
            assert await store.create(msgspec.structs.replace(ROW, id=f"{number:026}"))
            row = await store.update(row)
        assert (CountingFile.syncs, elsewhere) == (before, [])
        paused = await store.update(
            msgspec.structs.replace(row, state=State.PAUSED, checkpoint="c", sandbox="", sandbox_uid="")
        )
        await store.put_snapshot(
            Snapshot(id="s" * 26, owner="a", namespace="n", session=row.id, kind="k", name="b", checkpoint="c")
        )
        assert paused is not None
        assert len(elsewhere) == 2
        assert threading.current_thread() not in elsewhere
        assert CountingFile.syncs == before
        await store.close()

    asyncio.run(main())


def test_a_pause_whose_disk_failed_is_told_as_such_and_is_what_the_row_says(tmp_path, monkeypatch):
    """The row was written and its writer believed the one before: it met conflicts, and the old sandbox was nobody's."""

    def fails(file):
        monkeypatch.undo()
        raise OSError("the disk is broken")

    async def main():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes, SqliteSessions(tmp_path / "agents.db")) as one:
            session = await one.create(e2b_wish())
            monkeypatch.setattr("hekla.sandbox.sessions.sqlite_store.os.fdatasync", fails)
            with pytest.raises(StoreUnavailableError, match="the disk is broken"):
                await one.pause(session.id, keeps_memory=False)
            row = await one.find(session.id)
            assert (row.state, row.sandbox, list(sandboxes.checkpoints)) == (State.PAUSED, "", [row.checkpoint])
            assert sandboxes.sandboxes == {}, "its old sandbox was given back"
            assert (await one.wake(session.id)).state == State.RUNNING
            assert len(sandboxes.sandboxes) == 1

    asyncio.run(main())


def test_a_snapshot_whose_disk_failed_is_refused_and_not_listed(tmp_path, monkeypatch):
    """It was refused, and yet it stood in the list."""

    def fails(file):
        monkeypatch.undo()
        raise OSError("no space left on device")

    async def main():
        store = SqliteSessions(tmp_path / "agents.db")
        monkeypatch.setattr("hekla.sandbox.sessions.sqlite_store.os.fdatasync", fails)
        snapshot = Snapshot(id="s1", owner="a", namespace="n", session=ROW.id, kind="k", name="b", checkpoint="c")
        with pytest.raises(StoreUnavailableError, match="no space left"):
            await store.put_snapshot(snapshot)
        assert await store.snapshots() == []
        await store.close()

    asyncio.run(main())
