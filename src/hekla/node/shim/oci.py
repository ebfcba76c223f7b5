"""Starts one container of an OCI runtime: lays out its file system in a mount namespace that nobody else has, then becomes the runtime.

All mounts go with the last process of the namespace, so nothing is left behind however the node ends. The user namespace is made here too: the
runtime, which is a large program, is root of that one only. Standard input and output are the link to the sandbox's bridge.

    launcher (the node's user) ── child in namespaces of its own ── exec ──> runc run ──> bridge ──> daemon
"""

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from hekla.node.shim import linux
from hekla.node.shim.sandbox import inside
from hekla.node.shim.sandbox.zygote import name_users, trees_of

Spec = dict[str, Any]

BUILD_AT = inside.BUILD_AT
ROOT, BUNDLE, STATE = f"{BUILD_AT}/root", f"{BUILD_AT}/bundle", f"{BUILD_AT}/state"
OWN = 3
MOST_TREES = 64
LITTLE = "size=16m,mode=0700"
"""Room for the runtime's own notes."""


def main() -> None:
    """Entry: the spec is the only argument."""
    spec = json.loads(sys.argv[1])
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.join_groups(spec["cgroups"])
    ours, held = socket.socketpair()
    pid = linux.fork_into(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    if pid == 0:
        ours.close()
        try:
            _become_runtime(spec, held)
        except OSError as problem:
            where = f" ({problem.filename})" if problem.filename else ""
            sys.stderr.write(f"the container's files cannot be laid out: {problem.strerror or problem}{where}\n")
        finally:
            os._exit(125)
    held.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # the link is the container's alone: its end is seen when the container ends
        os.dup2(nothing, standard)
    _hand_in(pid, spec, ours)
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _hand_in(pid: int, spec: Spec, ours: socket.socket) -> None:
    """Name the container's users from outside, and hand in what lies outside as they number it."""
    name_users(pid, spec)
    trees = trees_of(pid, spec)
    socket.send_fds(ours, [b"g"], trees)
    for tree in trees:
        os.close(tree)


def _become_runtime(spec: Spec, held: socket.socket) -> NoReturn:
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # opened in this mount namespace, and while we may still see what the container's users may not
    sources = [(linux.open_place(source, spec["exact"]), target, is_ro) for source, target, is_ro in spec["mounts"]]
    rootfs = os.open(spec["rootfs"], os.O_PATH | os.O_DIRECTORY) if spec["rootfs"] else -1
    go, trees, _, _ = socket.recv_fds(held, 1, MOST_TREES)
    held.close()
    if go != b"g":
        os._exit(125)
    if spec["uid_base"]:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has taken it back
    os.umask(0o022)
    own = _lay_out(spec, sources, rootfs, dict(zip(spec["owned"], trees, strict=False)))
    os.dup2(own, OWN)
    os.set_inheritable(OWN, True)
    os.closerange(OWN + 1, 1 << 16)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    with open(f"{BUNDLE}/config.json", "w", encoding="utf-8") as file:
        json.dump(spec["config"], file)
    os.execve(spec["runtime"][0], spec["runtime"], {"PATH": os.defpath, "XDG_RUNTIME_DIR": STATE})


def _lay_out(spec: Spec, sources: list[tuple[int, str, bool]], rootfs: int, trees: dict[str, int]) -> int:
    """The root that the runtime enters; a descriptor of what the sandbox writes into, which leads nowhere else."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    if spec["hides_groups"]:
        linux.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4k,mode=0555")
    linux.mount("tmpfs", BUILD_AT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, LITTLE)
    for place in (ROOT, BUNDLE, STATE):
        os.mkdir(place)
    size = f"mode=0755,size={spec['storage_bytes']},nr_inodes={spec['storage_files']}"
    linux.mount("tmpfs", ROOT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    written = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    if rootfs >= 0:
        written = inside.lay_over(ROOT, rootfs, trees.pop(spec["rootfs"], -1))
    inside.make_places(ROOT, spec)
    for (source, _, _), (descriptor, target, is_read_only) in zip(spec["mounts"], sources, strict=True):
        where = inside.place(ROOT, target, is_directory=os.path.isdir(f"/proc/self/fd/{descriptor}"))
        if not is_read_only and source in trees:
            linux.lay(trees.pop(source), where)
        else:
            inside.bind(descriptor, where)
        linux.harden(where, is_read_only=is_read_only)
    # with what is mounted on it, so that places of mounts are known as such; an image's upper layer has none
    return linux.alone(f"/proc/self/fd/{written}", is_recursive=rootfs < 0)
