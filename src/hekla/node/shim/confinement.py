"""What is locked before a container's command runs: user, limits, capabilities, and filters where the kernel has them.

Each lock is asked for by the spec; `hekla.node.runtimes.isolation` found out which ones this host allows.
"""

import contextlib
import os
import resource
from typing import Any

from hekla.node.shim import landlock, linux, seccomp

Spec = dict[str, Any]

LAST_CAPABILITY = 40

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6,
    "SETUID": 7, "SETPCAP": 8, "LINUX_IMMUTABLE": 9, "NET_BIND_SERVICE": 10, "NET_BROADCAST": 11, "NET_ADMIN": 12,
    "NET_RAW": 13, "IPC_LOCK": 14, "IPC_OWNER": 15, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_CHROOT": 18,
    "SYS_PTRACE": 19, "SYS_PACCT": 20, "SYS_ADMIN": 21, "SYS_BOOT": 22, "SYS_NICE": 23, "SYS_RESOURCE": 24,
    "SYS_TIME": 25, "SYS_TTY_CONFIG": 26, "MKNOD": 27, "LEASE": 28, "AUDIT_WRITE": 29, "AUDIT_CONTROL": 30,
    "SETFCAP": 31, "MAC_OVERRIDE": 32, "MAC_ADMIN": 33, "SYSLOG": 34, "WAKE_ALARM": 35, "BLOCK_SUSPEND": 36,
    "AUDIT_READ": 37, "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40,
}  # fmt: skip
"""Linux's capabilities by the names that pods use (without CAP_)."""


def map_user(spec: Spec) -> None:
    """In a fresh user namespace: be the wanted user there, and ourselves to the host."""
    if not spec["namespaces"] & linux.CLONE_NEWUSER:
        return
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{spec['uid'] or 0} {spec['host_uid']} 1"),
        ("gid_map", f"{spec['gid'] or 0} {spec['host_gid']} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def lock(spec: Spec) -> None:
    """Give up all that the command must not have; from here there is no way back."""
    for name, value in spec["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (ceiling, ceiling))
    if spec["capabilities"] is not None:
        _drop_from_bounding_set(set(spec["capabilities"]))
    if not spec["namespaces"] & linux.CLONE_NEWUSER:
        _become_user(spec)
    if spec["capabilities"] is not None:
        _keep_capabilities(set(spec["capabilities"]) if not spec["uid"] else set())
    if spec["no_new_privileges"] or spec["landlock"] or spec["seccomp"]:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if spec["landlock"]:
        landlock.restrict(spec["landlock"])
    if spec["seccomp"]:
        seccomp.refuse_dangerous_calls()


def give_terminal(spec: Spec) -> None:
    """The terminal at 0 becomes its user's: programs open it anew by its name. Where no owner may be given, it works without that."""
    if spec["uid"] is not None and not spec["namespaces"] & linux.CLONE_NEWUSER:
        with contextlib.suppress(OSError):
            os.fchown(0, spec["uid"], -1)


def _become_user(spec: Spec) -> None:
    if spec["groups"] is not None and os.geteuid() == 0:
        os.setgroups(spec["groups"])
    if spec["gid"] is not None:
        os.setgid(spec["gid"])
    if spec["uid"] is not None:
        os.setuid(spec["uid"])


def _drop_from_bounding_set(kept: set[int]) -> None:
    for number in range(LAST_CAPABILITY + 1):
        if number not in kept:
            try:
                linux.prctl(linux.PR_CAPBSET_DROP, number)
            except OSError:
                return  # without SETPCAP there is nothing to drop from


def _keep_capabilities(kept: set[int]) -> None:
    held = _effective()
    linux.set_capabilities(sum(1 << number for number in kept) & held)


def _effective() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0
