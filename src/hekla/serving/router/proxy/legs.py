"""A leg of a request whose answer is not the client's: a prefill, read whole or dropped as it comes."""

from collections.abc import Callable

from hekla.serving.router.plan import Fault
from hekla.serving.router.proxy.engines import EngineConnection
from hekla.wire.raw_heads import AnswerHead


class Leg:
    """One such answer, perhaps tried twice: a kept connection may turn out to be stale. `ended` is told its status and body, `failed` how it failed."""

    __slots__ = ("_ended", "_failed", "_keeps", "_limit", "_pieces", "_size", "connection", "status", "wants_payload")

    def __init__(
        self,
        *,
        limit: int,
        ended: Callable[["Leg", bytes], None],
        failed: Callable[["Leg", Fault, str], None],
    ) -> None:
        self._ended, self._failed, self._limit = ended, failed, limit
        self._pieces: list[bytes] = []
        self._size = 0
        self.wants_payload = True
        self.status = 0
        self.connection: EngineConnection | None = None

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        """Only its status matters."""
        self.status = head.status
        return True

    def whole(self, head: AnswerHead, data: bytes) -> None:
        """All of it at once."""
        self.connection = None
        self.status = head.status
        if head.body_length > self._limit:
            self._failed(self, Fault.GARBAGE, f"the answer of a leg is larger than {self._limit} bytes")
        else:
            self._ended(self, data[head.end :])

    def steady(self) -> None:
        """Its bytes are wanted, so none go by."""

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """Keep it, up to a bound."""
        for part in payload or ():
            self._size += len(part)
            self._pieces.append(part)
        if self._size > self._limit:
            self.cut()
            self._failed(self, Fault.GARBAGE, f"the answer of a leg is larger than {self._limit} bytes")

    def ended(self) -> None:
        """It is whole."""
        self.connection = None
        self._ended(self, b"".join(self._pieces))

    def failed(self, fault: Fault, why: str) -> None:
        """It is not."""
        self._failed(self, fault, why)

    def cut(self) -> None:
        """Give it up: the engine stops."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()
