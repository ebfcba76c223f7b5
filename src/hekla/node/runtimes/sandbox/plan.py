"""Decides what a sandbox is made of: what of the host it sees, its users, its limits. `inside.py` does it.

Of the host a sandbox without an image of its own sees programs and libraries, read-only, and nothing else: no home, no data, no configuration but
what programs need to start.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hekla.node.runtimes import ContainerSpec, Limits, Mount
from hekla.node.runtimes.confine import STANDARD_PATH

Spec = dict[str, Any]

FIRST_USER = 0x7000_0000
"""Above what distributions hand out to users and containers."""
USERS_APART = 0x1_0000
SLOTS = 4094
"""Sandboxes of one node at a time, each with 65,535 users of its own."""

USER, USER_ID = "user", 1000
HOME = f"/home/{USER}"
STORAGE_BYTES = 512 * 1024 * 1024
"""What a sandbox may write, files in memory included, where its pod sets no ephemeral-storage limit."""
FILES_OF_MEMORY = 3, 4
"""How much of its memory a sandbox's files may take where its pod limits that: they lie in memory. Were they to fill it, writing one file too
many would not be refused, but end the sandbox."""
STORAGE_FILES = 100_000
PROCESSES = 512
OPEN_FILES = 4096
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Tokens of the cluster are never mounted into a sandbox."""

PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
CONFIGURATION = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "protocols", "services",
    "ssl/certs", "ca-certificates", "python3", "fonts", "bash.bashrc", "profile", "magic", "terminfo", "R",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Host:
    """What holds for all sandboxes of a runtime."""

    is_root: bool
    has_landlock: bool
    preload: Sequence[str]


def spec_of(host: Host, *, slot: int, hostname: str, container: ContainerSpec | None, groups: Sequence[Path]) -> Spec:
    """All that a sandbox's first process is told; `container` is None for one that waits for any."""
    rootfs = container.rootfs if container else None
    mounts = [] if rootfs else list(host_mounts())
    mounts += [each for each in container.mounts if not each.target.startswith(SERVICE_ACCOUNT)] if container else []
    user_id = USER_ID if host.is_root else 0
    return {
        "uid_base": FIRST_USER + slot * USERS_APART if host.is_root else 0,
        "hostname": hostname,
        "mounts": [[str(each.source), each.target, each.is_read_only] for each in mounts],
        "exact": [str(each.source) for each in mounts if each.is_exact],
        "rootfs": str(rootfs or ""),
        "owned": list(
            dict.fromkeys(
                ([str(rootfs)] if rootfs else []) + [str(each.source) for each in mounts if not each.is_read_only]
            )
        ),
        "links": [] if rootfs else [list(pair) for pair in host_links()],
        "files": _files(user_id),
        "homes": [[HOME, user_id], ["/workspace", user_id]],
        "workspace": "/workspace",
        "default_user": USER,
        "cgroups": [str(group) for group in groups],
        "storage_bytes": room_for_files(container.limits if container else Limits()),
        "storage_files": STORAGE_FILES,
        "rlimits": _rlimits(container.limits if container else Limits(), has_groups=bool(groups)),
        "landlock": host.has_landlock,
        "preload": list(host.preload),
        "env": {"PATH": _path(), "LANG": "C.UTF-8", "HOME": HOME},
    }


def room_for_files(limits: Limits) -> int:
    """How many bytes of files a sandbox may have."""
    most, of = FILES_OF_MEMORY
    return min(STORAGE_BYTES, limits.memory_bytes * most // of) if limits.memory_bytes else STORAGE_BYTES


def is_plain(container: ContainerSpec) -> bool:
    """Whether a sandbox that waits for any pod will do: nothing is mounted into it."""
    mounts = [each for each in container.mounts if not each.target.startswith(SERVICE_ACCOUNT)]
    return container.rootfs is None and not mounts


def environment_of(container: ContainerSpec) -> dict[str, str]:
    """The pod's own variables."""
    return {**container.env, "HOSTNAME": container.hostname}


@cache
def host_links() -> Sequence[tuple[str, str]]:
    """`/bin` and the like, where they are links into /usr."""
    return tuple((name, os.readlink(f"/{name}")) for name in PROGRAMS if os.path.islink(f"/{name}"))


@cache  # looked for once: 30 paths a sandbox were 0.4 ms of the node's one thread
def host_mounts() -> Sequence[Mount]:
    """Programs and libraries of the host, and where our Python and its packages lie."""
    places = [
        Path("/usr"),
        *(Path(f"/{name}") for name in PROGRAMS if not os.path.islink(f"/{name}")),
        *python_places(),
    ]
    places += [Path("/etc") / name for name in CONFIGURATION]
    return tuple(Mount(source=path, target=str(path), is_read_only=True) for path in places if path.exists())


@cache
def python_places() -> Sequence[Path]:
    """The prefix of this Python and what lies outside of it; never our own source."""
    candidates = {Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("stdlib")), *packages()}
    outer = sorted(path for path in candidates if path.is_dir() and not path.is_relative_to("/usr"))
    return tuple(path for path in outer if not any(path != other and path.is_relative_to(other) for other in outer))


def packages() -> Sequence[Path]:
    """Where installed modules are: interpreters in sandboxes find them."""
    return tuple(dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")))


def _path() -> str:
    own = str(Path(sys.prefix) / "bin")
    return STANDARD_PATH if own in STANDARD_PATH.split(":") else f"{own}:{STANDARD_PATH}"


def _files(user_id: int) -> Mapping[str, str]:
    users = [f"{USER}:x:{user_id}:{user_id}::{HOME}:/bin/bash", "root:x:0:0:root:/root:/bin/bash"]
    users = users if not user_id else users[::-1]
    return {
        "etc/passwd": "\n".join([*users, "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"]) + "\n",
        "etc/group": f"root:x:0:\ntty:x:5:\n{USER}:x:{user_id}:\nnogroup:x:65534:\n",
        "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
        "etc/hostname": "sandbox\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "etc/resolv.conf": "# names are resolved by the egress broker\n",
    }


def _rlimits(limits: Limits, *, has_groups: bool) -> Mapping[str, int]:
    found = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": OPEN_FILES, "RLIMIT_FSIZE": STORAGE_BYTES, "RLIMIT_NPROC": PROCESSES,
             "RLIMIT_MEMLOCK": 1 << 20, "RLIMIT_MSGQUEUE": 0}  # fmt: skip
    if limits.memory_bytes and not has_groups:
        found["RLIMIT_DATA"] = limits.memory_bytes
    return found
