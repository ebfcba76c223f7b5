"""What a child of the zygote does before it is a sandbox: builds the file system, gives up what it must not have, and parks the daemon.

It begins as a user whom nobody inside can become (the daemon's), holds every capability of its own user namespace and none of the host's, and
uses files as the sandbox's root. Sources of mounts are opened first, while it may still see them; the host's root is gone before the daemon
hears anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hekla.node.shim import landlock, linux, seccomp
from hekla.node.shim.mounts import HOST_SECRETS, HOST_WIDE, resolve
from hekla.node.shim.sandbox import archive

Spec = dict[str, Any]

MADE = b"\0made"
MOST_TREES = 64
LITTLE_BYTES, LITTLE_FILES = 512 * 1024, 200
USERS = 65535
"""Users and groups that a sandbox has, from 0; the one after them is its daemon."""

LAST_CAPABILITY = 40
KEPT_BY_ROOT = (0, 1, 3, 4, 6, 7, 10)
"""Capabilities of root inside, over the sandbox's own files and users: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID, NET_BIND_SERVICE."""
KEPT_BY_DAEMON = (*KEPT_BY_ROOT, 5, 19, 21)
"""And KILL, SYS_PTRACE (to find what a command left behind), SYS_ADMIN (for the host name: the filter refuses all mounts)."""

BUILD_AT = "/tmp"
"""Where the new root is laid over: everybody may reach it, and it is this sandbox's own mount namespace."""
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
DIRECTORIES = (
    ("dev", 0o755), ("etc", 0o755), ("home", 0o755), ("mnt", 0o755), ("opt", 0o755), ("proc", 0o555), ("root", 0o711),
    ("run", 0o755), ("srv", 0o755), ("sys", 0o555), ("tmp", 0o1777), ("usr", 0o755), ("var", 0o755), ("var/tmp", 0o1777),
    ("dev/pts", 0o755), ("dev/shm", 0o1777), ("etc/ssl", 0o755),
)  # fmt: skip
LINKS = (
    ("dev/fd", "/proc/self/fd"), ("dev/stdin", "/proc/self/fd/0"), ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"), ("dev/ptmx", "pts/ptmx"), ("var/run", "/run"),
)  # fmt: skip
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
UNWRITABLE = ("proc", "sys", "dev")
FIRST_TO_GO = "500"
"""Of a thousand: where a machine has no memory left, the kernel ends what is in sandboxes before what serves them."""
MESSAGE_QUEUES, SEMAPHORES = "256", "250 32000 500 1024"
"""System V's, of this sandbox: queues, and of semaphores those in a set, in all, in a call, and sets."""


def live(spec: Spec, daemon: Any, fds: list[int], held: socket.socket, told: int, *, has_network: bool) -> NoReturn:
    """Become a sandbox; never returns."""
    try:
        os.umask(0o022)
        control, listener = _settle_descriptors(fds, (held.fileno(), told))
        sources = [(linux.open_place(source, spec["exact"]), target, is_ro) for source, target, is_ro in spec["mounts"]]
        linux.join_groups(spec["cgroups"])
        _write_quietly("/proc/self/oom_score_adj", FIRST_TO_GO)
        go, trees, _, _ = socket.recv_fds(held, 1, MOST_TREES)
        if go != b"g":
            os._exit(1)
        held.close()
        if spec["uid_base"]:
            os.setgroups([])
        linux.set_file_owner(0, 0)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not has_network:
            loopback_up()
        linux.unshare(linux.CLONE_NEWCGROUP)
        own = _build(spec, sources, dict(zip(spec["owned"], trees, strict=False)))
        lock(spec)
        socket_of = (socket.socket(fileno=control), socket.socket(fileno=listener))
        os.write(told, MADE)
        os.close(told)
        park(spec, daemon, socket_of, own)
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        os.write(told, f"{problem.strerror or problem}{where}".encode())
    except BaseException as problem:  # noqa: BLE001 - a child that went on as the zygote would answer twice
        os.write(told, f"{type(problem).__name__}: {problem}".encode())
    finally:
        os._exit(1)


def loopback_up() -> None:
    """Switch on the loopback device of this process's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        request = struct.pack("16sh", b"lo", 0) + bytes(14)
        flags = struct.unpack_from("h", fcntl.ioctl(made, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(made, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP) + bytes(14))


def _settle_descriptors(fds: list[int], pipes: tuple[int, int]) -> tuple[int, int]:
    """Keep 0, 1 and 2 (nothing), the two sockets and the two pipes; whatever else the zygote holds is closed."""
    kept = sorted((*fds, *pipes))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    low = 3
    for descriptor in kept:
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 16)
    for descriptor in fds:
        os.set_inheritable(descriptor, False)
    return fds[0], fds[1]


def _build(spec: Spec, sources: list[tuple[int, str, bool]], trees: dict[str, int]) -> int:
    """Lay out the root and enter it; the descriptor of what the sandbox writes into. `trees` are mounts made for it, by their source."""
    root = BUILD_AT
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    rootfs = os.open(spec["rootfs"], os.O_PATH | os.O_DIRECTORY) if spec["rootfs"] else -1
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    size = f"mode=0755,size={spec['storage_bytes']},nr_inodes={spec['storage_files']}"
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    own = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    if rootfs >= 0:
        own = lay_over(root, rootfs, trees.pop(spec["rootfs"], -1))
    make_places(root, spec)
    for name, descriptor in devices.items():
        _make_file(f"{root}/dev/{name}", 0o644)
        bind(descriptor, f"{root}/dev/{name}")
        os.close(descriptor)
    linux.mount(
        "devpts", f"{root}/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    ways: dict[str, str] = {}
    for (source, _, _), (descriptor, target, is_read_only) in zip(spec["mounts"], sources, strict=True):
        where = place(root, target, is_directory=stat.S_ISDIR(os.fstat(descriptor).st_mode), ways=ways)
        if not is_read_only and source in trees:
            linux.lay(trees.pop(source), where)
        else:
            bind(descriptor, where)
        linux.harden(where, is_read_only=is_read_only)
        os.close(descriptor)
    _proc(root, spec["storage_bytes"])
    os.chdir(root)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")
    linux.set_hostname(spec["hostname"])
    return own


def lay_over(root: str, rootfs: int, tree: int) -> int:
    """An image's file system below, what the sandbox writes above; the place above is returned."""
    for name in ("upper", "work", "lower"):
        os.mkdir(f"{root}/{name}", 0o755)
    if tree >= 0:
        linux.lay(tree, f"{root}/lower")
        os.close(rootfs)
        rootfs = os.open(f"{root}/lower", os.O_PATH | os.O_DIRECTORY)
    upper = os.open(f"{root}/upper", os.O_RDONLY | os.O_DIRECTORY)
    layers = f"lowerdir=/proc/self/fd/{rootfs},upperdir={root}/upper,workdir={root}/work,userxattr"
    linux.mount("overlay", root, "overlay", linux.MS_NOSUID | linux.MS_NODEV, layers)
    os.close(rootfs)
    return upper


def make_places(root: str, spec: Spec) -> None:
    """Directories, links and files that every sandbox has; an image's own are left as they are."""
    for name, mode in DIRECTORIES:
        _make_directory(f"{root}/{name}", mode)
    for name, target in (*LINKS, *spec["links"]):
        with contextlib.suppress(FileExistsError):
            os.symlink(target, f"{root}/{name}")
    for name, text in spec["files"].items():
        _make_file(f"{root}/{name}", 0o644, text.encode())
    _make_file(f"{root}/dev/termination-log", 0o666)
    for path, owner in spec["homes"]:
        os.makedirs(root + path, exist_ok=True)
        if spec["uid_base"]:
            os.chown(root + path, owner, owner)


def _make_directory(path: str, mode: int) -> None:
    """Whatever the umask is; what is there, by a link perhaps, stays."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if os.path.isdir(path):
            return
        raise
    os.chmod(path, mode)


def _make_file(path: str, mode: int, content: bytes = b"") -> None:
    """A new one; never through a link, and what is there stays."""
    try:
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return
    try:
        os.write(made, content)
        os.fchmod(made, mode)
    finally:
        os.close(made)


def place(root: str, target: str, *, is_directory: bool, ways: dict[str, str] | None = None) -> str:
    """Where a mount goes, made if it is not there; links are followed as the sandbox sees them.

    `ways` are where directories lead that were looked up before: while a sandbox is made nobody else changes anything in its root.
    """
    ways = {} if ways is None else ways
    parent, _, name = target.rstrip("/").rpartition("/")
    if parent not in ways:
        ways[parent] = resolve(root, parent)
    where = root + resolve(root, name, ways[parent])
    if os.path.lexists(where):
        if is_directory:
            ways.clear()  # what is mounted there hides what they were looked up in
    else:
        directory = where if is_directory else os.path.dirname(where)
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
        if not is_directory:
            os.close(os.open(where, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    return where


def bind(source: int, where: str) -> None:
    """Let an open file or directory appear at a place too."""
    linux.mount(f"/proc/self/fd/{source}", where, flags=linux.MS_BIND | linux.MS_REC)


def _proc(root: str, storage_bytes: int) -> None:
    """Only one's own processes, and of the machine only what may be read."""
    proc = f"{root}/proc"
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", proc, "proc", flags, "hidepid=2")
    # what outlives who made it. Linux lets its owner say so from 6.10 on, where that is who we are: as root a group counts it
    _write_quietly(f"{proc}/sys/kernel/shmall", str(storage_bytes // resource.getpagesize()))
    _write_quietly(f"{proc}/sys/kernel/msgmni", MESSAGE_QUEUES)
    _write_quietly(f"{proc}/sys/kernel/sem", SEMAPHORES)
    hidden = [(f"{root}/dev/null", name) for name in (*HOST_SECRETS, "kmsg", "vmallocinfo", "latency_stats")]
    for source, name in [(f"{proc}/{each}", each) for each in HOST_WIDE] + hidden:
        if os.path.exists(f"{proc}/{name}"):
            linux.mount(source, f"{proc}/{name}", flags=linux.MS_BIND | linux.MS_REC)
            linux.set_read_only(f"{proc}/{name}", is_read_only=True, is_recursive=True)
    for name in ("acpi", "scsi", "driver"):
        if os.path.isdir(f"{proc}/{name}"):
            linux.mount("tmpfs", f"{proc}/{name}", "tmpfs", flags | linux.MS_RDONLY, "size=4k,mode=0555")


def _write_quietly(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def lock(spec: Spec) -> None:
    """From here there is no way back."""
    for name, value in spec["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (ceiling, ceiling))
    for number in range(LAST_CAPABILITY + 1):
        if number not in KEPT_BY_ROOT and not _drop_from_bounds(number):
            break
    linux.set_capabilities(sum(1 << number for number in KEPT_BY_DAEMON))
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if spec["landlock"]:
        writable = [f"/{name}" for name in os.listdir("/") if name not in UNWRITABLE]
        writable += ["/dev/shm", "/dev/pts", *spec.get("also_writable", ())]
        landlock.restrict({"writable": writable, "readable": [], "hidden": []})
    seccomp.refuse_dangerous_calls(is_sandbox=True)


def _drop_from_bounds(number: int) -> bool:
    """Let nobody gain a capability again; False if this kernel has none of that number, nor of a higher one."""
    try:
        linux.prctl(linux.PR_CAPBSET_DROP, number)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
        return False
    return True


def park(spec: Spec, daemon: Any, sockets: tuple[socket.socket, socket.socket], own: int) -> None:
    """Be the daemon until the node lets go; `own` is a directory of all that the sandbox writes. Never returns."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)
    gc.enable()  # the zygote goes without; what it had is frozen, what is made from now on is looked at
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    options = daemon.Options(
        workspace=spec["workspace"],
        default_user=spec["default_user"],
        preload=[name for name in spec["preload"] if name in sys.modules],
    )
    daemon.park(
        *sockets, options, spec["env"],
        _operations(own, given_to(spec), is_layer=spec.get("is_layered", bool(spec.get("rootfs")))),
    )  # fmt: skip


def given_to(spec: Spec) -> frozenset[str]:
    """What every sandbox of a plan is made with, so that a copy has it before anything is copied."""
    targets = [target for _, target, _ in spec.get("mounts", ())] + [path for path, _ in spec.get("homes", ())]
    laid = {name for name, _ in (*DIRECTORIES, *LINKS, *spec.get("links", ()))} | {
        *spec.get("files", ()),
        "dev/termination-log",
    }
    for target in targets:
        parts = target.strip("/").split("/")
        laid |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return frozenset(laid)


def _operations(own: int, given: frozenset[str], *, is_layer: bool) -> dict[str, Callable[..., Any]]:
    """What the node asks of a sandbox beside the daemon's own business: its files, packed and unpacked by itself."""
    # a layer is written through what is laid over it: what overlay has looked up in there it does not look up again
    whole = os.open("/", os.O_RDONLY | os.O_DIRECTORY) if is_layer else own

    async def pack(order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        def packed() -> dict[str, Any]:
            return archive.pack(own, descriptors[0], archive.Given(given, order["taken_ns"]))

        return packed() if _is_little(own) else await _in_child(packed)

    async def unpack(order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        if os.fstat(descriptors[0]).st_size <= LITTLE_BYTES:
            return archive.unpack(whole, descriptors[0], is_layer=whole == own)
        return await _in_child(lambda: archive.unpack(whole, descriptors[0], is_layer=whole == own))

    return {"pack": pack, "unpack": unpack}


def _is_little(own: int) -> bool:
    """Whether packing takes less time than a fork, 2 ms."""
    found = os.fstatvfs(own)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    return used <= LITTLE_BYTES and found.f_files - found.f_ffree <= LITTLE_FILES


async def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do something long beside the daemon, which has one thread and forks; the daemon reaps."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        except BaseException as problem:  # noqa: BLE001 - it must not go on as the daemon
            os.write(writer, json.dumps({"error": str(problem) or type(problem).__name__}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    told = b""

    def hear() -> None:
        nonlocal told
        piece = os.read(reader, 1 << 16)
        told += piece
        if not piece and not over.done():
            loop.remove_reader(reader)
            over.set_result(None)

    loop.add_reader(reader, hear)
    try:
        await over
    finally:
        loop.remove_reader(reader)
        os.close(reader)
    answer: dict[str, Any] = json.loads(told) if told else {"error": "it died at it"}
    return answer
