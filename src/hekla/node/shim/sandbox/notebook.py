"""Notes in memory that whoever holds the descriptor can read once the writer is gone: to write one wakes nobody. Standard library only.

A node that is killed leaves its last notes to its supervisor. An entry is its length, its checksum and its bytes; one that was cut off by
the end of its writer is none, and nobody was told anything on the strength of it.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterator

MOST_BYTES = 64 * 1024 * 1024
"""One that is as long takes no more entries; 64,000 sandboxes have one each."""
_HEAD = struct.Struct("=II")


class Notebook:
    """The writer's end."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("hekla-notes", os.MFD_CLOEXEC)
        self.size = 0
        """Bytes written."""

    def write(self, entry: bytes) -> None:
        """Add one: from here on it outlives this process. Raises OSError where no memory is left, or it is long enough."""
        data = _HEAD.pack(len(entry), zlib.crc32(entry)) + entry
        if self.size + len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, data[written:], self.size + written)
        self.size += len(data)

    def close(self) -> None:
        """Let go of it; whoever else holds it has it still."""
        os.close(self.descriptor)


def entries(descriptor: int) -> Iterator[bytes]:
    """All whole entries, in the order in which they were written."""
    at = 0
    while len(head := os.pread(descriptor, _HEAD.size, at)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        entry = os.pread(descriptor, length, at + _HEAD.size)
        if not length or len(entry) != length or zlib.crc32(entry) != checksum:
            return
        yield entry
        at += _HEAD.size + length
