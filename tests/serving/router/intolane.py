"""Has suites that speak HTTP to a router do so through its fast lane as well: connections of clients begin in it.

A suite asks for the fixture `lane` (`conftest.py`). Whatever a test then sends is the lane's to answer or to hand over, and what
the test claims has to hold all the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from hekla.serving.router.backends import Traits
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane.lane import Lane
from hekla.serving.router.lane.slabs import Slabs
from hekla.serving.router.lane.ways import Facts, Template, Ways
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination, Plan, Refusal, Waiting
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.proxy.clients import ClientConnection, Doorway
from hekla.serving.router.question import Question
from hekla.testing.desk import Engine
from hekla.wire.raw_heads import Memo, read_request

FIRST_BY = 1e9
"""Tokens of a head start: engines are chosen in their order while nothing is under way."""


class LanedDesk:
    """One pool that chooses in machine code, in the place of `PlainDesk`."""

    def __init__(self, engines: Sequence[Engine], kernel: Kernel, head_timeout_s: float) -> None:
        self.pool = Pool("default/m", Fleet(), Soonest(), lambda: 0.0)
        for number, one in enumerate(engines):
            made = Endpoint(one.name, one.host, one.port, one.is_tls, one.verifies, namespace="ns")
            self.pool.join(made).assigned = number * FIRST_BY
        self.pool.use(kernel)
        self.questions: list[Question] = []
        self.destination = Destination("m", "default/m", "model_server", "default/m", "m")
        self.traits = Traits("default/m", "model_server", {}, (), head_timeout_s=head_timeout_s)

    @property
    def plans(self) -> list[Any]:
        """Nobody remembers them."""
        pytest.skip("the test asks the plain desk what its plans were told; the lane makes none")

    @property
    def engines(self) -> dict[str, list[Engine]]:
        """They are the pool's."""
        pytest.skip("the test changes the plain desk's engines")

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        if question.model != "m":
            return Refusal(404, "route_not_found", "route not found")
        self.questions.append(question)
        return LocalPlan(self.pool, question, self.destination, head_timeout_s=self.traits.head_timeout_s)

    def hold(self, destination: Destination) -> Waiting | Refusal | None:
        return None

    def models(self) -> Sequence[str]:
        return ("m",)


class PlaneWays(Ways):
    """What is plain over a `LanedDesk`: everything for its model."""

    def __init__(self, slabs: Slabs, house: House, desk: LanedDesk) -> None:
        super().__init__(slabs, house, None, None)  # type: ignore[arg-type]
        self._desk = desk

    @property
    def _changes(self) -> int:
        return self._desk.pool.fleet.changes

    def _facts(self, template: Template, model: str, now: float) -> Facts | None:
        desk, house = self._desk, self._house
        index = desk.pool.compiled
        is_plain = model == "m" and not house.guards and house.desk is desk
        if index is None or not is_plain or any(one.is_tls for one in desk.pool.members):
            return None
        return Facts(desk.destination, desk.pool, index, desk.traits, (None, None), "", self._last_facts + 1)


async def put_in(
    lane: Lane, doorway: Doorway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes
) -> None:
    """Have the lane take a client's connection before anything was said on it, as if `asked` had been asked twice; not where it may not."""
    name = writer.get_extra_info("sockname")

    def found() -> ClientConnection | None:
        mine = (one for one in doorway.connections if one.transport.get_extra_info("peername") == name)
        return next(mine, None)

    while (connection := found()) is None and not reader.at_eof():
        await asyncio.sleep(0)
    if connection is None:
        return
    head = read_request(asked, doorway.bounds)
    assert head is not None
    connection._memo = Memo(head, asked)
    lane._adopt(connection)
    lane._trust = 0  # the next one is looked for here, too
    for template in lane.ways.heads.values():
        lane.ways.know(template, "m", lane._clock())
