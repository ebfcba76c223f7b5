"""Archives that a Linux kernel unpacks into memory before its first program: cpio, the format called newc. All is root's and without times."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

FILE = stat.S_IFREG | 0o644


def archive_of(tree: Path) -> bytes:
    """A directory and all below it."""
    written = io.BytesIO()
    number = 0
    for directory, names, files in os.walk(tree):
        names.sort()
        for name in sorted([*names, *files]):
            path = Path(directory) / name
            found = path.lstat()
            number += 1
            content = b""
            if stat.S_ISLNK(found.st_mode):
                content = os.readlink(path).encode()
            elif stat.S_ISREG(found.st_mode):
                content = path.read_bytes()
            written.write(_entry(str(path.relative_to(tree)), found.st_mode, content, number))
    written.write(_entry("TRAILER!!!", 0, b"", 0))
    return written.getvalue()


def archive_with(files: dict[str, bytes]) -> bytes:
    """Some files in directories that are there already."""
    entries = [_entry(name, FILE, content, number) for number, (name, content) in enumerate(sorted(files.items()), 1)]
    return b"".join([*entries, _entry("TRAILER!!!", 0, b"", 0)])


def _entry(name: str, mode: int, content: bytes, number: int) -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name.encode()) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
