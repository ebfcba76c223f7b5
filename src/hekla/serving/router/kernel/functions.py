"""Calls into the compiled decision: one function for each of `compiled.EXPORTS`, by its address.

One loop calls them, like everything that is decided, so nobody sees a memory half written. cffi lets other threads run during
each call: none of them may touch an endpoint's counts or the memory of prompts.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cffi import FFI

SHAPES: Final[Mapping[str, str]] = {
    "decide": "int64_t, char *, int64_t, uint64_t, int64_t, int64_t, double, double",
    "hash_blocks": "int64_t, char *, int64_t, uint64_t",
    "match": "int64_t, int64_t, int64_t",
    "insert": "int64_t, int64_t, int64_t, double",
    "forget": "int64_t, int64_t",
    "expire": "int64_t, int64_t, double",
    "rehash": "int64_t, int64_t",
}
"""What each takes, the address of the state first; all return an integer. By cffi, as a call by ctypes takes 1 us more."""
LANE_SHAPES: Final[Mapping[str, str]] = {"enter": "int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double"}
"""Of the fast lane (`lane/`), likewise."""


Lane = Callable[[int, int, int, int, int, int, float], int]
"""State, what is asked (`lane/layout.Call`), four numbers, now."""


class Kernel:
    """The functions, and whatever keeps their code in memory."""

    __slots__ = ("_code", "decide", "expire", "forget", "hash_blocks", "insert", "lane", "match", "rehash")

    def __init__(self, addresses: Mapping[str, int], code: object) -> None:
        ffi = FFI()
        made = {name: ffi.cast(f"int64_t(*)({shape})", addresses[name]) for name, shape in SHAPES.items()}
        self._code = code
        self.decide: Callable[[int, bytes, int, int, int, int, float, float], int] = made["decide"]
        """State, prompt, its length, seed, tokens, tokens of the answer, now, rate of prefill."""
        self.hash_blocks: Callable[[int, bytes, int, int], int] = made["hash_blocks"]
        self.match: Callable[[int, int, int], int] = made["match"]
        self.insert: Callable[[int, int, int, float], int] = made["insert"]
        self.forget: Callable[[int, int], int] = made["forget"]
        self.expire: Callable[[int, int, float], int] = made["expire"]
        self.rehash: Callable[[int, int], int] = made["rehash"]
        lane = addresses.get("enter")
        self.lane: Lane | None = ffi.cast(f"int64_t(*)({LANE_SHAPES['enter']})", lane) if lane else None
        """The fast lane (`lane/`); None where it is not for this processor."""
