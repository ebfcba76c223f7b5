"""Have running pods leave their nodes, so that they find better ones: for nobody's sake in particular.

Plug-ins say who should go (`tdm`, `rescheduling`), and others who may not. Each goes for a reason that its event
tells. What ends on its own keeps its pace: plug-ins look only once in a period.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.session import Session
from hekla.placement.statement import Decision


@action
def shuffle(session: Session) -> Iterator[Decision]:
    """Evict whom plug-ins name, one by one, as long as nobody objects."""
    for departure in session.departures():
        # One at a time, so that who guards a budget sees what is spent of it already.
        with session.statement() as statement:
            if session.may_go(departure.task):
                statement.evict(departure.task, departure.reason, None, "shuffle")
                yield from statement.commit()
