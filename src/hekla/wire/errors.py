"""What can go wrong on the wire, as one tree.

    WireError
    ├── ConnectFailedError       nobody answers at that address, or TLS could not be agreed on
    ├── ConnectionLostError      the peer went away before its answer was whole
    ├── TimedOutError            the answer did not come in time
    ├── BadReplyError            what came back is not HTTP, or not what the protocol allows here
    │   └── ReplyTooLargeError   it is HTTP, and more of it than the client's limits allow
    ├── UpgradeRefusedError      the server answered an upgrade with something else than 101
    ├── ClientClosedError        the client was closed and takes no more requests
    ├── ProtocolViolationError   a peer broke WebSocket, SPDY or channel framing
    └── RefusedError             (server) a request that the wire itself turns away, with its status

Callers catch `WireError` where any failure means the same to them, and a leaf where it does not.
"""


class WireError(Exception):
    """Anything the wire reports; its text is a sentence that names the peer."""


class ConnectFailedError(WireError):
    """No connection could be made."""


class ConnectionLostError(WireError):
    """The connection ended before the answer was whole."""


class TimedOutError(WireError):
    """The answer did not come in time."""


class BadReplyError(WireError):
    """The server's answer breaks the protocol."""


class ReplyTooLargeError(BadReplyError):
    """The server's answer is larger than the client's limits."""


class UpgradeRefusedError(WireError):
    """The server would not switch protocols; `status` and `body` say what it answered."""

    def __init__(self, sentence: str, status: int, body: bytes = b"") -> None:
        super().__init__(sentence)
        self.status = status
        self.body = body


class ClientClosedError(WireError):
    """The client takes no more requests."""


class ProtocolViolationError(WireError):
    """A peer broke the framing of an upgraded connection."""


class RefusedError(WireError):
    """A request that the wire answers itself, before any handler sees it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
