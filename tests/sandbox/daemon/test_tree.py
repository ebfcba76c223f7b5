"""Files below a root: every verb works, and none of them ever reaches outside, whatever links and races are there."""

import asyncio
import errno
import os
import subprocess
import threading

import pytest

from hekla.sandbox.daemon import tree as trees
from hekla.sandbox.daemon.tree import Tree, TreeError
from hekla.sandbox.daemon.watching import Watch


@pytest.fixture
def place(tmp_path):
    """A root, and a secret outside it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "flag").write_text("secret")
    return Tree(str(root)), root, outside


def test_what_is_written_is_read_with_its_directories_and_mode(place):
    tree, _, _ = place
    assert tree.write("/a/b/c.txt", b"hello", mode=0o600) == 5
    assert tree.read("a/b/c.txt") == b"hello"
    entry = tree.stat("a//b/./c.txt")
    assert (entry.name, entry.path, entry.kind, entry.size, entry.mode) == ("c.txt", "/a/b/c.txt", "file", 5, 0o600)
    tree.write("/a/b/c.txt", b"")
    assert (tree.read("/a/b/c.txt"), tree.stat("/a/b/c.txt").mode) == (b"", 0o600)


def test_a_write_that_fails_leaves_what_was_there(place):
    tree, root, _ = place
    tree.write("/f", b"before")

    def half():
        with tree.writer("/f") as writer:
            writer.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert tree.read("/f") == b"before"
    assert os.listdir(root) == ["f"]


def test_directories_are_listed_as_deep_as_asked(place):
    tree, _, _ = place
    for path in ("/x/1", "/x/y/2", "/x/y/z/3"):
        tree.write(path, b"")
    assert [one.path for one in tree.entries("/x")] == ["/x/1", "/x/y"]
    assert [one.path for one in tree.entries("/", depth=3)] == ["/x", "/x/1", "/x/y", "/x/y/2", "/x/y/z"]


def test_links_within_are_followed_and_not_removed_through(place):
    tree, root, _ = place
    tree.write("/real/file", b"x")
    (root / "link").symlink_to("real")
    assert tree.read("/link/file") == b"x"
    assert tree.stat("/link").target == "real"
    tree.remove("/link")
    assert tree.read("/real/file") == b"x"


VERBS = {
    "read": lambda tree, path: tree.read(path),
    "open": lambda tree, path: tree.open(path),
    "write": lambda tree, path: tree.write(path, b"x"),
    "list": lambda tree, path: tree.entries(path),
    "make": lambda tree, path: tree.make(path + "/new"),
    "move from": lambda tree, path: tree.move(path + "/flag", "/here"),
    "move to": lambda tree, path: tree.move("/own", path + "/there"),
    "remove": lambda tree, path: tree.remove(path + "/flag"),
    "stat": lambda tree, path: tree.stat(path + "/flag"),
    "metadata": lambda tree, path: tree.set_metadata(path, {"a": "b"}),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("target", ["../outside", "{outside}", "inner/../../outside", "../root/../outside"])
def test_no_verb_follows_a_link_to_the_outside(place, verb, target):
    tree, root, outside = place
    tree.write("/own", b"own")
    tree.make("/inner")
    (root / "out").symlink_to(target.format(outside=outside))
    (root / "flag").symlink_to(outside / "flag")
    with pytest.raises(TreeError) as error:
        VERBS[verb](tree, "/flag" if verb in ("read", "open", "write", "metadata") else "/out")
    assert error.value.code == "denied"
    assert sorted(os.listdir(outside)) == ["flag"]
    assert (outside / "flag").read_text() == "secret"


@pytest.mark.parametrize("path", ["..", "../outside/flag", "/a/../../outside/flag", "/../outside/flag"])
def test_dots_do_not_lead_outside(place, path):
    tree, _, _ = place
    tree.make("/a")
    with pytest.raises(TreeError) as error:
        tree.read(path)
    assert error.value.code == "denied"


def test_links_that_lead_outside_are_not_listed(place):
    tree, root, outside = place
    (root / "out").symlink_to(outside)
    (root / "nowhere").symlink_to("gone")
    assert [one.name for one in tree.entries("/")] == ["nowhere"]


def test_a_race_that_swaps_a_directory_for_a_link_never_wins(place):
    tree, root, outside = place
    tree.write("/d/flag", b"own")
    (root / "l").symlink_to(outside)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.rename(root / "d", root / "kept")
            os.rename(root / "l", root / "d")
            os.rename(root / "d", root / "l")
            os.rename(root / "kept", root / "d")

    racing = threading.Thread(target=swap)
    racing.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(tree.read("/d/flag"))
            except TreeError as error:
                seen.add(error.code)
    finally:
        stop.set()
        racing.join()
    assert b"secret" not in seen
    assert seen <= {b"own", "denied", "not_found", "not_a_directory"}


def test_what_is_no_file_neither_hangs_nor_is_replaced(place):
    tree, root, _ = place
    os.mkfifo(root / "pipe")
    for verb in (tree.read, lambda path: tree.write(path, b"x")):
        with pytest.raises(TreeError, match="is a pipe and no file"):
            verb("/pipe")
    with pytest.raises(TreeError, match="is a directory and no file"):
        tree.read("/")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/no", "not_found"),
        ("/f/below", "not_a_directory"),
        ("a\0b", "invalid"),
        ("/" + "x" * 5000, "invalid"),
        ("/" + "y" * 300, "invalid"),
        ("/loop", "invalid"),
    ],
)
def test_a_path_that_cannot_be_is_told(place, path, code):
    tree, root, _ = place
    tree.write("/f", b"")
    (root / "loop").symlink_to("loop")
    with pytest.raises(TreeError) as error:
        tree.read(path)
    assert error.value.code == code


def test_names_that_are_no_text_are_carried_through(place):
    tree, _, _ = place
    name = os.fsdecode(b"caf\xe9")
    tree.write("/" + name, b"x")
    assert [one.name for one in tree.entries("/")] == [name]
    assert tree.read("/" + name) == b"x"


def test_making_a_directory_says_whether_it_was_there(place):
    tree, _, _ = place
    assert tree.make("/a/b")
    assert not tree.make("/a/b")
    tree.write("/f", b"")
    with pytest.raises(TreeError, match="no directory"):
        tree.make("/f/x")


def test_what_is_removed_is_gone_with_what_is_in_it_and_nothing_else(place):
    tree, root, outside = place
    tree.write("/a/b/c", b"")
    (root / "a" / "out").symlink_to(outside)
    with pytest.raises(TreeError) as error:
        tree.remove("/a", recursive=False)
    assert error.value.code == "not_empty"
    tree.remove("/a")
    assert os.listdir(root) == []
    assert os.listdir(outside) == ["flag"]
    tree.write("/x", b"")
    tree.remove("/")
    assert os.listdir(root) == []


def test_a_directory_too_large_to_list_says_so(place, monkeypatch):
    tree, _, _ = place
    monkeypatch.setattr(trees, "MOST_LISTED", 3)
    for number in range(4):
        tree.write(f"/{number}", b"")
    with pytest.raises(TreeError, match="more than 3 files"):
        tree.entries("/")


@pytest.mark.parametrize("which", ["entry", "directory", "metadata", "link"])
def test_a_list_that_the_system_cannot_complete_is_refused_and_not_short(place, monkeypatch, which):
    """Where all descriptors were taken, directories were left out and nobody was told."""
    tree, root, _ = place
    tree.write("/a/b/c", b"")
    (root / "a/l").symlink_to("b/c")
    names = [one.path for one in tree.entries("/", depth=9)]
    assert "/a/b/c" in names
    real_open, real_stat, real_link = os.open, os.stat, os.readlink
    told = {"directory": "b", "metadata": "c"}

    def opened(name, *given, **more):
        if name == told.get(which) and "dir_fd" in more:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(name, *given, **more)

    def seen(name, *given, **more):
        if which == "entry" and name == "b":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_stat(name, *given, **more)

    def led(name, *given, **more):
        if which == "link" and name == "l":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_link(name, *given, **more)

    monkeypatch.setattr(trees.os, "open", opened)
    monkeypatch.setattr(trees.os, "stat", seen)
    monkeypatch.setattr(trees.os, "readlink", led)
    with pytest.raises(TreeError, match="too many open files") as refused:
        tree.entries("/", depth=9)
    assert refused.value.code == "too_many"


def test_others_have_their_turn_while_a_large_tree_is_listed_and_one_who_leaves_keeps_nothing_open(place, monkeypatch):
    """Of / ten levels deep, one call kept the daemon from everybody for 40 s."""
    tree, _, _ = place
    monkeypatch.setattr(trees, "LISTED_AT_ONCE", 10)
    for number in range(60):
        tree.write(f"/{number % 6}/{number}", b"")

    async def story():
        turns = 0
        listing = asyncio.ensure_future(tree.listed("/", depth=3))
        while not listing.done():
            turns += 1
            await asyncio.sleep(0)
        assert [one.path for one in listing.result()] == [one.path for one in tree.entries("/", depth=3)]
        assert turns >= 6
        before = len(os.listdir("/proc/self/fd"))
        left = asyncio.ensure_future(tree.listed("/", depth=3))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(story())


def test_others_have_their_turn_while_links_that_lead_outside_are_looked_at(place, monkeypatch):
    """Turns came with what was found: 20,000 such links kept the daemon from everybody for 3 s."""
    tree, root, _ = place
    monkeypatch.setattr(trees, "LISTED_AT_ONCE", 10)
    for number in range(60):
        (root / f"{number}").symlink_to("../outside/flag")

    async def story():
        turns = 0
        listing = asyncio.ensure_future(tree.listed("/"))
        while not listing.done():
            turns += 1
            await asyncio.sleep(0)
        assert listing.result() == []
        assert turns >= 6

    asyncio.run(story())


def test_many_who_list_a_deep_tree_at_once_are_all_answered_with_few_directories_open(place, monkeypatch):
    """Each keeps one open for every level: under a limit, lists came without what could not be opened."""
    tree, _, _ = place
    monkeypatch.setattr(trees, "LISTED_AT_ONCE", 1)
    tree.write("/" + "d/" * 20 + "f", b"")
    whole = [one.path for one in tree.entries("/", depth=30)]

    async def story():
        before, most = len(os.listdir("/proc/self/fd")), 0
        listings = asyncio.gather(*(tree.listed("/", depth=30) for _ in range(3 * trees.LISTINGS)))
        while not listings.done():
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
            await asyncio.sleep(0)
        assert [[one.path for one in found] for found in listings.result()] == 3 * trees.LISTINGS * [whole]
        assert most <= trees.LISTINGS * 21

    asyncio.run(story())


def test_a_deep_tree_is_watched_as_far_as_its_paths_go(deep_place):
    """Each directory called for the next: a thousand of them were too many calls, and nothing was watched."""
    tree, root = deep_place[0], deep_place[1]
    tree.write("/".join("x" * 1500) + "/f", b"deep")

    async def story():
        watch = Watch(str(root), recursive=True)
        assert len(watch._paths) > 1200
        watch.close()

    asyncio.run(story())


def test_no_descriptor_stays_open(place):
    tree, root, outside = place
    (root / "out").symlink_to(outside)
    tree.write("/a/b", b"x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tree.read("/a/b")
        tree.entries("/", depth=5)
        tree.write("/c", b"y")
        tree.move("/c", "/e")
        tree.remove("/e")
        for path in ("/out/flag", "/no/no", "/a"):
            with pytest.raises(TreeError):
                tree.read(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_whole_file_system_may_be_the_root(tmp_path):
    tree = Tree("/")
    path = str(tmp_path / "x" / "y")
    tree.write(path, b"z")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert tree.read(str(tmp_path / "link" / "y")) == b"z"
    assert tree.read("/../.." + path) == b"z"


@pytest.fixture
def deep_place(place):
    """One that takes its depths along: pytest, which clears old directories away, walks into each by a call of its own."""
    yield place
    subprocess.run(["rm", "-rf", place[1]], check=True)


def test_a_deep_path_is_walked_once(deep_place, monkeypatch):
    """Each directory of it was walked to from the root: a path of 4,000 bytes kept the daemon from everybody for minutes."""
    tree, opened = deep_place[0], []
    plain = os.open
    monkeypatch.setattr(os, "open", lambda *told, **more: opened.append(told[0]) or plain(*told, **more))
    path = "/".join("x" * 1000) + "/f"
    tree.write(path, b"deep")
    assert tree.read(path) == b"deep"
    assert len(opened) < 5 * 1000
    monkeypatch.undo()
    with pytest.raises(TreeError, match="more than 256 directories deep"):
        tree.remove("x")
    opened.clear()
    monkeypatch.setattr(os, "open", lambda *told, **more: opened.append(told[0]) or plain(*told, **more))
    assert len(tree.entries("/", depth=2**32 - 1)) == trees.MOST_DEEP
    assert len(opened) < 5 * trees.MOST_DEEP
