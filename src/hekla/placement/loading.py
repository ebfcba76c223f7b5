"""Takes in tasks that hold their nodes already, very many at once: a start finds 150,000 pods that run.

What they hold is added up by shape and by queue and posted at the end, which is what made 40 us per pod of them 15.
Meanwhile amounts and accounts lag behind; tasks, jobs and tallies do not. Whatever else happens before the end may
happen: amounts only add up.
"""

from collections import Counter

import numpy as np

from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, TaskSpec
from hekla.placement.shape import Shape


class Loading:
    """Tasks on their way into a cluster; `finish` must follow the last one before anybody decides anything."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: dict[Shape, list[int]] = {}
        self._held: Counter[tuple[str, Shape]] = Counter()
        """How many tasks of lone pods of a shape a queue has more."""

        self._shapes: dict[tuple[int, int], tuple[TaskSpec, Shape]] = {}
        """By the identity of constraints and request, which pods of a template share; with a task that keeps them."""

    def put(self, spec: TaskSpec, job: Job) -> None:
        """As `Cluster.put_task`."""
        cluster = self._cluster
        row = cluster.nodes.row_of.get(spec.node, -1)
        if row < 0 or not spec.status.is_evictable or spec.uid in cluster.tasks:
            cluster.put_task(spec, job)
            return
        task = cluster.take_in(spec, job, None, self._shape_of(spec, job))
        if job.spec.has_group or not job.spec.queue:
            job.post(task)
        else:
            self._held[job.spec.queue, task.shape] += 1
        if cluster.ledger.clock is not None and spec.started is not None:
            job.credit(task, spec.started)
        if task.shape.gpu_milli:
            cluster.place(task, row)
        else:
            self._rows.setdefault(task.shape, []).append(row)
            cluster.settle(task, row)

    def _shape_of(self, spec: TaskSpec, job: Job) -> Shape:
        if self._cluster.has_readers:
            return self._cluster.shape_of(spec, job)
        key = (id(spec.constraints), id(spec.request))
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = (spec, self._cluster.shape_of(spec, job))
        return known[1]

    def finish(self) -> None:
        """Post what was added up."""
        nodes, ledger = self._cluster.nodes, self._cluster.ledger
        for shape, rows in self._rows.items():
            nodes.take_many(np.array(rows), shape.resources, shape.amounts)
        for (queue, shape), number in self._held.items():
            ledger.changes += 1
            for account in ledger.chain(queue):
                account.post(shape.request, number, number)
        self._rows.clear()
        self._held.clear()
