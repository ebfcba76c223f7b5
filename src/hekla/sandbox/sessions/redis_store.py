"""Sessions in Redis or Valkey: for gateways with replicas, in AgentCube's key layout, so that both can share a server while one replaces the other.

    session:{id}           JSON: AgentCube's keys, and our whole row under "hekla"
    session:expiry         sorted set: id by the second in which it ends
    session:last_activity  sorted set: id by the second of its last use
    hekla:snapshots        hash: snapshot by id

A row that lacks "hekla" is AgentCube's own, and is left to it.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from hekla.kube.timestamps import rfc3339
from hekla.lib.go_duration import write_duration
from hekla.sandbox.sessions.records import Session, SessionKind, Snapshot
from hekla.sandbox.sessions.store import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "session:"
EXPIRY: Final = "session:expiry"
ACTIVITY: Final = "session:last_activity"
SNAPSHOTS: Final = "hekla:snapshots"
PAGE: Final = 500

# KEYS: row, expiry, activity. ARGV: row, id, end, last use, and the revision that must be there: -1 for a new row.
_WRITE: Final = """
local had = redis.call('GET', KEYS[1])
if ARGV[5] == '-1' then
  if had then return 0 end
else
  if not had then return 0 end
  local ours = cjson.decode(had)['hekla']
  if not ours or (ours['revision'] or 0) ~= tonumber(ARGV[5]) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('ZADD', KEYS[3], 'GT', ARGV[4], ARGV[2])
return 1
"""
# KEYS: row, activity. ARGV: id, last use.
_TOUCH: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], 'GT', ARGV[2], ARGV[1])
return 1
"""
# KEYS: row, expiry, activity. ARGV: id.
_DELETE: Final = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.call('DEL', KEYS[1])
"""
_NEVER: Final = 253_402_300_799
"""The last second of the year 9999: the end of those that have none."""

_encode = msgspec.json.Encoder().encode
_snapshot = msgspec.json.Decoder(Snapshot).decode


class _Row(msgspec.Struct):
    hekla: Session | None = None


_row = msgspec.json.Decoder(_Row).decode


class RedisSessions:
    """A `SessionStore` in one server."""

    is_shared = True

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._write, self._touch, self._delete = (client.register_script(one) for one in (_WRITE, _TOUCH, _DELETE))

    async def create(self, session: Session) -> bool:
        """Write a new row."""
        return await self._written(session, -1)

    async def _written(self, session: Session, expected: int) -> bool:
        terms: list[bytes | str | int] = [
            _encode(_shown(session)),
            session.id,
            int(_end_of(session)),
            int(session.touched_s),
            expected,
        ]
        with _told():
            return bool(await self._write(keys=[PREFIX + session.id, EXPIRY, ACTIVITY], args=terms))

    async def get(self, session: str) -> Session | None:
        """The row of that id."""
        with _told():
            text = await self._client.get(PREFIX + session)
            return await self._read([text]) if text else None

    async def _read(self, texts: list[Any]) -> Session | None:
        found = await self._read_all(texts)
        return found[0] if found else None

    async def _read_all(self, texts: list[Any]) -> list[Session]:
        rows = [row for text in texts if text and (row := _ours(text)) is not None]
        if not rows:
            return []
        scores = await self._client.zmscore(ACTIVITY, [row.id for row in rows])
        return [
            msgspec.structs.replace(row, touched_s=max(row.touched_s, score or 0.0))
            for row, score in zip(rows, scores, strict=True)
        ]

    async def update(self, session: Session) -> Session | None:
        """Write over the row whose revision is this one's."""
        written = msgspec.structs.replace(session, revision=session.revision + 1)
        return written if await self._written(written, session.revision) else None

    async def touch(self, used: Mapping[str, float]) -> None:
        """When sessions were used last."""
        with _told():
            pipeline = self._client.pipeline(transaction=False)
            for session, when in used.items():
                await self._touch(keys=[PREFIX + session, ACTIVITY], args=[session, int(when)], client=pipeline)
            await pipeline.execute()

    async def delete(self, session: str) -> bool:
        """Remove the row."""
        with _told():
            return bool(await self._delete(keys=[PREFIX + session, EXPIRY, ACTIVITY], args=[session]))

    async def all(self) -> list[Session]:
        """Every row; members of the sorted set whose row is gone are passed over."""
        with _told():
            found: list[Any] = await self._client.zrange(EXPIRY, 0, -1)
            ids = [one.decode() for one in found]
            rows: list[Session] = []
            for start in range(0, len(ids), PAGE):
                texts = await self._client.mget([PREFIX + one for one in ids[start : start + PAGE]])
                rows += await self._read_all(texts)
            return rows

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot down."""
        with _told():
            await self._client.hset(SNAPSHOTS, snapshot.id, _encode(snapshot))

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot."""
        with _told():
            return [_snapshot(text) for text in await self._client.hvals(SNAPSHOTS)]

    async def delete_snapshot(self, snapshot: str) -> bool:
        """Remove it."""
        with _told():
            return bool(await self._client.hdel(SNAPSHOTS, snapshot))

    async def ping(self) -> None:
        """Return if it answers."""
        with _told():
            await self._client.ping()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


@contextmanager
def _told() -> "Iterator[None]":
    try:
        yield
    except (RedisError, OSError) as error:
        raise StoreUnavailableError(f"the session store does not answer: {error or type(error).__name__}") from error


def _ours(text: bytes) -> Session | None:
    try:
        return _row(text).hekla
    except msgspec.MsgspecError:
        return None  # somebody else's, or written by a later version: not ours to touch


def _end_of(session: Session) -> float:
    ends = [one for one in (session.expires_s, session.ends_s) if one]
    return min(ends) if ends else _NEVER


def _shown(session: Session) -> dict[str, Any]:
    """The row as AgentCube reads it, and ours."""
    return {
        "kind": "SandboxClaim" if session.kind == SessionKind.INTERPRETER else "Sandbox",
        "sandboxId": session.sandbox_uid,
        "sandboxNamespace": session.namespace,
        "name": session.sandbox,
        "entryPoints": [{"path": one.path, "protocol": one.protocol, "endpoint": f"{session.pod}:{one.port}"} for one in session.entry_points],
        "sessionId": session.id,
        "ownerId": session.owner,
        "createdAt": _time(session.created_s),
        "expiresAt": _time(_end_of(session)),
        "idleTimeout": write_duration(session.idle_s),
        "status": str(session.state),
        "hekla": session,
    }  # fmt: skip


def _time(seconds: float) -> str:
    from datetime import UTC, datetime

    return rfc3339(datetime.fromtimestamp(seconds, UTC))
