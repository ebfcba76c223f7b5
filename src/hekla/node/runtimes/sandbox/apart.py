"""Whether this host lets anybody be set apart at all: what its files say, and what it answers when it is tried.

A filter of system calls (Docker's for containers without privileges) and a chroot refuse without saying so in any file.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from hekla.node.shim import linux

PATIENCE_S = 10.0
"""A trial takes 15 ms. Who does not hear of it goes on, and hears with the first sandbox."""

_TRIAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(int(sys.argv[1])): print(os.strerror(ctypes.get_errno()))
"""


async def why_nothing_is_set_apart() -> str:
    """Why no sandbox can be made here, with what helps; empty: nothing is known against it."""
    return ("" if os.geteuid() == 0 else forbids_user_namespaces()) or await _answer()


def forbids_user_namespaces() -> str:
    """Why an ordinary user may make none, by what the kernel and distributions say in files."""
    for file, bad, why in (
        ("/proc/sys/user/max_user_namespaces", "0", "the kernel allows no user namespaces (user.max_user_namespaces is 0)"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "only root may make user namespaces (kernel.unprivileged_userns_clone is 0)"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
            "AppArmor keeps ordinary users from user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
        ),
    ):  # fmt: skip
        with contextlib.suppress(OSError):
            if Path(file).read_text().strip() == bad:
                return f"{why}; run the node as root, or change that setting"
    return ""


async def _answer() -> str:
    """Tried in a process of its own: this one has threads, and must stay where it is."""
    namespaces = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
    trial = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _TRIAL, str(namespaces),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            told, _ = await trial.communicate()
    except TimeoutError:
        trial.kill()
        await trial.wait()
        return ""
    problem = told.decode(errors="replace").strip()
    if not problem:
        return ""
    return (
        f"the host refuses new namespaces ({problem.lower()}), as it does in a container without privileges and in a chroot; "
        "run the node outside of it, or give the container the right to make them (Docker: --privileged)"
    )
