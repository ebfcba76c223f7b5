"""A desk over sandboxes on paper, in virtual time."""

from contextlib import asynccontextmanager

from hekla.kube.clock import LoopClock
from hekla.sandbox.sessions.desk import Desk
from hekla.sandbox.sessions.limits import SessionLimits
from hekla.sandbox.sessions.records import SessionKind
from hekla.sandbox.sessions.stock import Blueprint
from hekla.sandbox.sessions.store import MemoryStore
from hekla.sandbox.sessions.wishes import Wish
from hekla.testing.paper_sandboxes import PaperSandboxes

BASE = Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="base", idle_s=60.0, life_s=3600.0)


def wish(**told):
    return Wish(
        **{
            "kind": SessionKind.INTERPRETER,
            "namespace": "default",
            "name": "base",
            "owner": "alice",
            "door": "test",
            **told,
        }
    )


def e2b_wish(**told):
    """As E2B's door asks: a time that its owner extends, and no idle time."""
    return wish(**{"uses_idle": False, "timeout_s": 300.0, **told})


@asynccontextmanager
async def desk(sandboxes=None, store=None, limits=None, clock=None, link=None):
    sandboxes = sandboxes or PaperSandboxes([BASE])
    made = Desk(
        store=store or MemoryStore(), stock=sandboxes, link=link or sandboxes, clock=clock or LoopClock(),
        limits=limits or SessionLimits(),
    )  # fmt: skip
    await made.start()
    try:
        yield made
    finally:
        await made.close()
