"""What all requests of one router share: the desk, the guards, the connections to engines, and the list of what is over."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hekla.serving.router.lots import Lot
from hekla.serving.router.plan import Desk, Destination, Guard, Refusal, Waiting
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import Pools
from hekla.serving.router.question import Question
from hekla.serving.router.telemetry import Tracing

if TYPE_CHECKING:
    from hekla.serving.router.exchange import Exchange


class House:
    """What all requests of one router share."""

    def __init__(
        self,
        desk: Desk,
        pools: Pools,
        bounds: Bounds,
        *,
        guards: Sequence[Guard] = (),
        clock: Callable[[], float],
    ) -> None:
        self.desk = desk
        self.pools = pools
        self.ledger: list[Exchange] = []
        """Requests that are over; whoever keeps the books empties it a few times a second."""
        self.lots: list[Lot] = []
        """And those of the fast lane, likewise."""
        self.bounds = bounds
        self.guards = tuple(guards)
        self.doorkeeper: Guard | None = None
        """Who knows who asks, if anybody does: then clients' keys are the router's own, and engines do not see them."""
        self.takes_any_path = False
        """Whether the desk judges the path, as where an HTTPRoute may rewrite it."""
        self.tracing: Tracing | None = None
        self.clock = clock
        self.has_lane = False
        """Whether plain requests go another way (`lane/`)."""
        self.beside: Callable[[], Iterable[tuple[Destination, str, int]]] = tuple
        """What is under way there: where to, by which path, how many."""
        self.under_way: set[Exchange] = set()
        self.refused_early = 0
        """Requests that could not be read."""
        self._id_prefix = os.urandom(6).hex().encode()
        self._ids = 0

    def stranger(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why whoever asks may not know what is here; None: he may."""
        if self.doorkeeper is None:
            return None
        verdict = self.doorkeeper.admit(Question("", "", b"", 0, headers=headers), self.clock())
        if isinstance(verdict, Waiting):
            verdict.abandon()
            return Refusal(503, "authentication", "the issuer's keys are being fetched", 1.0)
        return verdict

    def new_request_id(self) -> bytes:
        """Unique among all routers, without a call for random bytes per request."""
        self._ids += 1
        return b"%b-%x" % (self._id_prefix, self._ids)
