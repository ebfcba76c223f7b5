"""A small process from which interpreters are forked in a millisecond: forked itself before the daemon has read any secret.

It has imported what cells often need. `contexts.py` asks it; `kernel.py` is what its children become.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.becoming import become, may_be_looked_into
from hekla.sandbox.daemon.kernel import _receive, become_a_kernel
from hekla.sandbox.daemon.printed import Heard

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
PATIENCE_S = 5.0
"""For an answer, while the daemon does nothing else: it takes a millisecond, and whoever stopped the nursery is not waited for longer.

It counts from when the nursery has imported what it shall."""
LOADING_S = 60.0
"""For those imports: as long as somebody's modules take, from a slow disk."""


class Nursery:
    """The daemon's end."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self._channel.settimeout(PATIENCE_S)
        self._is_ready = False
        self.pid = pid

    @classmethod
    def start(cls, preload: Sequence[str] = ()) -> Nursery:
        """Fork it; `preload` names modules that it imports, as far as they are there."""
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            its.close()
            return cls(own, pid)
        own.close()
        try:
            _live(its, preload, parent)
        finally:
            os._exit(0)

    def is_ready(self, patience_s: float = 0.0) -> bool:
        """Whether it has imported what it shall, or will never: then there is nothing to wait for."""
        if not self._is_ready and self._channel.fileno() >= 0:
            looks = select.poll()
            looks.register(self._channel, select.POLLIN)
            if not looks.poll(patience_s * 1000):
                return False
            with contextlib.suppress(OSError):
                self._channel.recv(1)
        self._is_ready = True
        return True

    def bear(self, *, cwd: str, envs: dict[str, str], uid: int, gid: int) -> tuple[int, socket.socket, tuple[int, int]]:
        """Another context: its pid, our end of its channel, and where what its programs print is read.

        Raises BlockingIOError where no process or memory is left for it, or imports take longer than `LOADING_S`, and any other OSError where the nursery is gone: it comes from a
        time without secrets, so nobody can make another one.
        """
        if not self.is_ready(LOADING_S):
            raise BlockingIOError(errno.EAGAIN, "what interpreters are forked from still imports modules")
        own, its = socket.socketpair()
        heard = Heard()
        asked = json.dumps({"cwd": cwd, "envs": envs, "uid": uid, "gid": gid}).encode()
        try:
            socket.send_fds(self._channel, [asked], [its.fileno(), *heard.written])
            (pid,) = struct.unpack("i", self._channel.recv(4))
            if pid <= 0:
                raise BlockingIOError(-pid, os.strerror(-pid))
        except (OSError, struct.error) as error:
            own.close()
            heard.close()
            if isinstance(error, BlockingIOError):
                raise
            self._channel.close()  # what it would answer later is nobody's
            raise OSError(
                "what interpreters are forked from was ended by something in this sandbox; commands still run"
            ) from error
        finally:
            its.close()
            heard.close_written()
        own.setblocking(False)
        return pid, own, heard.outputs

    def close(self) -> None:
        """Let it go; it ends by itself."""
        self._channel.close()


def _live(channel: socket.socket, preload: Sequence[str], parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked to die with it
        return
    may_be_looked_into(is_allowed=False)  # its children run as others than it does; those may not write into it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by nobody, so by the kernel
    os.environ.setdefault("MPLBACKEND", "Agg")
    known = len(sys.modules)
    for name in preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if (
        len(sys.modules) > known
    ):  # below a zygote nothing is new, and to look for what is left over copies 60 pages, 0.4 ms of a birth
        gc.collect()
    gc.freeze()  # what is here is never looked at again, so its pages stay shared
    with contextlib.suppress(OSError):  # the daemon has ended: so do we
        channel.send(b"\0")  # ready
    while True:
        asked, descriptors = _receive(channel)
        if not asked:
            return
        try:
            pid = os.fork()
        except OSError as error:  # all processes are taken: whoever asks again later may have more luck
            pid = -(error.errno or errno.EAGAIN)
        if not pid:
            channel.close()
            _become(asked, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(struct.pack("i", pid))


def _become(asked: bytes, descriptors: list[int]) -> None:
    """In the child: be whom the daemon wants, and run cells to the end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        wanted = json.loads(asked)
        become("", wanted["uid"], wanted["gid"])
        may_be_looked_into(is_allowed=True)
        os.environ.clear()
        os.environ.update(wanted["envs"])
        with contextlib.suppress(OSError):
            os.chdir(wanted["cwd"])
        become_a_kernel(socket.socket(fileno=descriptors[0]), descriptors[1:])
    except BaseException as error:  # noqa: BLE001 - a child that goes on as the nursery would answer twice
        sys.__stderr__.write(f"{error}\n") if sys.__stderr__ is not None else None
    finally:
        os._exit(0)
