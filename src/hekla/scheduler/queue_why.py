"""How does a queue fare? What it holds and owns, who waits in it in which order, and why each of the first few does.

Pure, as `explain.py`, which answers for one job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hekla.api.explanation import EXPLANATION
from hekla.api.meta import Document
from hekla.placement.amounts import all_told, told
from hekla.placement.model import Job, JobPhase
from hekla.placement.queue import Queue
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.cluster_remedies import Remedy
from hekla.scheduler.explain import Why, why_in
from hekla.scheduler.remedies import remedies
from hekla.scheduler.sentences import job_told_to

MOST_EXPLAINED = 5
"""Waiting jobs of which it is said why."""


@dataclass(frozen=True, kw_only=True)
class QueueWhy:
    """What a queue holds, and who waits in it."""

    queue: Queue
    held: Mapping[str, int]
    asked: Mapping[str, int]
    """By what is placed and what waits."""

    running: int
    """Jobs that hold something."""

    waiting: int
    first: Sequence[tuple[Job, Why]]
    """The first few that wait, in the order of their turns."""

    fixes: Sequence[Remedy]
    """What would let the first of them start."""

    def sentence(self, may_see: Callable[[str], bool]) -> str:
        """In one sentence, for somebody who may see what is in these namespaces."""
        name = self.queue.name
        if not self.queue.is_open:
            return f'queue "{name}" is not open: what runs goes on, and nothing new starts'
        held = ", ".join(f"{amount} {resource}{_of(self.queue, resource)}" for resource, amount in self._main_held())
        holds = f'queue "{name}" holds {held or "nothing"}'
        if not self.waiting:
            return f"{holds}; nobody waits"
        job, found = self.first[0]
        waits = "1 job waits" if self.waiting == 1 else f"{self.waiting} jobs wait, first {job_told_to(job, may_see)}"
        return f"{holds}; {waits}: {found.sentence(may_see)}" if may_see(job.spec.namespace) else f"{holds}; {waits}"

    def _main_held(self) -> list[tuple[str, str]]:
        return [(name, amount) for name, amount in all_told(self.held).items() if name != "pods"]


def queue_why(rehearsal: Rehearsal, name: str, may_see: Callable[[str], bool]) -> QueueWhy:
    """How a queue fares at this moment; KeyError if there is none."""
    cluster = rehearsal.cluster
    queue, account = cluster.queues[name], cluster.ledger.of(name)
    waiting = sorted(_waiting(rehearsal, name), key=rehearsal.session().job_key)
    first = [(job, why_in(rehearsal, job.uid)) for job in waiting[:MOST_EXPLAINED]]
    fixes = remedies(rehearsal, first[0][0].uid, first[0][1], may_see=may_see) if first else ()
    running = sum(1 for job in cluster.jobs.values() if job.spec.queue == name and job.ready_count)
    return QueueWhy(
        queue=queue, held=account.held, asked=account.asked, running=running, waiting=len(waiting), first=first,
        fixes=fixes,
    )  # fmt: skip


def queue_document(name: str, namespace: str, found: QueueWhy, may_see: Callable[[str], bool]) -> Document:
    """The explanation called `name`; jobs of namespaces that may not be seen are not named."""

    def name_of(job: Job) -> str:
        return job_told_to(job, may_see)

    queue = found.queue
    return {
        "apiVersion": EXPLANATION.api_version,
        "kind": EXPLANATION.kind,
        "metadata": {"name": name, "namespace": namespace},
        "message": found.sentence(may_see),
        "verdict": "Open" if queue.is_open else "Closed",
        "queue": {
            "name": queue.name, "parent": queue.parent, "weight": queue.weight, "priority": queue.priority,
            "running": found.running, "waiting": found.waiting,
        },
        "amounts": _amounts(found),
        "jobs": [
            {"job": name_of(job), "message": why.sentence(may_see) if may_see(job.spec.namespace) else ""}
            for job, why in found.first
        ],
        "remedies": [{"change": one.change, "message": one.sentence, **one.details} for one in found.fixes],
    }  # fmt: skip


def _amounts(found: QueueWhy) -> list[Document]:
    """Per resource what is held, asked for and owned; absent where nothing is said."""
    queue = found.queue
    columns = {
        "held": found.held, "asked": found.asked, "guarantee": queue.guarantee, "deserved": queue.deserved,
        "capability": queue.capability,
    }  # fmt: skip
    names = sorted({name for amounts in columns.values() for name, amount in amounts.items() if amount} - {"pods"})
    return [
        {"resource": name, **{key: told(name, amounts[name]) for key, amounts in columns.items() if amounts.get(name)}}
        for name in names
    ]


def _waiting(rehearsal: Rehearsal, name: str) -> list[Job]:
    """Jobs of the queue that wait for nodes, or to be let in."""
    lines = rehearsal.cluster.lines
    outside = lines.by_phase[JobPhase.PENDING]
    return [job for job in {**outside, **lines.for_nodes}.values() if job.spec.queue == name]


def _of(queue: Queue, resource: str) -> str:
    """` of the 8 that it deserves`."""
    if queue.deserved.get(resource):
        return f" of the {told(resource, queue.deserved[resource])} that it deserves"
    if queue.capability.get(resource):
        return f" of at most {told(resource, queue.capability[resource])}"
    return ""
