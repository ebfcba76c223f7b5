"""Questions that the gateway itself puts to a server inside, for doors that answer with what came back."""

import asyncio
from dataclasses import dataclass

from hekla.sandbox.gateway.front import House
from hekla.sandbox.gateway.inside import Inside, InsidePool
from hekla.sandbox.gateway.relay import along
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.wire.raw_heads import AnswerHead


@dataclass(frozen=True, slots=True)
class Told:
    """What came back."""

    status: int
    body: bytes
    is_cut: bool
    """There was more than was to be kept."""


async def ask_daemon(
    house: House,
    session: Session,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    most: int,
    content_type: str = "application/json",
) -> Told:
    """Ask a session's daemon as its owner, waking the session if need be; keep so many bytes. RefusedError."""
    if session.state is not State.RUNNING:
        session = await house.woken(session, from_pause=True)
    pool = house.pool(session, DAEMON)
    head = b"%b %b HTTP/1.1\r\nhost: sandbox\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
        method.encode(), target.encode("ascii"), content_type.encode(), len(body), _credentials(house, session, target)
    )  # fmt: skip
    house.desk.enter(session)
    try:
        connection = await connected(pool)
        answer = Gathered(most)
        connection.start(answer, along(pool.way.prefix, pool.way.lines, head))
        connection.write(body)
        try:
            return await answer.whole
        except asyncio.CancelledError:
            connection.abort()  # what runs inside is interrupted
            raise
    finally:
        house.desk.leave(session)


def _credentials(house: House, session: Session, target: str) -> bytes:
    if target.startswith("/api/"):
        return house.mint.line(session, house.wall())
    return b"x-access-token: %b\r\n" % session.access_token.encode()


async def connected(pool: InsidePool) -> Inside:
    """A new connection of a pool; RefusedError."""
    made: asyncio.Future[Inside] = asyncio.get_running_loop().create_future()

    def done(connection: Inside | None, status: int, why: str) -> None:
        if made.done():
            if connection is not None:
                connection.abort()
        elif connection is None:
            made.set_exception(RefusedError(status, "unreachable", why))
        else:
            made.set_result(connection)

    connecting = pool.connect(done)
    try:
        return await made
    except asyncio.CancelledError:
        connecting.cancel()
        raise


class Gathered:
    """One answer, as it comes."""

    is_head = False
    is_sent = True
    wants_upgrade = False
    wants_payload = True

    def __init__(self, most: int) -> None:
        self.whole: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._most, self._status, self._is_cut = most, 0, False
        self._kept = bytearray()

    def answered(self, head: AnswerHead) -> None:
        """Its status."""
        self._status = head.status

    def upgraded(self, head: AnswerHead) -> None:
        """None was asked for."""

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """Keep it, up to the bound."""
        for one in payload or ():
            room = self._most - len(self._kept)
            self._is_cut = self._is_cut or len(one) > room
            self._kept += one[:room]

    def ended(self) -> None:
        """It is whole."""
        if not self.whole.done():
            self.whole.set_result(Told(self._status, bytes(self._kept), self._is_cut))

    def failed(self, why: str, *, may_repeat: bool) -> None:
        """It broke off."""
        if not self.whole.done():
            self.whole.set_exception(RefusedError(502, "broken_off", why))

    def lags(self, is_behind: bool) -> None:
        """What is sent is small."""
