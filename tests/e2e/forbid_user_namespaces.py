"""Runs a command where user namespaces and mounts are refused, as a container's seccomp profile does.

python forbid_user_namespaces.py COMMAND...
"""

import ctypes
import os
import platform
import struct
import sys

CLONE_NEWUSER = 0x10000000
EPERM, ENOSYS = 1, 38
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBERS = {"x86_64": (272, 56, 435, 165), "aarch64": (97, 220, 435, 40)}
"""unshare, clone, clone3, mount."""


def filter_for(machine: str) -> bytes:
    unshare, clone, clone3, mount = NUMBERS[machine]
    steps = [
        (LOAD_WORD, 0, 0, 0),  # the call's number
        (JUMP_IF_EQUAL, 6, 0, clone3),
        (JUMP_IF_EQUAL, 4, 0, mount),
        (JUMP_IF_EQUAL, 1, 0, unshare),
        (JUMP_IF_EQUAL, 0, 4, clone),
        (LOAD_WORD, 0, 0, 16),  # its first argument's lower half: the flags
        (JUMP_IF_BIT, 0, 2, CLONE_NEWUSER),
        (RETURN, 0, 0, FAIL | EPERM),
        (RETURN, 0, 0, FAIL | ENOSYS),  # glibc falls back to clone
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    steps = filter_for(platform.machine())
    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter could be installed")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
