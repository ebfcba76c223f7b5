import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Change, Key

# Writes, rewrites and deletes without end, and prints what was acknowledged: revision, name, "put" or "gone".
CHILD = """
import asyncio, random, sys
from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Key
from hekla.testing.conformance.stores import delete, put

async def writer(store, number):
    dice = random.Random(number)
    while True:
        name = f"{number}-{dice.randrange(5)}"
        key = Key("pods", "ml", name)
        is_deletion = store.get(key) is not None and dice.random() < 0.3
        stored = await (delete(store, key) if is_deletion else put(store, key, "x" * dice.randrange(6000)))
        print(stored.revision, name, "gone" if is_deletion else "put", flush=True)

async def main():
    store = SqliteStore(sys.argv[1], limits=WindowLimits(changes=400))
    await asyncio.gather(*(writer(store, number) for number in range(20)))

asyncio.run(main())
"""


def storm(directory: Path, rounds: int, seed: int) -> None:
    dice, expected, newest = random.Random(seed), dict[str, int](), 0
    for _ in range(rounds):
        lines = _written_until_killed(directory, dice.randrange(1, 3000))
        for line in lines:
            revision, name, what = line.split()
            if what == "put":
                expected[name] = int(revision)
            else:
                expected.pop(name, None)
        assert min(int(line.split()[0]) for line in lines) > newest, "revisions never go back"
        acknowledged = max(int(line.split()[0]) for line in lines)
        expected, newest = asyncio.run(_check(directory, expected, acknowledged))


def _written_until_killed(directory: Path, lines: int) -> list[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    seen = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    seen += child.stdout.readlines()  # acknowledged before the kill took effect
    child.stdout.close()
    child.wait()
    return [line for line in seen if line.endswith(("put\n", "gone\n"))]


async def _check(directory: Path, expected: dict[str, int], acknowledged: int) -> tuple[dict[str, int], int]:
    """What was acknowledged is there, or a later write that was under way when the kill came."""
    store = SqliteStore(directory)
    found = {one.key.name: one.revision for one in store.list("pods")}
    assert store.revision >= acknowledged
    later = {change.key.name for change in store.changes("pods", max(store.oldest, acknowledged))}
    for name in expected.keys() | found.keys():
        assert found.get(name) == expected.get(name) or name in later, name
    seen: list[Change] = []
    since = max(store.oldest, acknowledged - 100)
    store.subscribe(seen.extend, resource="pods", since=since)
    revisions = [change.revision for change in seen]
    assert revisions == sorted(set(revisions))
    assert acknowledged in revisions or acknowledged == since
    for revision in expected.values():
        if revision > since:
            assert revision in revisions
    assert _replayed(store, since, seen) == found
    newest = store.revision
    await store.close()
    return found, newest


def _replayed(store: SqliteStore, since: int, changes: list[Change]) -> dict[str, int]:
    state = {one.key.name: one.revision for one in store.list_at("pods", revision=since)}
    for change in changes:
        previous = change.previous.revision if change.previous else None
        assert state.get(change.key.name) == previous
        if change.current:
            state[change.key.name] = change.revision
        else:
            del state[change.key.name]
    return state


def test_a_kill_loses_no_acknowledged_write_and_no_watchers_place(tmp_path: Path) -> None:
    storm(tmp_path, rounds=3, seed=1)


@pytest.mark.storm
def test_a_storm_of_kills_loses_no_acknowledged_write(tmp_path: Path) -> None:
    storm(tmp_path, rounds=40, seed=2)


def test_a_second_process_is_refused_while_the_first_lives_and_served_after_its_death(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(Exception, match=f"in use by process {child.pid};"):
        SqliteStore(tmp_path)
    child.kill()
    child.stdout.close()
    child.wait()
    store = SqliteStore(tmp_path)
    assert store.count("pods") > 0
    assert store.get(Key("pods", "ml", "absent")) is None
    asyncio.run(store.close())
