"""Opens the fast lane where it can be had, and says in the log why not where it cannot: then all goes through Python, as before.

The code was compiled for what this machine says it is; whether its kernel does what the code asks of it is tried out.
"""

import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Lane as Enter
from hekla.serving.router.lane.compiled_for import why_unknown
from hekla.serving.router.lane.lane import Lane
from hekla.serving.router.lane.layout import Call, Command, State
from hekla.serving.router.lane.slabs import Slabs
from hekla.serving.router.lane.ways import Ways
from hekla.serving.router.proxy.clients import Doorway

_SAID: Final = b"hello"

log = structlog.get_logger(__name__)


class ClosedLaneError(Exception):
    """The lane cannot be had here."""


_REFUSES: Final = (ClosedLaneError, OSError, MemoryError, NotImplementedError)
"""What the code, the kernel, memory and the loop's kind of `add_reader` raise."""


def opened(enter: Enter | None, house: House, doorway: Doorway, make_ways: Callable[[Slabs], Ways]) -> Lane | None:
    """The lane, with requests sent its way; None, with a reason in the log, where there is none."""
    if enter is None:
        log.info("fast lane stays closed", why=why_unknown() or "it was not compiled")
        return None
    lane: Lane | None = None
    try:
        lane = Lane(enter, house, doorway, make_ways)
        try_out(enter, lane.slabs)
        lane.begin()
    except _REFUSES as error:
        log.warning("fast lane stays closed", why=str(error) or type(error).__name__)
    except Exception:  # a mistake of ours: what leaves here has all of it loaded anew each second
        log.exception("the fast lane was not opened")
    else:
        log.info("fast lane opened")
        return lane
    if lane is not None:
        lane.close()
    return None


def try_out(enter: Enter, slabs: Slabs) -> None:
    """Have the code take a connection, hear what was said on it, and close it; raises ClosedLaneError where it does not.

    A kernel that is not quite Linux, or a filter of its calls, refuses by an error. To the code that is a socket that has nothing
    yet: its clients would wait for ever.
    """
    mine, its = socket.socketpair()
    with mine:
        mine.setblocking(False)
        mine.sendall(_SAID)
        mine.shutdown(socket.SHUT_WR)
        its.setblocking(False)
        descriptor = its.detach()
        try:
            number = _heard(enter, slabs, descriptor)
        except ClosedLaneError:
            os.close(descriptor)
            raise
        command = enter(slabs.state, Call.CUT, number, 0, 0, 0, 0.0)
        if command != Command.GONE or not _is_over(mine):
            raise ClosedLaneError("a connection that the code closed stays open")


def _heard(enter: Enter, slabs: Slabs, descriptor: int) -> int:
    """The row of a connection on which something was said, once the code has told of it."""
    number = enter(slabs.state, Call.ADOPT, descriptor, 0, 0, 0, 0.0)
    if number < 0:
        raise ClosedLaneError("the kernel does not let the code watch a connection")
    command = enter(slabs.state, Call.PUMP, 0, 0, 0, 0, 0.0)
    heard = slabs.text(int(slabs.words[State.DATA]), int(slabs.words[State.LENGTH]))
    if command != Command.HAND_OVER or heard != _SAID:
        raise ClosedLaneError("the code does not hear what is said on a connection")
    return number


def _is_over(mine: socket.socket) -> bool:
    try:
        return mine.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
