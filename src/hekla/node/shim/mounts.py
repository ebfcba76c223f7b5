"""Builds what a container sees as its file system: a root that cannot be written, with writable places laid over it.

The root is the host's own (or a registered root file system), made read-only as a whole by one system call. Places that
do not exist there get a mount point by *shadowing* their parent: a small tmpfs that holds the parent's own entries,
bound one by one, beside the new one.
"""

from __future__ import annotations  # images have older interpreters, too

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from hekla.node.shim import linux

MAX_SHADOWED = 4096
"""Entries of a directory that gets new mount points inside; each costs one mount."""

MAX_LINKS = 40

STANDING = ("/", "/var")
"""Directories whose links are the machine's own (/var/run, /bin): nobody renews a credential by leading one of them elsewhere."""

HOST_WIDE = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Files of /proc that speak of the whole machine: root of a container could set `core_pattern`, and be the host's."""

HOST_SECRETS = ("kcore", "keys", "timer_list", "sched_debug")
"""Files of /proc that show the kernel's memory, or what other containers keep in it."""


DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""The devices of every container; each is bound from the machine, because a user namespace may make none."""

DEVICE_LINKS = (
    ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)  # fmt: skip


TERMINALS = "newinstance,ptmxmode=0666,mode=0620"


class Root:
    """The container's root while it is being built, at `path`, in a mount namespace of its own.

    Where it `has_all_devices`, files open as the devices that they are; else none does but those of `devices`.
    """

    def __init__(self, path: str, rootfs: str, *, has_all_devices: bool) -> None:
        self.path = path
        self._has_all_devices = has_all_devices
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        linux.mount(rootfs or "/", path, flags=linux.MS_BIND | linux.MS_REC)
        linux.set_read_only(path, is_read_only=True, is_recursive=True)
        if not has_all_devices:
            linux.refuse_devices(path)
        self._shadows: dict[str, int] = {}
        """By place, which file system it is: another may be laid over it later."""

    def bind(self, source: int, target: str, *, is_read_only: bool) -> None:
        """Show what the descriptor `source` refers to at `target`."""
        name = f"/proc/self/fd/{source}"
        where = self._mount_point(target, is_directory=stat.S_ISDIR(os.stat(name).st_mode))
        linux.mount(name, where, flags=linux.MS_BIND | linux.MS_REC)
        linux.set_read_only(where, is_read_only=is_read_only, is_recursive=is_read_only)
        if not self._has_all_devices:
            linux.refuse_devices(where)

    def devices(self, given: Sequence[str]) -> None:
        """A /dev of its own, that cannot be written: what every program expects, terminals of its own, and the devices `given` to it."""
        where = self._mount_point("/dev", is_directory=True)
        linux.mount("tmpfs", where, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "size=64k,mode=0755")
        self._shadows[where] = os.stat(where).st_dev
        for name in (*DEVICES, *given):
            if os.path.exists(f"/dev/{name}"):
                _create(f"{where}/{name}", is_directory=os.path.isdir(f"/dev/{name}"))
                linux.mount(f"/dev/{name}", f"{where}/{name}", flags=linux.MS_BIND | linux.MS_REC)
        for name, leads_to in DEVICE_LINKS:
            os.symlink(leads_to, f"{where}/{name}")
        os.mkdir(f"{where}/pts")
        linux.mount("devpts", f"{where}/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, TERMINALS)

    def scratch(self, target: str, data: str) -> None:
        """An empty tmpfs at `target`."""
        where = self._mount_point(target, is_directory=True)
        linux.mount("tmpfs", where, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, data)

    def hide(self, target: str, writable: str = "") -> None:
        """Put nothing over a directory. A file is left out of its directory, which stays as it is now: a cover on the file itself would
        go with it when another is renamed into its place, as certificates and tokens are. Of a link both ends are. What decides where
        its way leads stays as it is now, too: a renewed credential may be in another directory, to which a link is led. Of what is in a volume that is `writable` a file that is not
        there yet is let be. OSError: a file lies in such a volume itself, which could then not be written.
        """
        for each in decisive(target, self.path):
            self.keep(each, writable)
        where = self.path + resolve(self.path, target)
        place = self._place(target)
        if os.path.islink(place):
            self._leave_out(place, writable)
        if os.path.isdir(where):
            linux.mount(
                "tmpfs", where, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY, "size=4k,mode=0755"
            )
        else:
            self._leave_out(where, writable)

    def keep(self, target: str, writable: str = "") -> None:
        """A directory stays as it is now: what comes later does not show. OSError: it is the `writable` volume."""
        where = self.path + resolve(self.path, target)
        if os.path.isdir(where) and where not in self._shadows:
            self._check_apart(where, writable)
            self._shadow(where)

    def _check_apart(self, directory: str, writable: str) -> None:
        if writable and directory == self.path + resolve(self.path, writable):
            raise OSError(errno.EACCES, "holds a credential of the node; mount it read-only, or a directory in it")

    def _place(self, target: str) -> str:
        parent, _, name = target.rstrip("/").rpartition("/")
        return f"{self.path}{resolve(self.path, parent).rstrip('/')}/{name}"

    def _leave_out(self, where: str, writable: str) -> None:
        parent, _, name = where.rpartition("/")
        if not os.path.isdir(parent) or (writable and not os.path.lexists(where)):
            return
        if parent not in self._shadows:
            self._check_apart(parent, writable)
            self._shadow(parent, leave_out=name)
        elif os.path.lexists(where):
            if not os.path.islink(where):
                linux.unmount(where)
            os.unlink(where)

    def proc(self) -> None:
        """A /proc that shows this pid namespace, and of the machine only what may be read."""
        proc = self.path + "/proc"
        linux.mount("proc", proc, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        for source, name in [(f"{proc}/{each}", each) for each in HOST_WIDE] + [
            (self.path + "/dev/null", each) for each in HOST_SECRETS
        ]:
            if os.path.exists(f"{proc}/{name}"):
                linux.mount(source, f"{proc}/{name}", flags=linux.MS_BIND | linux.MS_REC)
                linux.set_read_only(f"{proc}/{name}", is_read_only=True, is_recursive=True)

    def enter(self) -> None:
        """Make it the root and let go of the host's."""
        for shadow, device in self._shadows.items():
            if os.path.isdir(shadow) and os.stat(shadow).st_dev == device:
                linux.set_read_only(shadow, is_read_only=True, is_recursive=False)
        os.chdir(self.path)
        linux.pivot_root(".", ".")
        linux.unmount(".")
        os.chdir("/")

    def _mount_point(self, target: str, *, is_directory: bool) -> str:
        where = self.path + resolve(self.path, target)
        if not os.path.lexists(where):
            self._make(where, is_directory=is_directory)
        return where

    def _make(self, where: str, *, is_directory: bool) -> None:
        parent = os.path.dirname(where)
        if not os.path.isdir(parent):
            self._make(parent, is_directory=True)
        try:
            _create(where, is_directory=is_directory)
        except OSError as refusal:
            if refusal.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            self._shadow(parent)
            _create(where, is_directory=is_directory)

    def _shadow(self, directory: str, leave_out: str = "") -> None:
        names = [name for name in os.listdir(directory) if name != leave_out]
        if len(names) > MAX_SHADOWED:
            place = directory[len(self.path) :] or "/"
            raise OSError(errno.E2BIG, f"cannot make a mount point in {place}: it has {len(names)} entries")
        kept = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        linux.mount("tmpfs", directory, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size=1m,mode={mode:o}")
        for name in names:
            _mirror(f"/proc/self/fd/{kept}/{name}", f"{directory}/{name}")
        os.close(kept)
        self._shadows[directory] = os.stat(directory).st_dev


def _create(where: str, *, is_directory: bool) -> None:
    if is_directory:
        os.mkdir(where, 0o755)
    else:
        os.close(os.open(where, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _mirror(source: str, target: str) -> None:
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
        return
    _create(target, is_directory=stat.S_ISDIR(mode))
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)


def below(shown: str, told: str, hidden: list[tuple[str, str]]) -> list[str]:
    """What is hidden below a source of a mount, relative to it. `shown` is where the source is, `told` how it was named; of what is hidden
    both too. OSError: it leads to something hidden by a link; what is named as lying in there is the node's own.
    """
    for name, real in hidden:
        if is_within(shown, real) and not (is_within(told, name) or is_within(told, real)):
            raise OSError(errno.EACCES, "leads to what containers must not see", told)
    return [os.path.relpath(real, shown) for _, real in hidden if real != shown and is_within(real, shown)]


def ways_to(path: str) -> list[str]:
    """Where a path leads, and where its last part lies if that is a link: it may lead elsewhere tomorrow."""
    place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return list(dict.fromkeys((place, os.path.realpath(path))))


def decisive(path: str, root: str = "") -> list[str]:
    """Directories that decide where a path leads inside `root`: those of the links on its way, and those of what they lead to."""
    links: list[str] = []
    end = resolve(root, path, links=links)
    found: list[str] = []
    for link in links:
        directory = os.path.dirname(link)
        if directory not in STANDING:
            leads = resolve(root, link)
            found += [directory] if leads == end else [directory, os.path.dirname(leads)]
    return [each for each in dict.fromkeys(found) if each not in STANDING]


def crowded(hidden: Sequence[str]) -> dict[str, int]:
    """Directories of which something is to be left out, and that have too many entries for that; how many they have."""
    places = {place for path in hidden for place in decisive(path)}
    places |= {
        os.path.dirname(way)
        for path in hidden
        for way in ways_to(path)
        if os.path.islink(way) or not os.path.isdir(way)
    }
    counted: dict[str, int] = {}
    for place in sorted(places):
        with contextlib.suppress(OSError):
            counted[place] = len(os.listdir(place))
    return {place: entries for place, entries in counted.items() if entries > MAX_SHADOWED}


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a place or lies below it, by their words."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def resolve(root: str, path: str, start: str = "/", links: list[str] | None = None) -> str:
    """Where `path` leads inside `root`, every symbolic link taken as that root sees it; `start` was resolved before. The places of the
    links on the way are added to `links`.
    """
    todo = [part for part in path.split("/") if part and part != "."][::-1]
    done = [part for part in start.split("/") if part]
    crossed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del done[-1:]
            continue
        try:
            link = os.readlink("/".join([root, *done, part]))
        except OSError:
            done.append(part)
            continue
        crossed += 1
        if links is not None:
            links.append("/" + "/".join([*done, part]))
        if crossed > MAX_LINKS:
            raise OSError(errno.ELOOP, f"too many symbolic links in {path}")
        if link.startswith("/"):
            done.clear()
        todo.extend([each for each in link.split("/") if each and each != "."][::-1])
    return "/" + "/".join(done)
