import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from hekla.apiserver import revision_log, sqlite_checkpoint, sqlite_store
from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.sqlite_driver import (
    ApswConnection,
    Code,
    Connection,
    Driver,
    Row,
    SqliteError,
    StandardConnection,
    best_driver,
)
from hekla.apiserver.sqlite_journal import ROWS_AT_ONCE
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import (
    GENESIS,
    CompactedError,
    Key,
    StoreBusyError,
    StoreCorruptError,
    Stored,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreOpenError,
    StorePermissionError,
    StoreVersionError,
)
from hekla.testing.conformance.stores import A, B, delete, put, raised
from hekla.testing.faulty_sqlite import FaultyDriver

BOTH = pytest.mark.parametrize("driver", [ApswConnection, StandardConnection])


def session(directory: Path, story: Callable[[SqliteStore], Awaitable[None]], **options: object) -> None:
    async def told() -> None:
        store = SqliteStore(directory, **options)  # type: ignore[arg-type]  # handed on as they came
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(told())


async def fill(store: SqliteStore) -> None:
    await asyncio.gather(*(put(store, Key("pods", "ml", f"p{i}"), "x" * 3000) for i in range(200)))


def rows_on_disk(directory: Path) -> int:
    """By the library that the store has the file open with: of two SQLites in a process, one that closes gives up the other's
    locks, and a checkpoint then writes where we read ("malformed").
    """
    connection = best_driver()(directory / "store.db")
    try:
        return int(connection.run("select count(*) from log")[0][0])
    finally:
        connection.close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    before: dict[str, Stored] = {}

    async def write(store: SqliteStore) -> None:
        await store.put(A, lambda _: (b"one", b"mine"), expected=0, labels={"a": "b"}, fields={"f": "v"})
        await put(store, A, "two")
        await put(store, B)
        await delete(store, B)
        before["a"] = store.get(A) or pytest.fail("written above")

    async def read(store: SqliteStore) -> None:
        after = store.get(A)
        assert after is not None
        for name in ("key", "revision", "create_revision", "body", "managed_fields", "labels", "fields"):
            assert getattr(after, name) == getattr(before["a"], name)
        assert store.get(B) is None
        assert store.revision == GENESIS + 4
        assert [one.key for one in store.list("pods")] == [A]
        changes = store.changes("pods", GENESIS)
        assert [(c.revision, c.key.name, c.current is None, c.previous is None) for c in changes] == [
            (101, "a", False, True), (102, "a", False, False), (103, "b", False, True), (104, "b", True, False),
        ]  # fmt: skip
        assert changes[3].last is not None
        assert (await put(store, B, expected=0)).revision == GENESIS + 5

    session(tmp_path, write)
    session(tmp_path, read, driver=StandardConnection)


def test_revisions_never_go_back_though_the_newest_object_is_gone_and_swept(tmp_path: Path) -> None:
    limits = WindowLimits(changes=0)

    async def write(store: SqliteStore) -> None:
        await put(store, A)
        await delete(store, A)
        while store.oldest < store.revision or rows_on_disk(tmp_path):
            await asyncio.sleep(0.01)

    async def read(store: SqliteStore) -> None:
        assert store.revision == store.oldest == GENESIS + 2
        assert (await put(store, A)).revision == GENESIS + 3

    session(tmp_path, write, limits=limits)
    session(tmp_path, read)


def test_superseded_rows_are_swept_and_the_past_says_where_it_begins(tmp_path: Path) -> None:
    limits = WindowLimits(changes=10)

    async def write(store: SqliteStore) -> None:
        for number in range(3000):
            last = asyncio.ensure_future(put(store, A, str(number)))
        await last
        while rows_on_disk(tmp_path) > 11:
            await asyncio.sleep(0.01)

    async def read(store: SqliteStore) -> None:
        assert store.oldest == store.revision - 10 == GENESIS + 2990
        assert len(store.changes("pods", store.oldest)) == 10
        with pytest.raises(CompactedError):
            store.changes("pods", store.oldest - 1)
        assert b"2999" in (store.get(A) or pytest.fail("it was kept")).body

    session(tmp_path, write, limits=limits)
    session(tmp_path, read)


def test_what_a_kill_left_unswept_is_swept_later(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        for _ in range(50):
            await put(store, A)

    async def sweep(store: SqliteStore) -> None:
        await put(store, B)
        while rows_on_disk(tmp_path) > 7:
            await asyncio.sleep(0.01)

    session(tmp_path, write)
    assert rows_on_disk(tmp_path) == 50
    session(tmp_path, sweep, limits=WindowLimits(changes=5))


def test_a_sweep_cut_in_half_is_finished_after_a_restart(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        for _ in range(50):
            await put(store, A)

    async def sweep(store: SqliteStore) -> None:
        assert store.oldest == GENESIS + 40
        await put(store, B)
        while rows_on_disk(tmp_path) > 12:
            await asyncio.sleep(0.01)

    session(tmp_path, write)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("update meta set value = ? where name = 'compacted'", (GENESIS + 40,))
    connection.close()
    session(tmp_path, sweep)


def test_a_sweep_that_fails_is_tried_again(tmp_path: Path) -> None:
    faults = FaultyDriver()

    async def story(store: SqliteStore) -> None:
        for _ in range(50):
            last = await put(store, A)
        faults.refuse_commits = 2
        while faults.refuse_commits or rows_on_disk(tmp_path) > 6:
            await asyncio.sleep(0.01)
        assert store.get_durable(A) is last

    session(tmp_path, story, driver=faults, limits=WindowLimits(changes=5))


def test_the_write_ahead_log_is_folded_away_when_the_writer_rests(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        await fill(store)
        wal = tmp_path / "store.db-wal"
        assert wal.stat().st_size > 0
        while wal.stat().st_size:
            await asyncio.sleep(0.02)
        await put(store, A)

    session(tmp_path, story)
    assert not (tmp_path / "store.db-wal").exists()


def test_the_write_ahead_log_stays_small_though_the_writer_never_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_checkpoint, "LARGE_WAL_BYTES", 1 << 20)
    monkeypatch.setattr(sqlite_checkpoint, "PAUSE_S", 0.01)
    sizes: list[int] = []

    async def client(store: SqliteStore, number: int) -> None:
        for count in range(200):
            await put(store, Key("pods", "ml", f"{number}-{count}"), "x" * 10_000)
            sizes.append((tmp_path / "store.db-wal").stat().st_size)

    async def story(store: SqliteStore) -> None:
        await asyncio.gather(*(client(store, number) for number in range(40)))

    session(tmp_path, story)
    assert (tmp_path / "store.db").stat().st_size > 80_000_000
    # how often it is folded is the machine's business; that it never holds all that was written is ours
    assert max(sizes) < 80_000_000


def test_the_files_are_private(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        await put(store, A)
        modes = {path.name: path.stat().st_mode & 0o777 for path in store.directory.iterdir()}
        assert set(modes.values()) == {0o600}, modes
        assert store.directory.stat().st_mode & 0o777 == 0o700

    session(tmp_path / "data", story)


def test_too_many_waiting_bytes_are_refused_and_nothing_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision_log, "PENDING_BYTES", 10_000)

    async def story(store: SqliteStore) -> None:
        results = await asyncio.gather(
            *(put(store, Key("pods", "", str(i)), "x" * 1000) for i in range(30)), return_exceptions=True
        )
        refused = [one for one in results if isinstance(one, StoreBusyError)]
        assert len(refused) == 20 == 30 - store.count("pods")
        await put(store, A)

    session(tmp_path, story)


# ---- a disk that refuses


@BOTH
def test_a_full_disk_refuses_writes_keeps_reads_and_recovers(tmp_path: Path, driver: Driver) -> None:
    """Really full as far as SQLite knows: the file may not grow."""

    async def story(store: SqliteStore) -> None:
        first = await put(store, A)
        pages = store._files.writer.run("pragma page_count")[0][0]
        store._files.writer.run(f"pragma max_page_count = {pages + 2}")
        error = await raised(put(store, B, "x" * 100_000))
        assert isinstance(error, StoreFullError)
        assert str(error).startswith(f"{tmp_path / 'store.db'} could not be written, its disk is full; free space")
        assert store.get(A) is first
        assert store.get(B) is None
        assert (await put(store, B, "x" * 100_000)).revision > first.revision  # a new connection has no such limit

    session(tmp_path, story, driver=driver)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("mounting is forbidden here")
    try:

        async def story(store: SqliteStore) -> None:
            kept: list[Stored] = []
            while not isinstance(last := await one_more(store, len(kept)), StoreFullError):
                kept.append(last)
            assert [one.key for one in store.list("pods")] == [one.key for one in kept]
            subprocess.run(["mount", "-o", "remount,size=8m", tmp_path], check=True)
            kept.append(await put(store, B))
            assert store.revision == kept[-1].revision

        session(tmp_path / "data", story)
        session(tmp_path / "data", check_whole)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


async def one_more(store: SqliteStore, number: int) -> Stored | StoreFullError:
    try:
        return await put(store, Key("pods", "", f"{number:04}"), "x" * 3000)
    except StoreFullError as error:
        return error


async def check_whole(store: SqliteStore) -> None:
    assert store.get(B) is not None
    assert store.count("pods") > 50


def test_a_write_beyond_the_file_size_limit_is_an_answer_and_not_a_signal(tmp_path: Path) -> None:
    program = f"""
import asyncio, resource, sys
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import StoreFullError
from hekla.testing.conformance.stores import A, B, put, raised
async def main():
    store = SqliteStore({str(tmp_path)!r})
    await put(store, A)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    error = await raised(put(store, B, "x" * 400_000))
    assert isinstance(error, StoreFullError), error
    assert store.get(A) is not None and store.get(B) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await put(store, B, "x" * 400_000)
    await store.close()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class Listening:
    """A driver that keeps the statements by which rows are written."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, path: Path) -> Connection:
        real, told = ApswConnection(path), self.told
        run = real.run

        def heard(sql: str, values: Sequence[object] = ()) -> list[Row]:
            if sql.startswith(("begin", "insert into log", "commit")):
                told.append(f"{sql.split(' values')[0]} {sql.count('(')}".removesuffix(" 0"))
            return run(sql, values)

        real.run = heard  # type: ignore[method-assign]
        return real


@pytest.mark.parametrize(
    ("count", "statements"),
    [
        (1, ["insert into log 1"]),
        (31, ["insert into log 31"]),
        (40, ["begin immediate", "insert into log 32", "insert into log 8", "commit"]),
    ],
)
def test_a_commit_has_as_few_statements_as_can_be(tmp_path: Path, count: int, statements: list[str]) -> None:
    """After each the writer has to win the interpreter back from a busy event loop: seven in place of one tripled a create's time."""
    driver = Listening()

    async def story(store: SqliteStore) -> None:
        driver.told.clear()
        await asyncio.gather(*(put(store, Key("pods", "ml", f"p{number}")) for number in range(count)))
        assert driver.told == statements

    session(tmp_path, story, driver=driver)
    assert rows_on_disk(tmp_path) == count


@pytest.fixture
def endless_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that nothing ends but the writes that it waits for: who waits in vain hangs."""
    monkeypatch.setattr(sqlite_store, "PAUSE_S", 1000.0)
    monkeypatch.setattr(sqlite_store, "LONGEST_PAUSE_S", 1000.0)
    monkeypatch.setattr(sqlite_store, "BUSY_S", 1000.0)


async def one_a_turn(store: SqliteStore, count: int) -> None:
    """Write in so many turns of the loop, a while before any of them can be on disk."""

    async def late(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await put(store, Key("pods", "ml", f"p{turns}"))

    await asyncio.gather(*map(late, range(count)))


@pytest.mark.usefixtures("endless_pauses")
def test_a_crowd_that_comes_bit_by_bit_shares_its_commit_and_waits_for_no_more_than_came_last_time(
    tmp_path: Path,
) -> None:
    driver = FaultyDriver()

    async def story(store: SqliteStore) -> None:
        await asyncio.gather(*(put(store, A) for _ in range(8)))
        before = driver.commits
        await one_a_turn(store, 8)
        assert driver.commits == before + 1

    session(tmp_path, story, driver=driver)


@pytest.mark.usefixtures("endless_pauses")
def test_nobody_waits_who_writes_alone_or_fills_a_statement_or_comes_after_a_failure(tmp_path: Path) -> None:
    driver = FaultyDriver()

    async def story(store: SqliteStore) -> None:
        for crowd in (1, 1, 3, 1, 100, ROWS_AT_ONCE):
            await asyncio.gather(*(put(store, A) for _ in range(crowd)))
        driver.refuse_commits = 1
        assert isinstance(await raised(asyncio.gather(*(put(store, A) for _ in range(ROWS_AT_ONCE)))), StoreFullError)
        await put(store, A)

    session(tmp_path, story, driver=driver)


def test_a_crowd_that_has_gone_keeps_nobody_for_long(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        for crowd in (100, 1, 1, 8, 2):
            await asyncio.gather(*(put(store, A) for _ in range(crowd)))
        assert store.revision == GENESIS + 112

    session(tmp_path, story)


@BOTH
def test_each_commit_in_turn_may_fail_and_the_state_stays_right(tmp_path: Path, driver: Driver) -> None:
    """Every commit of a story fails once, before or after it reached the disk; memory and disk agree afterwards."""
    for failing in range(1, 9):
        for is_after in (False, True):
            directory = tmp_path / f"{failing}-{is_after}"
            asyncio.run(_fail_one_commit(directory, driver, failing, is_after=is_after))


async def _fail_one_commit(directory: Path, driver: Driver, failing: int, *, is_after: bool) -> None:
    faults = FaultyDriver(driver)
    faults.fail_after_commit, faults.code = is_after, Code.IOERR
    store, model = SqliteStore(directory, driver=faults), dict[Key, int]()
    seen: list[int] = []
    store.subscribe(lambda some: seen.extend(change.revision for change in some), resource="pods")
    acknowledged, refused = [], []
    steps = [(A, "put"), (B, "put"), (A, "put"), (B, "delete"), (A, "put"), (B, "put"), (A, "delete"), (A, "put")]
    for number, (key, what) in enumerate(steps, 1):
        faults.refuse_commits = 1 if number == failing else 0
        try:
            stored = await (put(store, key) if what == "put" else delete(store, key))
        except StoreError:
            refused.append(number)
            continue
        acknowledged.append(stored.revision)
        if what == "put":
            model[key] = stored.revision
        else:
            del model[key]
    assert failing in refused
    assert all(number == failing or steps[number - 1][1] == "delete" for number in refused)
    assert seen == acknowledged
    assert {one.key: one.revision for one in store.list("pods")} == model
    await store.close()
    store = SqliteStore(directory, driver=driver)
    assert {one.key: one.revision for one in store.list("pods")} == model
    assert [change.revision for change in store.changes("pods", GENESIS)] == acknowledged
    await store.close()


def test_a_disk_that_stays_dead_refuses_every_write_and_no_read(tmp_path: Path) -> None:
    faults = FaultyDriver()

    async def story(store: SqliteStore) -> None:
        first = await put(store, A)
        faults.is_dead = True
        for _ in range(3):
            assert isinstance(await raised(put(store, A)), StoreFullError)
            assert store.get(A) is first
        faults.is_dead = False
        await put(store, A, expected=first.revision)

    session(tmp_path, story, driver=faults)


# ---- a directory that cannot be used


def test_a_directory_in_use_names_the_process(tmp_path: Path) -> None:
    async def story(_store: SqliteStore) -> None:
        with pytest.raises(StoreLockedError, match=f"{tmp_path} is in use by process {os.getpid()}; stop it") as caught:
            SqliteStore(tmp_path)
        assert caught.value.pid == os.getpid()

    session(tmp_path, story)
    session(tmp_path, fill)


def test_data_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    session(tmp_path, fill)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("update meta set value = 9 where name = 'schema'")
    connection.close()
    with pytest.raises(StoreVersionError, match=r"data version 9, this one knows 1\); upgrade hekla"):
        SqliteStore(tmp_path)
    with pytest.raises(StoreVersionError):
        SqliteStore(tmp_path)


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("create table recipes(name)")
    connection.close()
    with pytest.raises(StoreCorruptError, match="not one of Hekla's"):
        SqliteStore(tmp_path)


@BOTH
def test_a_file_that_is_no_database_is_said_to_be_damaged(tmp_path: Path, driver: Driver) -> None:
    (tmp_path / "store.db").write_bytes(b"once upon a time" * 1000)
    with pytest.raises(StoreCorruptError, match=r"store\.db is damaged .* restore it from a copy, or move it away"):
        SqliteStore(tmp_path, driver=driver)


@BOTH
@pytest.mark.parametrize("is_clean", [True, False])
def test_an_overwritten_page_is_found_at_the_start(tmp_path: Path, driver: Driver, is_clean: bool) -> None:
    session(tmp_path, fill)
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute("update meta set value = ? where name = 'is_clean'", (int(is_clean),))
    connection.close()
    data = bytearray(path.read_bytes())
    data[8192 * 20 : 8192 * 21] = os.urandom(8192)
    path.write_bytes(data)
    with pytest.raises(StoreCorruptError, match=r"store\.db is damaged"):
        SqliteStore(tmp_path, driver=driver)


def test_a_changed_byte_in_a_body_is_found_and_the_object_named(tmp_path: Path) -> None:
    session(tmp_path, fill)
    path = tmp_path / "store.db"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x" * 3000, b"x" * 2999 + b"y"))
    with pytest.raises(StoreCorruptError, match=r"the checksum of pods ml/p\d+ at revision \d+ is wrong"):
        SqliteStore(tmp_path)


def test_a_file_in_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreOpenError, match=r"data cannot be used: .* choose another --data-dir"):
        SqliteStore(tmp_path / "data")


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_directory_of_another_user_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    said = _as_nobody(f"SqliteStore({str(tmp_path / 'data')!r})")
    assert said.startswith("StorePermissionError")
    assert "may not be written by user 65534; change its owner or mode" in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(StorePermissionError, match="change its owner or mode"):
        SqliteStore(tmp_path / "data")


def _as_nobody(expression: str) -> str:
    child = f"import os\nfrom hekla.apiserver.sqlite_store import SqliteStore\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\ntry: {expression}\nexcept Exception as e: print(type(e).__name__, e)"
    return subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_failed_opening_lets_go_of_the_directory(tmp_path: Path) -> None:
    session(tmp_path, fill)

    def refuse(_path: Path) -> StandardConnection:
        raise SqliteError("unable to open database file", Code.CANTOPEN)

    with pytest.raises(StorePermissionError):
        SqliteStore(tmp_path, driver=refuse)
    session(tmp_path, check_filled)


async def check_filled(store: SqliteStore) -> None:
    assert store.count("pods") == 200


# ---- clocks


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session(tmp_path, fill)
    monkeypatch.setattr("time.time", lambda: -1e9)

    async def story(store: SqliteStore) -> None:
        assert store.oldest == GENESIS
        written = await put(store, A)
        monkeypatch.setattr("time.time", lambda: 1e12)
        assert (await put(store, A)).revision == written.revision + 1
        assert len(store.changes("pods", GENESIS)) == 202

    session(tmp_path, story)
