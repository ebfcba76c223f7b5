"""What a gang that was promised room must keep to until it starts: the domain in which its rows are."""

from collections.abc import Iterator, Sequence

from hekla.placement.model import Job, Task
from hekla.placement.session import Session
from hekla.placement.topology.gang import ceiling_of, group_of, settled_rows
from hekla.placement.topology.venue import Venue, venue
from hekla.placement.topology.wish import Closeness


def is_close_enough(session: Session, job: Job) -> bool:
    """Whether the rows that a job has and was promised are as close together as it wishes; yes, while no tree is known."""
    topology = session.cluster.topology
    if not job.spec.wants_closeness or not topology.is_known:
        return True
    tree = topology.tree()
    for wish, rows in _wishes(job):
        ceiling = ceiling_of(tree, wish)
        if rows and (not isinstance(ceiling, int) or tree.tiers[tree.around(rows)] > ceiling):
            return False
    return True


def venue_near(session: Session, job: Job, task: Task) -> Venue | None:
    """The domain that a task may use instead of the row it was promised; None stands for the whole cluster."""
    tree = session.cluster.topology.tree()
    domain = tree.root
    for wish, rows in _wishes(job, task):
        ceiling = ceiling_of(tree, wish)
        allowed = [
            one for one in tree.chain(tree.around(rows)) if isinstance(ceiling, int) and tree.tiers[one] <= ceiling
        ]
        if rows and allowed and tree.holds(domain, allowed[-1]):
            domain = allowed[-1]
    if domain == tree.root:
        return None
    siblings = settled_rows(one for one in job.tasks.values() if one is not task)
    return venue(tree, domain, session.cluster.nodes.rows, siblings=siblings, wanted=len(job.tasks))


def _wishes(job: Job, task: Task | None = None) -> Iterator[tuple[Closeness, Sequence[int]]]:
    """What the job and its sub-gangs wish, with their rows; with a task, only what concerns it."""
    spec = job.spec
    if spec.closeness is not None:
        yield spec.closeness, settled_rows(job.tasks.values())
    groups: dict[tuple[int, str], list[Task]] = {}
    for one in job.tasks.values() if spec.subgroups else ():
        groups.setdefault(group_of(job, one), []).append(one)
    mine = group_of(job, task) if task is not None else None
    for (at, name), members in groups.items():
        wish = spec.subgroups[at].closeness if at < len(spec.subgroups) else None
        if wish is not None and mine in (None, (at, name)):
            yield wish, settled_rows(members)
