"""How much of this machine's processors others took while something was measured: a figure from a busy machine is told from a good one.

Linux counts what all processors did (/proc/stat) and what each process did. What was done and not by us, and what the hypervisor gave to
other machines, is the neighbours'.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITS, _STEAL = 3, 4, 7


@dataclass(frozen=True)
class _Mark:
    all_s: float
    done_s: float
    own_s: float


class Neighbours:
    """Watches from the moment it is made, or marked again."""

    def __init__(self, own: Callable[[], Iterable[int]]) -> None:
        """`own` says which processes are ours, this one aside."""
        self._own = own
        self._mark = self._read()

    def mark(self) -> None:
        """Begin anew."""
        self._mark = self._read()

    def share(self) -> float:
        """Of all processors' time since the mark, what others had."""
        before, now = self._mark, self._read()
        passed_s = max(now.all_s - before.all_s, 1 / _TICKS)
        return max(0.0, (now.done_s - before.done_s) - (now.own_s - before.own_s)) / passed_s

    def _read(self) -> _Mark:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        spent = [int(one) / _TICKS for one in words]
        all_s = sum(spent)
        own_s = sum(_spent(pid) for pid in {os.getpid(), *self._own()})
        return _Mark(all_s, all_s - spent[_IDLE] - spent[_WAITS], own_s)


def of_session(leader: int) -> list[int]:
    """The processes of one session, such as an engine's and all that it started."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(one.name)) == leader:
                found.append(int(one.name))
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _spent(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
