"""Gives back the pages of a library's machine code that this process needed once: a compiler's, when what it made is loaded.

They are clean pages of a file: the system would take them itself when memory gets short, and whoever needs one again reads it again.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DONT_NEED: Final = 4
_CODE: Final = "r-xp"
"""Code is never written to: in other parts of a library there are pages of this process's own, which would be lost."""


def let_go(library: str, maps: Path = Path("/proc/self/maps")) -> int:
    """Give back the code of libraries whose file's name begins so; how many bytes were mapped. Nothing happens where there is no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        return sum(size for begin, size in _code_of(library, maps.read_text()) if madvise(begin, size, _DONT_NEED) == 0)
    return 0


def _code_of(library: str, maps: str) -> Iterator[tuple[int, int]]:
    for line in maps.splitlines():
        where, rights, _, _, _, *path = line.split(maxsplit=5)
        if path and rights == _CODE and Path(path[0]).name.startswith(library):
            begin, end = (int(one, 16) for one in where.split("-"))
            yield begin, end - begin
