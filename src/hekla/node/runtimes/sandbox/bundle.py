"""One file for what a sandbox was: its files, then its interpreters' variables, then where the second begins.

Both parts are written and read by sandboxes; the node looks into neither.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hekla.node.runtimes.sandbox import SandboxError

_TAIL = struct.Struct(">8sQQ")
_MAGIC = b"HKLBOX01"
_PIECE = 1 << 20


@dataclass(frozen=True)
class Parts:
    """Open files of both parts."""

    files: int
    variables: int
    has_variables: bool = True


@contextlib.contextmanager
def writing(output: int) -> Iterator[Parts]:
    """Places for both parts; leaving joins them in `output`. Files go there at once, variables come after them."""
    variables = os.memfd_create("variables", os.MFD_CLOEXEC)
    try:
        yield Parts(output, variables)
        end_of_files = os.lseek(output, 0, os.SEEK_END)
        size = os.fstat(variables).st_size
        _copy(variables, 0, size, output)
        os.write(output, _TAIL.pack(_MAGIC, end_of_files, size))
    finally:
        os.close(variables)


@contextlib.contextmanager
def reading(source: int) -> Iterator[Parts]:
    """Both parts of a bundle, each from its beginning."""
    whole = os.fstat(source).st_size
    if whole < _TAIL.size:
        raise SandboxError(422, "this is no checkpoint: it is too short")
    magic, end_of_files, size = _TAIL.unpack(os.pread(source, _TAIL.size, whole - _TAIL.size))
    if magic != _MAGIC or end_of_files + size + _TAIL.size != whole:
        raise SandboxError(422, "this is no checkpoint: its end is not where it should be")
    variables = os.memfd_create("variables", os.MFD_CLOEXEC)
    try:
        _copy(source, end_of_files, size, variables)
        os.lseek(variables, 0, os.SEEK_SET)
        os.lseek(source, 0, os.SEEK_SET)  # a tar file says where it ends
        yield Parts(source, variables, size > 0)
    finally:
        os.close(variables)


def _copy(source: int, start: int, size: int, sink: int) -> None:
    while size > 0:
        piece = os.pread(source, min(_PIECE, size), start)
        if not piece:
            raise SandboxError(422, "this is no checkpoint: it ends early")
        start, size = start + len(piece), size - len(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(sink, view) :]
