"""Tallies: how many pods of a kind run in each domain of a topology.

Affinity, anti-affinity, spreading, host ports, disks and claims all ask the same question, "how many are there
already?"; so a count is kept per question and domain as pods come and go, instead of walking over pods. Of volumes that
are attached (`attachments.py`) each counts once per node, and free ones that pods were given are remembered by name
(`free_volumes.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hekla.placement.bookkeeping.attachments import Attachments
from hekla.placement.bookkeeping.free_volumes import chosen_on
from hekla.placement.columns import HOST, IdArray, Nodes
from hekla.placement.constraint import Constraints, HostPort, PodSelector, PodTerm
from hekla.placement.devices.inventory import Inventory
from hekla.placement.model import Task, TaskSpec

ANY_ADDRESS = "*"

HARD_WEIGHT = 1
"""How much a pod that must be near another likes to see it come (kube-scheduler's hardPodAffinityWeight)."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Counts the pods that a selector selects."""

    topology_key: str
    selector: PodSelector


@dataclass(frozen=True, slots=True)
class Spreading:
    """Counts the pods that a selector selects and that stay: where a domain empties there is room to keep even.

    Unlike affinity, as in kube-scheduler: a pod that is on its way out can still be met, but no domain is full of it.
    """

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
class Fond:
    """Counts the pods that like to be near those that a term selects; with a negative weight, far from them."""

    term: PodTerm
    weight: int

    @property
    def topology_key(self) -> str:
        """Where nearness is measured."""
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


@dataclass(frozen=True, slots=True)
class DiskUsed:
    """Counts the pods that mount a disk, or those of them that write to it."""

    disk: str
    is_written: bool
    topology_key: str = HOST


@dataclass(frozen=True, slots=True)
class Attached:
    """Counts the volumes of a driver that are attached, each once."""

    driver: str
    topology_key: str = HOST


@dataclass(frozen=True, slots=True)
class VolumesGiven:
    """Counts the pods that were given free volumes, and remembers which."""

    topology_key: str = HOST


@dataclass(frozen=True, slots=True)
class DevicesClaimed:
    """Counts the pods that use resource claims, and has the inventory know what these were given."""

    topology_key: str = HOST


Question = (
    Selected
    | Spreading
    | Repelling
    | Fond
    | PortTaken
    | ClaimUsed
    | DiskUsed
    | Attached
    | VolumesGiven
    | DevicesClaimed
)


@dataclass(eq=False, slots=True)
class Tally:
    """One question and its counts."""

    question: Question
    counts: NDArray[np.int64]  # [domain]
    total: int = 0
    attached: Attachments | None = None
    """What is attached where, for `Attached`."""


class Tallies:
    """All questions that were ever asked of a cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._ids: dict[Question, int] = {}
        self._tallies: list[Tally] = []
        self.changes = 0
        """Grows with every count that changes: what did not fit because of other pods may fit now."""

        self.given: Counter[str] = Counter()
        """Free volumes that pods were given, by name."""

        self.inventory = Inventory(nodes)
        """Devices for resource claims."""

        self._selecting: list[int] = []
        self._spreading: set[int] = set()
        """Those of pods that stay: some of the selecting ones."""

        self._carried: list[int] = []
        """Those of terms that placed pods carry about others: repelling and fond ones."""

        self._attachments: dict[str, tuple[str, str, str]] = {}
        """What is attached by all accounts, by the name of whoever says so: node, driver, volume."""

    def __len__(self) -> int:
        return len(self._tallies)

    @property
    def are_minded(self) -> bool:
        """Whether any pods ever minded who comes near them: then tasks may have `carriers`."""
        return bool(self._carried)

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
        if isinstance(question, Attached):
            self._tallies[tally].attached = Attachments()
            self._count_attachments(tally, 1)
        if isinstance(question, Selected | Spreading):
            self._selecting.append(tally)
            if isinstance(question, Spreading):
                self._spreading.add(tally)
        elif isinstance(question, Repelling | Fond):
            self._carried.append(tally)
        for task in everyone:
            self._tell(task, tally)
        for task in placed:
            if tally in task.matched and not (task.goes and tally in self._spreading):
                self._count(tally, task.row, 1, task)
        return tally

    def introduce(self, task: Task) -> None:
        """Find out in which tallies a task counts, and which are of pods that mind whether it comes near."""
        if not self._selecting and not self._carried and task.spec.constraints.is_local:
            task.matched = task.carriers = ()
            return
        task.matched = tuple(sorted(self._memberships(task.spec)))
        task.carriers = tuple(t for t in self._carried if self._is_about(t, task.spec))

    def add(self, task: Task, row: int) -> None:
        """A task came to a row."""
        for tally in self._counting(task):
            self._count(tally, row, 1, task)

    def remove(self, task: Task, row: int) -> None:
        """A task left a row."""
        for tally in self._counting(task):
            self._count(tally, row, -1, task)

    def stays(self, task: Task, sign: int) -> None:
        """A task on its row sets out to leave it, with sign -1, or stays after all, with 1."""
        for tally in task.matched if self._spreading else ():
            if tally in self._spreading:
                self._count(tally, task.row, sign, task)

    def recount(self, placed: Iterable[Task]) -> None:
        """Count everything anew: a node's labels changed, and with them its domains."""
        self.given.clear()
        self.inventory.forget_users()
        for number, tally in enumerate(self._tallies):
            tally.counts = np.zeros(0, np.int64)
            tally.total = 0
            if tally.attached is not None:
                tally.attached = Attachments()
                self._count_attachments(number, 1)
        for task in placed:
            task.taken = ()
            self.add(task, task.row)

    def attach(self, told_by: str, node: str, driver: str, volume: str) -> None:
        """Somebody says that a volume is attached to a node."""
        said = (node, driver, volume)
        if self._attachments.get(told_by) != said:
            self.detach(told_by)
            self._attachments[told_by] = said
            self._count_attachment(said, 1)

    def detach(self, told_by: str) -> None:
        """Somebody says so no more."""
        said = self._attachments.pop(told_by, None)
        if said is not None:
            self._count_attachment(said, -1)

    def inherit(self, before: "Tallies") -> None:
        """Take over what objects say is attached; to be called while nothing has been asked yet."""
        self._attachments = before._attachments
        self.inventory = before.inventory

    def repelling(self, task: Task) -> list[int]:
        """The tallies of pods that want distance from a task."""
        return [tally for tally in task.carriers if isinstance(self._tallies[tally].question, Repelling)]

    def fond_of(self, task: Task) -> Iterator[tuple[int, int]]:
        """The tallies of pods that like, or dislike, a task near them, where there are any; and how much each does."""
        for tally in task.carriers:
            entry = self._tallies[tally]
            if entry.total and isinstance(entry.question, Fond):
                yield tally, entry.question.weight

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

    def attached(self, tally: int) -> Attachments:
        """What is attached where, by the driver of a question."""
        found = self._tallies[tally].attached
        assert found is not None, f"{self._tallies[tally].question} is about nothing that is attached"
        return found

    def _counting(self, task: Task) -> Iterable[int]:
        """The tallies in which a task counts as it stands."""
        if self._spreading and task.goes:
            return [tally for tally in task.matched if tally not in self._spreading]
        return task.matched

    def _memberships(self, spec: TaskSpec) -> Iterator[int]:
        for tally in self._selecting:
            question = self._tallies[tally].question
            assert isinstance(question, Selected | Spreading)
            if question.selector.matches(spec.namespace, spec.labels):
                yield tally
        for question in carried_by(spec.constraints):
            known = self._ids.get(question)
            if known is not None:
                yield known

    def _is_about(self, tally: int, spec: TaskSpec) -> bool:
        question = self._tallies[tally].question
        assert isinstance(question, Repelling | Fond)
        return question.term.selector.matches(spec.namespace, spec.labels)

    def _tell(self, task: Task, tally: int) -> None:
        question = self._tallies[tally].question
        match question:
            case Selected() | Spreading():
                counts = question.selector.matches(task.spec.namespace, task.spec.labels)
            case Repelling() | Fond():
                counts = question in carried_by(task.spec.constraints)
                if self._is_about(tally, task.spec):
                    task.carriers = (*task.carriers, tally)
            case _:
                counts = question in carried_by(task.spec.constraints)
        if counts:
            task.matched = (*task.matched, tally)

    def _count(self, tally: int, row: int, change: int, task: Task) -> None:
        entry = self._tallies[tally]
        question = entry.question
        domain = int(self._nodes.domains(question.topology_key)[row])
        if domain < 0:
            return
        if entry.attached is not None and isinstance(question, Attached):
            volumes = [volume for driver, volume in task.spec.volumes if driver == question.driver]
            change = entry.attached.change(volumes, domain, change)
        elif isinstance(question, VolumesGiven):
            self._give_volumes(task, row, change)
        elif isinstance(question, DevicesClaimed):
            self._grant_devices(task, row, change)
        self._add(entry, domain, change)

    def _add(self, entry: Tally, domain: int, change: int) -> None:
        self._ensure(entry, domain + 1)
        self.changes += 1
        entry.counts[domain] += change
        entry.total += change
        assert entry.counts[domain] >= 0, f"tally {entry.question} fell below zero"

    def _give_volumes(self, task: Task, row: int, sign: int) -> None:
        """Remember which free volumes a task gets where it goes, or that it needs them no more."""
        if sign > 0:
            task.taken = chosen_on(self._nodes, task.shape.constraints.unbound_claims, self.given, row)
            self.given.update(task.taken)
            return
        self.given.subtract(task.taken)
        for volume in task.taken:
            if self.given[volume] <= 0:
                del self.given[volume]
        task.taken = ()

    def _grant_devices(self, task: Task, row: int, sign: int) -> None:
        """Have a task's claims be given devices where it goes, or say that it uses them no more."""
        names = task.spec.device_claims
        if sign > 0:
            wanted = task.shape.constraints.device_claims
            task.granted = self.inventory.grant(task.uid, row, wanted, names, task.granted)
        else:
            self.inventory.release(task.uid, names)
            task.granted = {}

    def _count_attachments(self, tally: int, sign: int) -> None:
        question = self._tallies[tally].question
        assert isinstance(question, Attached)
        for said in self._attachments.values():
            if said[1] == question.driver:
                self._count_attachment(said, sign)

    def _count_attachment(self, said: tuple[str, str, str], sign: int) -> None:
        node, driver, volume = said
        tally = self._ids.get(Attached(driver))
        if tally is not None:
            entry, domain = self._tallies[tally], self._nodes.host_domain(node)
            assert entry.attached is not None
            self._add(entry, domain, entry.attached.change((volume,), domain, sign))

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
        *(Fond(term, HARD_WEIGHT) for term in constraints.affinity),
        *(Fond(wish.term, wish.weight) for wish in constraints.preferred_pods),
        *(question for port in constraints.ports for question in port_questions(port)),
        *(ClaimUsed(claim) for claim in constraints.exclusive_claims),
        *(DiskUsed(disk.name, False) for disk in constraints.disks),
        *(DiskUsed(disk.name, True) for disk in constraints.disks if not disk.is_read_only),
        *(Attached(driver) for driver, _ in constraints.attaches),
        *((VolumesGiven(),) if constraints.unbound_claims else ()),
        *((DevicesClaimed(),) if constraints.device_claims else ()),
    )


def port_questions(port: HostPort) -> tuple[PortTaken, PortTaken]:
    """A port counts on its own address and, for those who want every address, on any."""
    return PortTaken(port.protocol, port.port, port.ip), PortTaken(port.protocol, port.port, ANY_ADDRESS)


def asked_by(constraints: Constraints) -> Iterator[Question]:
    """The questions that must be kept for a pod with these demands."""
    if constraints.is_local:
        return
    for term in (*constraints.company, *constraints.anti_affinity, *(p.term for p in constraints.preferred_pods)):
        yield Selected(term.topology_key, term.selector)
    for spread in constraints.spreads:
        yield Spreading(spread.topology_key, spread.selector)
    for port in constraints.ports:
        yield PortTaken(port.protocol, port.port, "")
    for disk in constraints.disks:
        yield DiskUsed(disk.name, True)
    yield from carried_by(constraints)
