"""Have running pods leave their nodes, so that they find better ones: for nobody's sake in particular.

Plug-ins say who should go (`tdm`, `rescheduling`), each at its own pace; disruption budgets say who may not. The
reason is told to whoever owns the pod.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.eviction.eligibility import within_budgets
from hekla.placement.session import Session
from hekla.placement.statement import Decision


@action
def shuffle(session: Session) -> Iterator[Decision]:
    """Evict whom plug-ins name, one by one, as far as budgets allow."""
    for departure in session.departures():
        # One at a time, so that each eviction is charged to its budgets before the next is looked at.
        with session.statement() as statement:
            if within_budgets(session.cluster, [departure.task]):
                statement.evict(departure.task, departure.reason, None, "shuffle")
                yield from statement.commit()
