"""Reads a container's log the way `kubectl logs` asks: the last lines, since when, with times, following.

`hekla.node.shim.logfile` wrote it. Rotated parts count as one log; following goes on over a rotation.
"""

import asyncio
import contextlib
import mmap
import os
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from hekla.node.runtimes import LogOptions

POLL_S, CONVERSATION_POLL_S = 0.1, 0.02
"""How often a followed log is looked at: cheaper than a watch per reader, and nobody reads faster; who types wants to see it."""

CHUNK = 64 * 1024
LINES_AT_ONCE = 1000


def read_conversation(path: Path, is_running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """From now on, and what stands without a newline already: the prompt to which somebody is to answer."""
    follower = _Follower(path)
    last = follower.last_lines(1)
    prompt = last if last and not parse_line(last[-1])[2] else []
    return _read(follower, iter(prompt), LogOptions(follow=True), is_running, CONVERSATION_POLL_S)


def read_log(path: Path, options: LogOptions, is_running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The lines asked for, joined into chunks; following ends when the container has ended and all is read.

    Where the reading begins is settled by the call, not by the first read: what is written in between is news.
    """
    follower = _Follower(path)
    if options.tail_lines is None:
        return _read(follower, follower.backlog(), options, is_running, POLL_S)
    return _read(follower, iter(follower.last_lines(options.tail_lines)), options, is_running, POLL_S)


async def _read(
    follower: "_Follower", stored: Iterator[bytes], options: LogOptions, is_running: Callable[[], bool], poll_s: float
) -> AsyncIterator[bytes]:
    budget, writer = _Budget(options.limit_bytes), _Writer(options)
    try:
        while not budget.is_spent and (pieces := list(islice(stored, LINES_AT_ONCE))):
            if data := budget.take(b"".join(map(writer.render, pieces))):
                yield data
            await asyncio.sleep(0)  # a long log must not hold up the loop
        unread: Iterator[bytes] = iter(())
        while options.follow and not budget.is_spent:
            was_running = is_running()
            # some at a time: the container may write faster than it is read
            pieces = list(islice(unread, LINES_AT_ONCE)) or list(islice(unread := follower.news(), LINES_AT_ONCE))
            if pieces:
                if data := b"".join(map(writer.render, pieces)):
                    yield budget.take(data)
                await asyncio.sleep(0)
            elif not was_running:
                return
            else:
                await asyncio.sleep(poll_s)
    finally:
        follower.close()


class _Budget:
    """How many bytes may still be sent."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    @property
    def is_spent(self) -> bool:
        return self._left is not None and self._left <= 0

    def take(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: max(0, self._left)]
        self._left -= len(data)
        return data


def parse_line(raw: bytes) -> tuple[bytes, str, bool, bytes]:
    """A stored line's time, stream, whether it is whole, and its text."""
    time, _, rest = raw.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    flag, _, text = rest.partition(b" ")
    return time, stream.decode("ascii", "replace"), flag == b"F", text


class _Writer:
    """Writes stored lines as the reader wants them; of those that are parts of one line the first alone has a time."""

    def __init__(self, options: LogOptions) -> None:
        self._options, self._is_new_line = options, True

    def render(self, raw: bytes) -> bytes:
        """One stored line; empty if it is not wanted."""
        options = self._options
        time, stream, is_whole, text = parse_line(raw)
        if options.stream and stream != options.stream:
            return b""
        if options.since is not None and _moment(time) < options.since:
            return b""
        line = text + (b"\n" if is_whole else b"")
        begins, self._is_new_line = self._is_new_line, is_whole
        return time + b" " + line if options.timestamps and begins else line


def last_text(path: Path, *, max_bytes: int, max_lines: int) -> str:
    """The end of a log, for the termination message of a container that left none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * max_bytes))
            lines = file.read().splitlines()[-max_lines:]
    except OSError:
        return ""
    text = b"".join(map(_Writer(LogOptions()).render, lines))
    return text[-max_bytes:].decode("utf-8", "replace")


def _moment(time: bytes) -> float:
    """Seconds since the epoch; Python's parser takes at most six digits of a fraction."""
    head, _, fraction = time.decode("ascii", "replace").rstrip("Z").partition(".")
    try:
        whole = datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp()
        return whole + float(f"0.{fraction or 0}")
    except ValueError:
        return 0.0


class _Follower:
    """Goes through the rotated parts, oldest first, and then stays with the newest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = None if not path.exists() else path.open("rb", buffering=0)
        self._tail = b""

    def backlog(self) -> Iterator[bytes]:
        for older in _rotated(self._path):
            try:
                with older.open("rb") as file:
                    for raw in file:
                        yield raw.rstrip(b"\n")
            except FileNotFoundError:
                continue  # rotated away while we read
        yield from self.news()

    def last_lines(self, wanted: int) -> list[bytes]:
        """The stored lines of the last `wanted` lines of output, read from the end; news goes on behind them."""
        tail = _Tail(wanted)
        if self._file is not None:
            self._file.seek(tail.add(self._file.fileno()))
        for older in reversed(_rotated(self._path)):
            if tail.is_full:
                break
            with contextlib.suppress(FileNotFoundError), older.open("rb") as file:
                tail.add(file.fileno())
        return tail.lines[::-1]

    def news(self) -> Iterator[bytes]:
        while True:
            if self._file is None and self._path.exists():
                self._file = self._path.open("rb", buffering=0)
            if self._file is None:
                return
            data = self._file.read(CHUNK)
            if not data:
                if not self._was_replaced():
                    return
                self.close()
                continue
            *lines, self._tail = (self._tail + data).split(b"\n")
            yield from lines

    def _was_replaced(self) -> bool:
        assert self._file is not None
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Tail:
    """Collects stored lines from the end of a log backwards.

    An entry that is the end of a line (F), or the very last of all, begins a new line of output when read backwards;
    the entries marked P before it belong to it.
    """

    def __init__(self, wanted: int) -> None:
        self.lines: list[bytes] = []
        """Last first."""

        self._left = wanted
        self.is_full = wanted <= 0

    def add(self, part: int) -> int:
        """Go through an open part from its end; where its last whole entry ends."""
        try:
            with mmap.mmap(part, 0, access=mmap.ACCESS_READ) as data:
                last = end = data.rfind(b"\n") + 1
                while end > 0 and not self.is_full:
                    begin = data.rfind(b"\n", 0, end - 1) + 1
                    self._take(data[begin : end - 1])
                    end = begin
                return last
        except ValueError:
            return 0  # an empty file cannot be mapped

    def _take(self, raw: bytes) -> None:
        if parse_line(raw)[2] or not self.lines:
            if self._left == 0:
                self.is_full = True
                return
            self._left -= 1
        self.lines.append(raw)


def _rotated(path: Path) -> list[Path]:
    numbers = sorted(
        (int(each.name.rsplit(".", 1)[1]) for each in path.parent.glob(f"{path.name}.*") if each.name[-1].isdigit()),
        reverse=True,
    )
    return [path.with_name(f"{path.name}.{number}") for number in numbers]
