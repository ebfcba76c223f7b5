"""The gateway's own paths: health, metrics, and a plain 404 for what no door takes."""

from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.documents import Asked, Reply
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.metrics import exposition
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.store import SessionStore, StoreUnavailableError


class OwnDoor:
    """Whatever is left."""

    name = "own"

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def takes(self, arrival: Arrival) -> bool:
        """It is the last one."""
        return True

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """Answer."""

        async def answer(asked: Asked) -> Reply:
            if asked.method in ("GET", "HEAD"):
                if asked.path == "/health":
                    return Reply(200, {"status": "healthy"})
                if asked.path == "/health/live":
                    return Reply(200, {"status": "alive"})
                if asked.path in ("/health/ready", "/readyz", "/healthz"):
                    return await self._ready()
                if asked.path == "/metrics":
                    await house.guard.by_headers(asked.headers)
                    page = exposition(house.metrics.collect(house.desk.states(), house.desk.counts))
                    return Reply(200, page, content_type="text/plain; version=0.0.4")
            raise RefusedError(404, "not_found", f"there is nothing at {asked.method} {asked.path[:256]}")

        return house.document(arrival, self, answer)

    async def _ready(self) -> Reply:
        try:
            await self._store.ping()
        except StoreUnavailableError as error:
            return Reply(503, {"status": "not ready", "error": str(error)})
        return Reply(200, {"status": "ready"})

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal."""
        return status, document({"error": sentence, "reason": reason})
