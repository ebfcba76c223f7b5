"""Sends two pieces in one packet, without a copy, and is told when the reader does not keep up.

asyncio of Python 3.12.0 to 3.12.8, and of 3.13.0 and 3.13.1, does not tell a protocol to pause after `writelines` (CVE-2024-12254): whoever
reads nothing would have memory filled with what is sent to it.
"""

import asyncio
import sys

_MAY_FORGET = sys.version_info >= (3, 12)


def send_together(transport: asyncio.WriteTransport, head: bytes, body: bytes) -> None:
    """Both, in order."""
    transport.writelines((head, body))
    if _MAY_FORGET and transport.get_write_buffer_size():
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high, low)  # the same: it looks at once whether they are exceeded
