"""Questions that the gateway itself puts to a server inside, for doors that answer with what came back."""

import asyncio
from dataclasses import dataclass

import structlog

from hekla.sandbox.gateway.front import House
from hekla.sandbox.gateway.inside import LOOK_AGAIN_S, Inside, InsidePool
from hekla.sandbox.gateway.relay import along
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.wire.raw_heads import AnswerHead

log = structlog.get_logger(__name__)


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


async def listening(house: House, session: Session) -> Session:
    """The session, once its own servers take connections: they start after its sandbox is ready, and the first request would miss them.

    AgentCube waits as long and then takes the session back; here a server that is slower has its session, and is told as absent.
    Who leaves meanwhile does not know the session, and leaves nothing behind.
    """
    ports = {one.port for one in session.entry_points if one.port != DAEMON} if not session.is_checked else set()
    if ports:
        house.desk.enter(session)
        try:
            async with asyncio.timeout(house.bounds.server_patience_s):
                for port in sorted(ports):
                    await _listens(house, session, port)
        except TimeoutError:
            log.info("servers do not listen", session=session.id, name=session.name, ports=sorted(ports))
        except asyncio.CancelledError:
            house.desk.give_back(session)
            raise
        finally:
            house.desk.leave(session)
    return session


async def _listens(house: House, session: Session, port: int) -> None:
    while True:
        try:
            (await connected(house.pool(session, port))).abort()
            return
        except RefusedError as refusal:
            if refusal.status != 502:
                return  # it is gone, or its node is: whoever asks is told so
        await asyncio.sleep(LOOK_AGAIN_S)


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
