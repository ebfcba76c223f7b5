"""Turns a `ContainerSpec` into what a container's init does on the rung that this host allows.

With mount namespaces the host's files are read-only and volumes lie at their mount paths. Without them mount paths are
rewritten, in argv, environment and working directory, to the directories behind them: the best that can be done there.
"""

import errno
import hashlib
import os
import re
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import hekla
from hekla.node.runtimes import ContainerSpec, Mount
from hekla.node.runtimes.isolation import Isolation
from hekla.node.runtimes.sweep import MARKER
from hekla.node.shim import linux
from hekla.node.shim.confinement import CAPABILITIES
from hekla.node.shim.mounts import DEVICES

LOG_MAX_BYTES = 10 * 1024 * 1024
LOG_FILES = 4
"""Rotated parts kept beside the current one: 50 MiB a container at most."""

PRIVATE_PLACES = ("/tmp", "/var/tmp", "/run")  # the container's own
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

DEFAULT_CAPABILITIES = frozenset(
    ("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
     "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE")
)  # fmt: skip
"""What container engines leave to root by default (containerd's fourteen), without NET_RAW and MKNOD: the network here is the machine's."""

ACCELERATORS = ("nvidia*", "dri", "kfd", "infiniband")
"""Whoever is given a GPU sees these of the machine's devices, all of each kind: libraries count them, and variables choose among them."""

_PLAIN = re.compile(r"[-\w./:@%+=,]+", re.ASCII)

HOSTS_HOOK = Path(__file__).parent / "hosts_hook"


@dataclass(frozen=True, kw_only=True)
class Confiner:
    """The choices that hold for all containers of a runtime."""

    isolation: Isolation
    root: Path
    hidden: Sequence[Path]
    marker: str
    has_memory_groups: bool
    most_processes: int = 0
    """Of the user's, where no control group bounds them; 0: no bound."""

    def order_for(
        self, container: ContainerSpec, directory: Path, logs: Path, groups: Sequence[Path]
    ) -> dict[str, Any]:
        """What the init of this container is told; makes the directories it needs."""
        scratch = _make_places(directory, logs)
        is_read_only = container.is_root_read_only and self.isolation.rung.has_mounts
        message_file = directory / "termination-message"
        fifo = directory / "stdin"
        if container.has_stdin and not fifo.exists():
            os.mkfifo(fifo, 0o600)
        has_mounts = self.isolation.rung.has_mounts
        order: dict[str, Any] = {
            "namespaces": self._namespaces(container),
            "argv": list(container.argv),
            "env": self._environment(container),
            "cwd": container.working_dir or ("/" if is_read_only else "/tmp"),
            "hostname": container.hostname,
            "root": str(self.root),
            "rootfs": str(container.rootfs or ""),
            "mounts": [],
            "exact": [],
            "hidden": [str(path) for path in self.hidden],
            "log_dir": str(logs),
            "log_name": f"{container.key.attempt}.log",
            "log_max_bytes": LOG_MAX_BYTES,
            "log_files": LOG_FILES,
            "message_file": str(message_file) if container.termination_message_path else "",
            "stdin_fifo": str(fifo) if container.has_stdin else "",
            "tty": container.has_tty,
            "own_address": container.pod_ip if self.isolation.has_own_addresses else "",
            "cgroups": [str(group) for group in groups],
            "rlimits": self._rlimits(container),
            "landlock": None,
            "devices": None if container.is_privileged else devices_given(container),
            **self._identity(container),
        }
        if order["message_file"]:
            message_file.touch(0o666)
        mounts = self._mounts(container, directory, scratch, message_file, is_read_only=is_read_only)
        order["exact"] = [str(each.source) for each in mounts if each.is_exact]
        if has_mounts:
            order["mounts"] = [[str(each.source), each.target, each.is_read_only] for each in mounts]
            return order
        _rewrite_paths(order, [replace(each, source=self._plain(each.source)) for each in mounts])
        order["env"] = self._environment_without_mounts(order["env"], container)
        if self.isolation.uses_landlock:
            own = [str(container.hosts_file)] if container.hosts_file else []
            order["landlock"] = {
                "writable": [str(each.source) for each in mounts if not each.is_read_only],
                "readable": [str(each.source) for each in mounts if each.is_read_only] + own,
                "exact": order["exact"],
                # also where they lead now: a command that is run later finds a link led elsewhere
                "hidden": list(dict.fromkeys(str(way) for path in self.hidden for way in (path, path.resolve()))),
                "devices": None if container.is_privileged else _device_files(order["devices"]),
            }
        return order

    def _plain(self, path: Path) -> Path:
        """The path, or where it holds blanks and the like a link to it: it will stand unquoted in scripts."""
        if _PLAIN.fullmatch(str(path)):
            return path
        link = alias_directory(self.marker) / hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        if not link.is_symlink():
            link.symlink_to(path)
        return link

    def _namespaces(self, container: ContainerSpec) -> int:
        return self.isolation.rung.namespaces

    def _environment(self, container: ContainerSpec) -> dict[str, str]:
        defaults = {
            "PATH": usual_path(),
            "HOME": "/tmp",
            "HOSTNAME": container.hostname,
            "LANG": "C.UTF-8",
        }
        if container.pod_ip and self.isolation.has_own_addresses:
            # Open MPI leaves out all of 127.0.0.0/8, where our pods live; what it should leave out is the loopback device
            defaults["OMPI_MCA_btl_tcp_if_exclude"] = "lo"
        if container.has_tty:
            defaults["TERM"] = "xterm"
        return {**defaults, **container.env, MARKER: self.marker}

    def _environment_without_mounts(self, env: dict[str, str], container: ContainerSpec) -> dict[str, str]:
        """Names reach Python programs through a hook on the module path, for want of an /etc/hosts of their own."""
        if container.hosts_file is None:
            return env
        path = ":".join(part for part in (str(HOSTS_HOOK), env.get("PYTHONPATH", "")) if part)
        return {**env, "PYTHONPATH": path, "HEKLA_HOSTS": str(container.hosts_file)}

    def _mounts(
        self,
        container: ContainerSpec,
        directory: Path,
        scratch: dict[str, Path],
        message_file: Path,
        *,
        is_read_only: bool,
    ) -> list[Mount]:
        """Private places first (empty ones, where nothing is to be written), then what of the host must be seen through them, then
        volumes, outer ones first.
        """
        has_mounts = self.isolation.rung.has_mounts
        mounts = [Mount(source=source, target=target, is_read_only=is_read_only) for target, source in scratch.items()]
        taken = {each.target for each in mounts} | {each.target for each in container.mounts}
        if has_mounts and container.rootfs is None:
            mounts += [
                Mount(source=path, target=str(path), is_read_only=True)
                for path in interpreter_places()
                if any(path.is_relative_to(place) for place in scratch)
            ]
        working_dir = container.working_dir
        if working_dir and working_dir not in taken and not _exists(container, working_dir):
            mounts.append(Mount(source=_made(directory / "work"), target=working_dir))
        if container.hosts_file is not None and has_mounts:
            mounts.append(Mount(source=container.hosts_file, target="/etc/hosts", is_read_only=True))
        if container.termination_message_path:
            mounts.append(Mount(source=message_file, target=container.termination_message_path))
        mounts += [each for each in container.mounts if each.target not in scratch]
        mounts = [
            _first(each, container.mounts) if each.target in {m.target for m in container.mounts} else each
            for each in mounts
        ]
        return sorted(mounts, key=lambda each: each.target.rstrip("/").count("/"))

    def _identity(self, container: ContainerSpec) -> dict[str, Any]:
        in_user_namespace = bool(self.isolation.rung.namespaces & linux.CLONE_NEWUSER)
        is_root = os.geteuid() == 0
        kept = set(DEFAULT_CAPABILITIES)
        if "ALL" in container.drop_capabilities:
            kept.clear()
        kept -= set(container.drop_capabilities)
        kept |= set(CAPABILITIES) if "ALL" in container.keep_capabilities else set(container.keep_capabilities)
        capabilities = sorted(CAPABILITIES[name] for name in kept if name in CAPABILITIES)
        may_choose = is_root or in_user_namespace
        return {
            "uid": container.user if may_choose else None,
            "gid": container.group if may_choose else None,
            "groups": list(container.groups) if is_root and not in_user_namespace else None,
            "host_uid": os.geteuid(),
            "host_gid": os.getegid(),
            "capabilities": None if container.is_privileged or not may_choose else capabilities,
            "no_new_privileges": not container.may_gain_privileges,
            "seccomp": self.isolation.has_seccomp and not container.is_privileged,
        }

    def _rlimits(self, container: ContainerSpec) -> dict[str, int]:
        limits = {"RLIMIT_CORE": 0}
        if self.most_processes and not container.is_privileged:
            limits["RLIMIT_NPROC"] = self.most_processes
        if container.limits.memory_bytes and not self.has_memory_groups:
            limits["RLIMIT_DATA"] = container.limits.memory_bytes
        return limits


def usual_path() -> str:
    """Where commands are looked up that say nothing else: first in the environment that we run in."""
    return f"{Path(sys.executable).parent}:{STANDARD_PATH}"


def alias_directory(marker: str) -> Path:
    """Where links to places with awkward names lie; ours alone, or it is not used."""
    directory = Path(tempfile.gettempdir()) / f"hekla-{marker}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "is not ours", str(directory))
    return directory


@cache
def interpreter_places() -> list[Path]:
    """Where this Python, its packages and we lie: containers run them too, wherever they were installed."""
    candidates = [
        str(Path(hekla.__file__).parent.parent),
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    ]
    system = ("/usr", "/lib", "/bin", "/opt")
    places = {Path(each).resolve() for each in candidates} | {Path(sys.prefix)}
    return sorted(path for path in places if path.is_dir() and not str(path).startswith(system))


def devices_given(container: ContainerSpec) -> list[str]:
    """Names in /dev that a container has beside those of all."""
    if not container.devices:
        return []
    return sorted(path.name for pattern in ACCELERATORS for path in Path("/dev").glob(pattern))


def _device_files(given: Sequence[str]) -> list[str]:
    return [f"/dev/{name}" for name in (*DEVICES, "ptmx", "pts", "shm", *given)]


def _make_places(directory: Path, logs: Path) -> dict[str, Path]:
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {place: _made(directory / "tmp" / place.strip("/").replace("/", "-"), 0o1777) for place in PRIVATE_PLACES}


def _made(path: Path, mode: int = 0o777) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


def _exists(container: ContainerSpec, path: str) -> bool:
    return ((container.rootfs or Path("/")) / path.lstrip("/")).exists()


def _first(each: Mount, volumes: Sequence[Mount]) -> Mount:
    """A volume at one of our own places wins over it."""
    return next(volume for volume in volumes if volume.target == each.target)


def _rewrite_paths(order: dict[str, Any], mounts: Sequence[Mount]) -> None:
    """Put the directory behind a mount wherever its path stands at the start of a word."""
    pairs = sorted(((each.target.rstrip("/"), str(each.source)) for each in mounts), key=lambda pair: -len(pair[0]))
    order["rewritten"] = pairs
    order["argv"] = [rewrite(text, pairs) for text in order["argv"]]
    order["env"] = {key: value if key == "PATH" else rewrite(value, pairs) for key, value in order["env"].items()}
    order["cwd"] = rewrite(order["cwd"], pairs)


def rewrite(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """`text` with every path at or below a pair's first replaced by its second; longer paths win, once each."""
    done, position = [], 0
    while position < len(text):
        pair = _pair_at(text, position, pairs)
        if pair is None:
            done.append(text[position])
            position += 1
        else:
            done.append(pair[1])
            position += len(pair[0])
    return "".join(done)


def _pair_at(text: str, position: int, pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    if text[position] != "/" or (position and (text[position - 1].isalnum() or text[position - 1] in "/._-~}")):
        return None
    for target, source in pairs:
        end = position + len(target)
        if text.startswith(target, position) and (end == len(text) or not (text[end].isalnum() or text[end] in "._-")):
            return target, source
    return None
