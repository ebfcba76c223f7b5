"""What a connection has for a transport once it is gone: takes everything, says nothing.

A connection and its transport know each other, and with them hang TLS's buffers, 60 kB and more. In a ring like that nothing goes
until the garbage collector looks at it, which it does seldom with what is old; so both sides' connections, and tunnels, let go of it.
"""


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
