"""Tallies: how many pods of a kind run in each domain of a topology.

Affinity, anti-affinity, spreading, host ports and exclusive claims all ask the same question, "how many are there
already?"; so a count is kept per question and domain as pods come and go, instead of walking over pods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import HOST, IdArray, Nodes
from hekla.placement.constraint import Constraints, HostPort, PodSelector, PodTerm
from hekla.placement.model import Task, TaskSpec

ANY_ADDRESS = "*"


@dataclass(frozen=True, slots=True)
class Selected:
    """Counts the pods that a selector selects."""

    topology_key: str
    selector: PodSelector


@dataclass(frozen=True, slots=True)
class Repelling:
    """Counts the pods that carry an anti-affinity term: those who want distance from the pods it selects."""

    term: PodTerm

    @property
    def topology_key(self) -> str:
        """Where the distance is measured."""
        return self.term.topology_key


@dataclass(frozen=True, slots=True)
class PortTaken:
    """Counts the pods that take a host port on an address; `*` counts those on any address."""

    protocol: str
    port: int
    ip: str
    topology_key: str = HOST


@dataclass(frozen=True, slots=True)
class ClaimUsed:
    """Counts the pods that use an exclusive claim."""

    claim: str
    topology_key: str = HOST


Question = Selected | Repelling | PortTaken | ClaimUsed


@dataclass(eq=False, slots=True)
class Tally:
    """One question and its counts."""

    question: Question
    counts: NDArray[np.int64]  # [domain]
    total: int = 0


class Tallies:
    """All questions that were ever asked of a cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._ids: dict[Question, int] = {}
        self._tallies: list[Tally] = []
        self.changes = 0
        """Grows with every count that changes: what did not fit because of other pods may fit now."""

        self._selecting: list[int] = []
        self._repelling: list[int] = []

    def __len__(self) -> int:
        return len(self._tallies)

    def find(self, question: Question) -> int | None:
        """The id of a question, or None if nobody asked it."""
        return self._ids.get(question)

    def ask(self, question: Question, placed: Iterable[Task], everyone: Iterable[Task]) -> int:
        """The id of a question. A new one is counted over the tasks that are placed, and told to everyone it concerns."""
        known = self._ids.get(question)
        if known is not None:
            return known
        tally = self._ids[question] = len(self._tallies)
        self._tallies.append(Tally(question, np.zeros(0, np.int64)))
        if isinstance(question, Selected):
            self._selecting.append(tally)
        elif isinstance(question, Repelling):
            self._repelling.append(tally)
        for task in everyone:
            self._tell(task, tally)
        for task in placed:
            if tally in task.matched:
                self._count(tally, task.row, 1)
        return tally

    def introduce(self, task: Task) -> None:
        """Find out in which tallies a task counts, and which placed pods want distance from it."""
        task.matched = tuple(sorted(self._memberships(task.spec)))
        task.carriers = tuple(t for t in self._repelling if self._repels(t, task.spec))

    def add(self, task: Task, row: int) -> None:
        """A task came to a row."""
        for tally in task.matched:
            self._count(tally, row, 1)

    def remove(self, task: Task, row: int) -> None:
        """A task left a row."""
        for tally in task.matched:
            self._count(tally, row, -1)

    def recount(self, placed: Iterable[Task]) -> None:
        """Count everything anew: a node's labels changed, and with them its domains."""
        for tally in self._tallies:
            tally.counts = np.zeros(0, np.int64)
            tally.total = 0
        for task in placed:
            self.add(task, task.row)

    def total(self, tally: int) -> int:
        """The count over all domains."""
        return self._tallies[tally].total

    def counts(self, tally: int) -> tuple[IdArray, NDArray[np.int64]]:
        """(domain of each node, count of each domain); domain -1, of nodes without the key, reads the last, 0.  # [node], [domain + 1]"""
        entry = self._tallies[tally]
        key = entry.question.topology_key
        domains = self._nodes.domains(key)
        self._ensure(entry, self._nodes.domain_count(key))
        return domains, entry.counts

    def _memberships(self, spec: TaskSpec) -> Iterator[int]:
        for tally in self._selecting:
            question = self._tallies[tally].question
            assert isinstance(question, Selected)
            if question.selector.matches(spec.namespace, spec.labels):
                yield tally
        for question in carried_by(spec.constraints):
            known = self._ids.get(question)
            if known is not None:
                yield known

    def _repels(self, tally: int, spec: TaskSpec) -> bool:
        question = self._tallies[tally].question
        assert isinstance(question, Repelling)
        return question.term.selector.matches(spec.namespace, spec.labels)

    def _tell(self, task: Task, tally: int) -> None:
        question = self._tallies[tally].question
        match question:
            case Selected():
                counts = question.selector.matches(task.spec.namespace, task.spec.labels)
            case Repelling():
                counts = question in carried_by(task.spec.constraints)
                if self._repels(tally, task.spec):
                    task.carriers = (*task.carriers, tally)
            case _:
                counts = question in carried_by(task.spec.constraints)
        if counts:
            task.matched = (*task.matched, tally)

    def _count(self, tally: int, row: int, change: int) -> None:
        entry = self._tallies[tally]
        key = entry.question.topology_key
        domain = int(self._nodes.domains(key)[row])
        if domain < 0:
            return
        self._ensure(entry, domain + 1)
        self.changes += 1
        entry.counts[domain] += change
        entry.total += change
        assert entry.counts[domain] >= 0, f"tally {entry.question} fell below zero"

    @staticmethod
    def _ensure(entry: Tally, domains: int) -> None:
        # One more than there are domains: index -1 of nodes without the key must read a zero.
        if len(entry.counts) <= domains:
            longer = np.zeros(max(2 * len(entry.counts), domains + 1), np.int64)
            longer[: len(entry.counts)] = entry.counts
            entry.counts = longer


def carried_by(constraints: Constraints) -> tuple[Question, ...]:
    """The questions in which a pod counts because of its own demands."""
    if constraints.is_local:
        return ()
    return (
        *(Repelling(term) for term in constraints.anti_affinity),
        *(question for port in constraints.ports for question in port_questions(port)),
        *(ClaimUsed(claim) for claim in constraints.exclusive_claims),
    )


def port_questions(port: HostPort) -> tuple[PortTaken, PortTaken]:
    """A port counts on its own address and, for those who want every address, on any."""
    return PortTaken(port.protocol, port.port, port.ip), PortTaken(port.protocol, port.port, ANY_ADDRESS)


def asked_by(constraints: Constraints) -> Iterator[Question]:
    """The questions that must be kept for a pod with these demands."""
    if constraints.is_local:
        return
    for term in (*constraints.affinity, *constraints.anti_affinity, *(p.term for p in constraints.preferred_pods)):
        yield Selected(term.topology_key, term.selector)
    for spread in constraints.spreads:
        yield Selected(spread.topology_key, spread.selector)
    for port in constraints.ports:
        yield PortTaken(port.protocol, port.port, "")
    yield from carried_by(constraints)
