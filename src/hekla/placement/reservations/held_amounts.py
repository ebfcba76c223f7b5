"""What reservations hold of what is idle, on nodes and in queues: for each what it and those before it need and nobody gives back
until then; `book.py` says who heeds which.
"""  # fmt: skip

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, Task
from hekla.placement.reservations.expected_ends import Ends
from hekla.placement.reservations.reservation import Reservation
from hekla.quota.amounts import added


class HeldAmounts:
    """The same as one session sees it. Whom it is asked about, `heeded`, comes in the order in which they start."""

    def __init__(self, cluster: Cluster, ends: Ends) -> None:
        self._cluster, self._ends = cluster, ends

    def on_rows(self, heeded: Sequence[Reservation]) -> Iterator[tuple[int, Mapping[str, int]]]:
        """By node, what must stay idle there."""
        for name in sorted({name for reservation in heeded for name in reservation.rooms}):
            row = self._cluster.nodes.row_of.get(name, -1)
            if row >= 0 and (held := self._to_hold(row, name, heeded)):
                yield row, held

    def in_queues(self, heeded: Sequence[Reservation]) -> Iterator[tuple[str, Mapping[str, int]]]:
        """The same of what queues may hold, those of the jobs and those above: a bound that none of them has is not met."""
        needed, held = dict[str, Counter[str]](), dict[str, dict[str, int]]()
        for reservation in heeded:
            rooms = added(reservation.rooms.values())
            for name in self._line(reservation):
                needed.setdefault(name, Counter()).update(rooms)
                back, kept = self._ends.back_to(name, reservation.until_s), held.setdefault(name, {})
                for resource, amount in needed[name].items():
                    kept[resource] = max(kept.get(resource, 0), amount - back.get(resource, 0))
        yield from held.items()

    def in_the_way(self, heeded: Sequence[Reservation], placed: Sequence[Task]) -> Sequence[Reservation]:
        """Those that need what these pods were tried on, where they have their places now; else room is for all."""
        nodes, asked = self._cluster.nodes, dict[int, set[str]]()
        for task in placed:
            asked.setdefault(task.row, set()).update(task.shape.request)
        found = dict[str, Reservation]()
        for row, resources in asked.items():
            for reservation, resource, lacking in self._lacking(row, nodes.name(row), heeded):
                if resource in resources and lacking > max(int(nodes.idle[nodes.resource(resource), row]), 0):
                    found[reservation.uid] = reservation
        return [reservation for reservation in heeded if reservation.uid in found]

    def in_queue_of(self, heeded: Sequence[Reservation], job: Job) -> Sequence[Reservation]:
        """Those that hold a part of what a queue may hold in which a job is, or of one above."""
        ours = set(self._cluster.ledger.line(job.spec.queue))
        return [reservation for reservation in heeded if not ours.isdisjoint(self._line(reservation))]

    def _to_hold(self, row: int, name: str, heeded: Sequence[Reservation]) -> dict[str, int]:
        nodes, held = self._cluster.nodes, dict[str, int]()
        for _, resource, lacking in self._lacking(row, name, heeded):
            idle = int(nodes.idle[nodes.resource(resource), row])
            held[resource] = max(held.get(resource, 0), min(lacking, idle))
        return {resource: amount for resource, amount in held.items() if amount > 0}

    def _lacking(
        self, row: int, name: str, heeded: Sequence[Reservation]
    ) -> Iterator[tuple[Reservation, str, int]]:  # fmt: skip
        """What each, with those before it, needs on a node beyond what is given back there until then."""
        needed = dict[str, int]()
        for reservation in heeded:
            room = reservation.rooms.get(name)
            if room is None:
                continue
            back = self._ends.given_back(row, reservation.until_s)
            for resource, amount in room.items():
                needed[resource] = needed.get(resource, 0) + amount
                lacking = needed[resource] - back.get(resource, 0)
                yield reservation, resource, lacking

    def _line(self, reservation: Reservation) -> Iterator[str]:
        cluster = self._cluster
        job = cluster.jobs.get(reservation.uid)
        for name in cluster.ledger.line(job.spec.queue) if job is not None else ():
            if name in cluster.queues:
                yield name
