"""Writes a container's output as the kubelet expects it: one line each, with a time and the stream's name, rotated.

`hekla.node.runtimes.logs` reads it.
"""

import os
import time

MAX_LINE = 16 * 1024
"""A longer line is split and its parts marked P (partial), the last one F (full)."""

MAX_BUFFERED = 64 * 1024


class LogFile:
    """One attempt's log: `name`, and older parts as `name.1` to `name.<files>`."""

    def __init__(self, directory: str, name: str, *, max_bytes: int, files: int, is_conversation: bool = False) -> None:
        """In a conversation what stands without a newline is written at once: a prompt, the echo of a key."""
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name, self._max_bytes, self._files = name, max_bytes, files
        self._is_conversation = is_conversation
        self._tails = {"stdout": b"", "stderr": b""}
        self._second, self._prefix = 0, ""
        self._open()

    def write(self, stream: str, data: bytes) -> None:
        """Take output as it comes; whole lines are written at once."""
        *lines, tail = (self._tails[stream] + data).split(b"\n")
        pieces = [self._piece(stream, line) for line in lines]
        while len(tail) >= MAX_LINE:
            pieces.append(self._head(stream) + b"P " + tail[:MAX_LINE] + b"\n")
            tail = tail[MAX_LINE:]
        if tail and self._is_conversation:
            pieces.append(self._head(stream) + b"P " + tail + b"\n")
            tail = b""
        self._tails[stream] = tail
        if pieces:
            self._append(b"".join(pieces))

    def close(self) -> None:
        """Write what stands without a newline at the end."""
        for stream, tail in self._tails.items():
            if tail:
                self._append(self._head(stream) + b"P " + tail + b"\n")
        os.close(self._file)
        os.close(self._directory)

    def _piece(self, stream: str, line: bytes) -> bytes:
        head = self._head(stream)
        parts = [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)] or [b""]
        return b"".join([head + b"P " + part + b"\n" for part in parts[:-1]] + [head + b"F " + parts[-1] + b"\n"])

    def _head(self, stream: str) -> bytes:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            self._second, self._prefix = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._prefix}.{rest:09d}Z {stream} ".encode()

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError:
                return  # the disk is full: output is lost rather than the container stopped
        self._size += len(data)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._name, flags, 0o600, dir_fd=self._directory)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        os.close(self._file)
        for number in range(self._files - 1, -1, -1):
            older = f"{self._name}.{number + 1}"
            newer = f"{self._name}.{number}" if number else self._name
            try:
                os.replace(newer, older, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except FileNotFoundError:
                continue
        self._open()
