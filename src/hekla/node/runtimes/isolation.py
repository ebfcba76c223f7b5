"""Finds out, once at start, how far this host lets containers be set apart: the rung, and why not a higher one.

The ladder, from the top: `namespaces` (root: mount, pid, ipc and uts namespaces), `user-namespaces` (the same inside a
user namespace, as an ordinary user), `process-group` (a session of its own; Landlock keeps writes out of the host's
files where the kernel has it). Ubuntu 24.04's AppArmor rule or a container's seccomp profile forbid the second.
A rung is tried by running `true` on it, with a limit on time.
"""

import os
from dataclasses import dataclass

from hekla.node.shim import landlock, linux, own_address, seccomp

PROBE_TIMEOUT_S = 5.0

_APART = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way to set containers apart from the host and from each other."""

    name: str
    namespaces: int
    meaning: str

    @property
    def has_mounts(self) -> bool:
        """Whether volumes can appear at their mount paths and the host's files are read-only."""
        return bool(self.namespaces & linux.CLONE_NEWNS)


NAMESPACES = Rung(
    name="namespaces",
    namespaces=_APART,
    meaning="mount, pid, ipc and uts namespaces of their own; the host's files read-only",
)
USER_NAMESPACES = Rung(
    name="user-namespaces",
    namespaces=_APART | linux.CLONE_NEWUSER,
    meaning="user, mount, pid, ipc and uts namespaces of their own; the host's files read-only",
)
PROCESS_GROUP = Rung(
    name="process-group",
    namespaces=0,
    meaning="plain processes of this user; mount paths are rewritten in command, args and env; "
    "names resolve for Python programs only",
)

LADDER = (NAMESPACES, USER_NAMESPACES, PROCESS_GROUP)


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What was found: the rung in use, the filters in use, and what refused the rungs above."""

    rung: Rung
    has_landlock: bool
    has_seccomp: bool
    has_own_addresses: bool = False
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def sentence(self) -> str:
        """For the node's condition."""
        filters = [name for name, is_on in (("landlock", self.uses_landlock), ("seccomp", self.has_seccomp)) if is_on]
        text = f"containers run on rung {self.rung.name}: {self.rung.meaning}"
        text += f"; filters: {', '.join(filters) or 'none'}"
        text += (
            "; a listener on every address gets its pod's own"
            if self.has_own_addresses
            else "; a listener on every address takes its port on all pods"
        )
        for name, reason in self.refused:
            text += f"; {name} refused: {reason}"
        return text

    @property
    def uses_landlock(self) -> bool:
        """Landlock guards the host's files where no mount namespace does."""
        return self.has_landlock and not self.rung.has_mounts


def candidates() -> tuple[Rung, ...]:
    """The rungs worth trying as this user, best first."""
    return (NAMESPACES, USER_NAMESPACES) if os.geteuid() == 0 else (USER_NAMESPACES,)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What this kernel has beside namespaces."""

    landlock: bool
    seccomp: bool
    own_addresses: bool


def filters() -> Filters:
    """Ask the kernel."""
    has_seccomp = seccomp.is_known_machine() and os.path.exists("/proc/sys/kernel/seccomp")
    return Filters(
        landlock=landlock.version() > 0,
        seccomp=has_seccomp,
        own_addresses=has_seccomp and own_address.is_available(),
    )
