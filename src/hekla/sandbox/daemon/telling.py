"""What an interpreter tells its daemon, line by line: whole messages in order, and what is printed in a burst gathered into few.

`print` writes twice a line, and each message of its own cost kernel, daemon, gateway and client 0.12 ms together. The first of a
burst go out as they come, so whoever watches a slow cell sees each line at once.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

LONGEST_MESSAGE = 16 * 1024 * 1024
AT_ONCE = 64
"""So many pieces of print go out one by one, and one more for each `GATHERS_S` that passes; others are gathered for so long."""
GATHERS_S = 0.02
GATHERED = 32 * 1024
"""Characters: more go out at once."""


class Telling:
    """The sending side of one interpreter's channel."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.is_interrupted = False
        """A signal came while something was sent, which must be whole first."""
        self.is_sending = False
        self._lock = threading.RLock()
        self._name = ""
        self._pieces: list[str] = []
        self._size = 0
        self._left, self._since = float(AT_ONCE), 0.0
        self._is_alone = False
        self._has_some: threading.Event | None = None
        os.register_at_fork(before=self.flush, after_in_child=self._be_alone)

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message, behind what was printed before it; waits while the daemon does not read."""
        with self._lock:
            self.flush()
            data = json.dumps(message).encode("utf-8", "surrogatepass") + b"\n"
            if len(data) > LONGEST_MESSAGE:
                kept = {key: message[key] for key in ("type", "id", "is_main_result") if key in message}
                data = json.dumps({**kept, "text": f"[{len(data)} bytes, more than are sent]"}).encode() + b"\n"
            self._send(data)

    def say(self, name: str, text: str) -> None:
        """Tell what was printed to a stream, soon."""
        with self._lock:
            if name != self._name:
                self.flush()
                self._name = name
            self._pieces.append(text)
            self._size += len(text)
            if self._is_alone or self._size >= GATHERED or (len(self._pieces) == 1 and self._may_go_at_once()):
                self.flush()
                return
        self._flush_later()

    def flush(self) -> None:
        """Send what was gathered."""
        if not self._pieces:
            return
        with self._lock:
            text, self._pieces, self._size = "".join(self._pieces), [], 0
            if text:
                self._send(json.dumps({"type": self._name, "text": text}).encode("utf-8", "surrogatepass") + b"\n")

    def begin_anew(self, channel: socket.socket) -> None:
        """Speak for a copy of the interpreter, over a channel of its own."""
        self.channel, self._is_alone = channel, False

    def _send(self, data: bytes) -> None:
        is_mine = threading.current_thread() is threading.main_thread()
        if not is_mine:
            self.channel.sendall(data)
            return
        self.is_sending = True
        try:
            self.channel.sendall(data)
        finally:
            self.is_sending = False
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt

    def _may_go_at_once(self) -> bool:
        now = time.monotonic()
        self._left = min(float(AT_ONCE), self._left + (now - self._since) / GATHERS_S)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _flush_later(self) -> None:
        """By a thread of its own, which only an interpreter has that printed a burst."""
        if self._has_some is None:
            self._has_some = threading.Event()
            threading.Thread(target=self._flush_again_and_again, args=(self._has_some,), daemon=True).start()
        self._has_some.set()

    def _flush_again_and_again(self, has_some: threading.Event) -> None:
        while True:
            has_some.wait()
            time.sleep(GATHERS_S)
            has_some.clear()
            try:
                self.flush()
            except OSError:  # the daemon is gone
                return

    def _be_alone(self) -> None:
        """In a process that the cell forked, there is no such thread, and nobody says when it ends."""
        self._lock = threading.RLock()
        self._pieces, self._size = [], 0
        self._has_some, self._is_alone = None, True
