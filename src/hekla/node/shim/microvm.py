"""Becomes a virtual machine's monitor, as little as it can be: a user of its own, no network, nothing of ours but the descriptors that it is given.

A guest that breaks out of its machine finds itself as a user without files, in namespaces without a device or a neighbour.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys

from hekla.node.shim import linux

FIRST = 3
APART = linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


def main() -> None:
    """Entry: the spec is the only argument; descriptors from 3 on are the monitor's."""
    spec = json.loads(sys.argv[1])
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.join_groups(spec["cgroups"])
    _settle(spec["descriptors"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if spec["user"]:
        linux.unshare(APART)
        groups = [os.stat(path).st_gid for path in spec["devices"]]
        os.setgroups(groups)
        os.setresgid(spec["user"], spec["user"], spec["user"])
        os.setresuid(spec["user"], spec["user"], spec["user"])
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has taken it back
    else:
        with contextlib.suppress(OSError):  # a host that has no user namespaces for us: the machine is the boundary
            linux.unshare(linux.CLONE_NEWUSER | APART)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    os.execve(spec["command"][0], spec["command"], {"PATH": os.defpath, "LANG": "C"})


def _settle(descriptors: list[int]) -> None:
    """The monitor's descriptors are 3 and up, in their order; it has no others of ours."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
    for number, descriptor in enumerate(high, FIRST):
        os.dup2(descriptor, number)
        os.set_inheritable(number, True)
    os.closerange(FIRST + len(high), 1 << 16)
