"""What a connection has for a transport once it is gone: takes everything, says nothing; and how one is closed.

A connection and its transport know each other, and with them hang TLS's buffers, 60 kB and more. In a ring like that nothing goes
until the garbage collector looks at it, which it does seldom with what is old; so both sides' connections, and tunnels, let go of it.
"""

import asyncio


class PartedTransport:
    """Closed, empty, and of no use."""

    def write(self, data: bytes) -> None:
        """Nobody is there to read it."""

    def writelines(self, pieces: "tuple[bytes, ...]") -> None:
        """The same."""

    def write_eof(self) -> None:
        """It has ended."""

    def can_write_eof(self) -> bool:
        """No more."""
        return False

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def is_closing(self) -> bool:
        """It is closed."""
        return True

    def pause_reading(self) -> None:
        """There is nothing to read."""

    def resume_reading(self) -> None:
        """The same."""

    def close(self) -> None:
        """It is closed."""

    def abort(self) -> None:
        """The same."""


GONE = PartedTransport()


def close_once(transport: asyncio.Transport) -> None:
    """Close it, unless it is closing, by us or by the peer: closed again, asyncio's transport of TLS lets go of its own
    protocol, and fails at the next call (at `abort`, too, in Python 3.11.2 of Debian 12).
    """
    if not transport.is_closing():
        transport.close()
