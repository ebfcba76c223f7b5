"""A watch tells all that happens, or says that it does not and why: half of it, silently, would be taken for all."""

import asyncio
import ctypes
import errno
import os

import pytest

from hekla.sandbox.daemon import watching
from hekla.sandbox.daemon.watching import CREATE, WRITE, Watch, WatchEndedError


class Scarce:
    """A kernel that watches so many directories for us, and has so many watchers."""

    def __init__(self, watches, instances=1):
        self._real, self.watches, self.instances = ctypes.CDLL(None, use_errno=True), watches, instances

    def inotify_init1(self, flags):
        self.instances -= 1
        if self.instances < 0:
            ctypes.set_errno(errno.EMFILE)
            return -1
        return self._real.inotify_init1(flags)

    def inotify_add_watch(self, descriptor, path, mask):
        self.watches -= 1
        if self.watches < 0:
            ctypes.set_errno(errno.ENOSPC)
            return -1
        return self._real.inotify_add_watch(descriptor, path, mask)


@pytest.fixture
def kernel(monkeypatch):
    """So many watches, and so many watchers."""

    def of(*told):
        scarce = Scarce(*told)
        monkeypatch.setattr(watching.ctypes, "CDLL", lambda *_, **__: scarce)
        return scarce

    return of


def run(story):
    async def bounded():
        async with asyncio.timeout(30):
            await story()

    asyncio.run(bounded())


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def told(watch):
    """All that a watch tells before it says why it ended."""
    events = []
    while True:
        try:
            events.append(await watch.next())
        except WatchEndedError as error:
            return [(one.kind, one.name) for one in events], str(error)


def test_a_tree_of_more_directories_than_the_kernel_watches_is_refused_by_the_name_of_its_bound(kernel, tmp_path):
    """What was one too many was left out: its files changed, and whoever watched heard nothing."""
    for name in "abc":
        (tmp_path / name).mkdir()
    kernel(3)

    async def story():
        before = descriptors()
        with pytest.raises(
            WatchEndedError, match=r"is not watched: the kernel's fs\.inotify\.max_user_watches is \d+$"
        ):
            Watch(str(tmp_path), recursive=True)
        assert descriptors() == before

    run(story)


def test_a_directory_that_appears_and_is_one_too_many_ends_the_watch_after_all_it_saw(kernel, tmp_path):
    kernel(1)

    async def story():
        before = descriptors()
        watch = Watch(str(tmp_path), recursive=True)
        (tmp_path / "file").touch()
        (tmp_path / "sub").mkdir()
        events, why = await told(watch)
        assert events == [(CREATE, "file"), (CREATE, "sub")]
        assert why.startswith(f'"{tmp_path}/sub" is not watched: the kernel\'s fs.inotify.max_user_watches')
        with pytest.raises(WatchEndedError):
            watch.taken()
        watch.close()
        assert descriptors() == before

    run(story)


def test_our_own_bound_on_directories_is_told_and_what_moves_within_it_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(watching, "MOST_DIRECTORIES", 2)
    (tmp_path / "a").mkdir()

    async def story():
        watch = Watch(str(tmp_path), recursive=True)
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b" / "file").write_text("x")
        while (await watch.next()).name != "b/file":
            pass
        (tmp_path / "c").mkdir()
        _, why = await told(watch)
        assert why == f'"{tmp_path}/c" is not watched: one watch has at most 2 directories'

    run(story)


def test_events_that_nobody_takes_are_lost_with_a_word(monkeypatch, tmp_path):
    """The oldest went without one."""
    monkeypatch.setattr(watching, "MOST_EVENTS", 4)

    async def story():
        watch = Watch(str(tmp_path))
        for number in range(9):
            (tmp_path / f"{number}").mkdir()
        while not watch._ended:
            await asyncio.sleep(0)
        assert [one.name for one in watch.taken()] == ["0", "1", "2", "3", "4"]
        with pytest.raises(WatchEndedError, match="more than 4 events wait, and nobody takes them"):
            watch.taken()

    run(story)


def test_what_the_kernel_lost_is_told(tmp_path):
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        most = int(file.read())
    if most > 50_000:
        pytest.skip(f"this kernel keeps {most} events, too many to make")

    async def story():
        watch = Watch(str(tmp_path))
        files = [os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY) for name in "ab"]
        for number in range(most + 2):
            os.write(files[number % 2], b"x")
        os.close(files[0])
        os.close(files[1])
        events, why = [], ""
        while not why:
            try:
                events += watch.taken()
            except WatchEndedError as error:
                why = str(error)
            await asyncio.sleep(0)
        assert why == f"more happened than was read in time: the kernel's fs.inotify.max_queued_events is {most}"
        assert WRITE in {one.kind for one in events}

    run(story)


def test_one_watcher_more_than_the_kernel_has_is_refused_by_the_name_of_its_bound(kernel, tmp_path):
    kernel(9, 0)

    async def story():
        with pytest.raises(
            WatchEndedError, match=r"as many watchers as may be: the kernel's fs\.inotify\.max_user_instances"
        ):
            Watch(str(tmp_path))

    run(story)
