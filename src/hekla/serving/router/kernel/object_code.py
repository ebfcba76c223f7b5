"""Says what object code needs from outside, by its table of symbols: code that needs nothing runs in any process.

LLVM's loader tells nobody of a symbol that it does not find, and a call of it jumps to address 0. Only ELF files of 64 bits are
read, as Linux has them.
"""

import struct
from collections.abc import Iterator
from typing import Final

_ELF_64_LITTLE: Final = b"\x7fELF\x02\x01"
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOLS: Final = 2
"""The kind of section that is a table of symbols."""
_OFFSETS: Final = "_GLOBAL_OFFSET_TABLE_"
"""A table that the loader makes."""


def made_for(code: bytes) -> bytes:
    """What an object file says of the machine it is for: of ELF words, bytes and processor, of other forms how they begin."""
    return code[:6] + code[18:20] if code.startswith(b"\x7fELF") else code[:8]


def undefined_symbols(code: bytes) -> set[str]:
    """Of an object file, what another has to bring; of one in another form nothing is known."""
    return (
        {name for name in _undefined(code) if name not in ("", _OFFSETS)} if code.startswith(_ELF_64_LITTLE) else set()
    )


def _undefined(code: bytes) -> Iterator[str]:
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [_SECTION.unpack_from(code, at + number * size) for number in range(count)]
    for _, kind, _, _, begin, length, link, *_ in sections:
        if kind != _SYMBOLS:
            continue
        names = sections[link][4]
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(code[begin : begin + length]):
            if section == 0:
                yield code[names + name : code.index(b"\0", names + name)].decode()
