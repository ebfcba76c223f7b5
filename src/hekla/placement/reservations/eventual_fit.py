"""Could a job fit when all have ended of whom it is known when? By amounts alone: a yes promises nothing, a no is final.

    room in the end     idle now + what those give back - what is kept for others      [resource, node]

Of hundreds of gangs for which there is no plan, one will fit as soon as a node joins, or somebody leaves of whom nobody knew
when. A plan takes 20 ms on 10,000 nodes, so a cycle makes few (`planning_budget.py`); a look takes 0.1, so that each has one in every cycle.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from hekla.placement.columns import BoolArray, IntArray
from hekla.placement.model import Job, JobPhase
from hekla.placement.reservations.forecast_equal_pods import End, KeptForJob
from hekla.placement.session import Session
from hekla.placement.shape import Shape
from hekla.placement.unmade_pods import MOST_IMAGINED


class InTheEnd:
    """The room that there will be, beside what is kept for others."""

    def __init__(self, session: Session, ends: Sequence[End], others: Iterable[KeptForJob]) -> None:
        self._session, self._nodes = session, session.cluster.nodes
        nodes = self._nodes
        self._room: IntArray = nodes.idle + nodes.reserved  # what was promised of it counts too: at the most
        leaving = [task for _, task in ends if task.row >= 0]
        number = {shape: at for at, shape in enumerate({task.shape for task in leaving})}
        given = np.zeros((len(number), len(self._room)), np.int64)
        for shape, at in number.items():
            given[at, shape.resources] = shape.amounts
        which = np.fromiter((number[task.shape] for task in leaving), np.int64, len(leaving))
        rows = np.fromiter((task.row for task in leaving), np.int64, len(leaving))
        for resource, of_one in enumerate(self._room):
            np.add.at(of_one, rows, given[which, resource])
        for name, held in ((name, held) for kept in others for name, held in kept.rooms.items()):
            for asked, amount in held.items() if name in nodes.row_of else ():
                self._room[nodes.resources[asked], nodes.row_of[name]] -= amount
        np.maximum(self._room, 0, out=self._room)
        self._known: dict[Hashable, int] = {}

    @property
    def looks(self) -> int:
        """How many questions were answered, of those alike one."""
        return len(self._known)

    def may_fit(self, job: Job) -> bool:
        """Whether there is room for all that a job must have, as far as amounts and facts of nodes tell."""
        if not job.tasks:
            return self._may_fit_unseen(job)
        waiting, needed = list(job.pending()), self._session.shortfall(job)
        counts = Counter(task.shape for task in waiting)
        if any(shape.is_best_effort for shape in counts):
            return True
        if len(counts) > 1 and len(waiting) > needed:  # it may start with some of these, or of those
            return True
        return all(self._places(shape) >= min(count, needed) for shape, count in counts.items())

    def _may_fit_unseen(self, job: Job) -> bool:
        """The same of one that has made no pods: `unmade_pods.py` says what it will make."""
        spec, count = job.spec, job.spec.min_available
        if job.phase is not JobPhase.PENDING or spec.subgroups or not 0 < count <= MOST_IMAGINED:
            return True
        each = {name: -(-amount // count) for name, amount in (spec.min_resources or {}).items() if name != "pods"}
        return self._places_of(each) >= count

    def _places(self, shape: Shape) -> int:
        known = self._known.get(shape)
        if known is None:
            rows = self._session.policy.placer.open_rows(shape)
            known = self._known[shape] = self._count(shape.resources, shape.amounts, rows)
        return known

    def _places_of(self, request: Mapping[str, int]) -> int:
        key, resources = frozenset(request.items()), self._nodes.resources
        known = self._known.get(key)
        if known is None:
            asked = [(resources.get(name, -1), amount) for name, amount in request.items() if amount]
            indices, amounts = np.array(asked, np.int64).reshape(-1, 2).T
            is_there = not len(indices) or indices.min() >= 0
            known = self._known[key] = self._count(indices, amounts, self._nodes.is_live) if is_there else 0
        return known

    def _count(self, resources: IntArray, amounts: IntArray, rows: BoolArray) -> int:
        """How many pods like one find room."""
        if not len(resources):
            return MOST_IMAGINED
        each = (self._room[resources] // amounts[:, None]).min(axis=0)
        return int(each[rows].sum())
