"""Where the fast lane's code can run: it calls the kernel by itself, so it has to know both the kernel and the processor.

The router asks this, too, to say why there is no lane; so nothing of a compiler is imported here.
"""

import platform
import struct
import sys
from typing import Final

_PROCESSORS: Final = ("x86_64", "aarch64")
_WORD_BITS: Final = 64


def why_unknown(
    system: str = sys.platform,
    processor: str = platform.machine(),
    word_bits: int = 8 * struct.calcsize("P"),
    byte_order: str = sys.byteorder,
) -> str | None:
    """Why the lane is not for this machine; None: it is.

    Of the processor's name alone nothing follows: macOS says `x86_64` as well and numbers its calls otherwise, and so does a
    process of 32 bits under a kernel of 64.
    """
    if system != "linux":
        return f"it calls Linux, and this is {system}"
    if processor not in _PROCESSORS:
        return f"it knows the processors {' and '.join(_PROCESSORS)}, and this is {processor}"
    if word_bits != _WORD_BITS or byte_order != "little":
        return (
            f"it takes words of {_WORD_BITS} bits, little end first, and this Python's have {word_bits}, {byte_order}"
        )
    return None
