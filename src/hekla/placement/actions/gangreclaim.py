"""Give queues back what they deserve, for whole gangs: evict tasks of queues that borrowed it.

Like `gangpreempt`, between queues: a gang is promised all that it needs to start, in one domain of the network where it
wishes to be close together, as far as its queue may take back so much.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.actions.gangpreempt import make_room_for_gangs
from hekla.placement.framework import Reclaimable
from hekla.placement.session import Session
from hekla.placement.statement import Decision


@action
def gangreclaim(session: Session) -> Iterator[Decision]:
    """Evict for queues that hold less than they deserve, and yield what was decided."""
    yield from make_room_for_gangs(session, "gangreclaim", Reclaimable)
