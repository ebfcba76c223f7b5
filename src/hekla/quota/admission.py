"""Admits workloads to a tree of lenders: whose turn it is, who fits, who must give back, and why the others wait.

    in a queue        higher priority first, then older
    among queues      who borrows least far up, then higher priority, then older;  or by shares, see below
    by shares         at every cohort, from the leaves up: whose branch does not borrow what is asked for, then the smaller
                      dominant share with the workload, then higher priority, then older

A pass goes on while quota lasts: a queue that was served offers its next workload at once, where Kueue takes one per
queue and cycle. Workloads of one queue that ask for the same with the same priority are of one shape: when the oldest
does not fit, none does, so they wait together and wake together. Orders are found again only where a decision changed them:
levels of borrowing and shares depend on what is held on the way to the root, and within a pass only rise.

A queue that may not take back from everybody could be kept from its own quota by those who borrow bit by bit. So when nobody
can be preempted for its workload, what is free of its quota is kept for that until the pass is over, and for the head of a
strict queue as long as it waits. Who waits for that alone is tried again in the next pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from hekla.quota.amounts import told
from hekla.quota.cohort import CohortNode, CohortTree, FlavorResource, Usage, borrow_level
from hekla.quota.dominant import climbing, share_of
from hekla.quota.fair_victims import BOTH, PreemptionStrategy, fair_victims
from hekla.quota.verdict import OVER_LIMIT, OVER_SHARE, Denial
from hekla.quota.victims import PreemptionPolicy, Reclaim, Target, Within, Workload, victims

Shape = tuple[int, tuple[tuple[FlavorResource, int], ...], str]
Turn = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Admit:
    """A workload gets what it asks for."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class Preempt:
    """Others must go first; the workload is tried again when something was given back."""

    workload: Workload
    targets: Sequence[Target]


@dataclass(frozen=True, slots=True)
class Wait:
    """A workload waits, and with it those of its shape, or in a strict queue all behind it."""

    workload: Workload
    denial: Denial


Decision = Admit | Preempt | Wait


class WorkloadLine:
    """The workloads of one queue that wait, by shape, so that those of one shape wait together."""

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        """Whether nothing behind the head is tried while the head waits."""

        self.is_blocked = False
        self._blocked_by: tuple[int, float, str] = (0, 0.0, "")
        """The place of the head that waits."""

        self._shapes: dict[Shape, list[tuple[float, str, Workload]]] = {}
        self._open: list[tuple[int, float, str, Shape]] = []
        """Of each shape that may fit, the first workload's place; entries that are not true any more are passed over."""

        self.parked: set[Shape] = set()
        self._back: set[str] = set()

    def add(self, workload: Workload, *, is_back: bool = False) -> None:
        """A workload joins the line; one that is back from being evicted is of a shape of its own, as it may do less."""
        if is_back:
            self._back.add(workload.uid)
        shape = self._shape_of(workload)
        waiting = self._shapes.setdefault(shape, [])
        heappush(waiting, (workload.since, workload.uid, workload))
        self.is_blocked = self.is_blocked and _place(workload) > self._blocked_by
        if waiting[0][2] is workload:
            self.parked.discard(shape)
            self._offer(shape)

    def head(self) -> Workload | None:
        """Who is tried next."""
        while self._open and not self.is_blocked:
            _, since, uid, shape = self._open[0]
            waiting = self._shapes.get(shape)
            if waiting and shape not in self.parked and waiting[0][:2] == (since, uid):
                return waiting[0][2]
            heappop(self._open)
        return None

    def leave(self, workload: Workload) -> None:
        """The head of its shape leaves the line."""
        shape = self._shape_of(workload)
        waiting = self._shapes[shape]
        heappop(waiting)
        self._back.discard(workload.uid)
        if waiting:
            self._offer(shape)
        else:
            del self._shapes[shape]
            self.parked.discard(shape)

    def withdraw(self, uid: str) -> bool:
        """A workload is not wanted any more, wherever in the line it stands; whether it stood there."""
        for shape, waiting in self._shapes.items():
            kept = [entry for entry in waiting if entry[1] != uid]
            if len(kept) < len(waiting):
                if not kept:
                    del self._shapes[shape]
                    self.parked.discard(shape)
                    return True
                heapify(kept)
                self._shapes[shape] = kept
                if shape not in self.parked:
                    self._offer(shape)
                return True
        return False

    def park(self, workload: Workload) -> None:
        """Those of a shape wait until something is given back; in a strict queue all do."""
        if self.is_strict:
            self.is_blocked, self._blocked_by = True, _place(workload)
        else:
            self.parked.add(self._shape_of(workload))

    def unpark(self, workload: Workload) -> None:
        """Let one that waits, and those of its shape, be tried again."""
        shape = self._shape_of(workload)
        if self.is_strict:
            self.is_blocked = False
        elif shape in self.parked and self._shapes.get(shape):
            self.parked.discard(shape)
            self._offer(shape)

    def wake(self, is_worth_it: Callable[[Workload], bool]) -> bool:
        """Let those be tried again who may fit now, judged by the oldest of their shape; whether there are any."""
        if self.is_blocked:
            self.is_blocked = False
            head = self.head()
            self.is_blocked = head is not None and not is_worth_it(head)
            return head is not None and not self.is_blocked
        woken = {shape for shape in self.parked if is_worth_it(self._shapes[shape][0][2])}
        self.parked -= woken
        for shape in woken:
            self._offer(shape)
        return bool(woken)

    def __iter__(self) -> Iterator[Workload]:
        return (entry[2] for waiting in self._shapes.values() for entry in waiting)

    def _shape_of(self, workload: Workload) -> Shape:
        return shape_of(workload, alone=workload.uid in self._back)

    def _offer(self, shape: Shape) -> None:
        since, uid, _ = self._shapes[shape][0]
        heappush(self._open, (-shape[0], since, uid, shape))


class Admission:
    """The queues of a tree with those who wait and those who were admitted."""

    def __init__(
        self, tree: CohortTree, policies: Mapping[str, PreemptionPolicy] | None = None, *,
        strict: Iterable[str] = (), by_shares: bool = False, rules: Sequence[PreemptionStrategy] = BOTH,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.admitted: dict[str, Workload] = {}
        self._policies = policies or {}
        self._rules = rules
        self._by_shares = by_shares
        are_strict = frozenset(strict)
        self.lines = {node.name: WorkloadLine(is_strict=node.name in are_strict) for node in tree.queues()}
        self._holders: dict[str, dict[int, dict[str, Workload]]] = {name: {} for name in self.lines}
        """By queue and priority, who was admitted."""

        self._gained: set[str] = set()
        """Roots of trees in which something was given back since the last pass."""

        self._fresh: set[str] = set(self.lines)
        """Queues that somebody joined since."""

        self._back: dict[str, set[str]] = {}
        """By root, who was evicted since anybody last came or went, and preempts nobody until then.

        So every preemption makes one fewer of those who wait and may preempt, and without events there is an end of them,
        whatever rules of priority and of shares contradict one another.
        """

        self._owed: dict[str, Preempt] = {}
        """Workloads for which others were sent away, with whom; they wait beside their lines."""

        self._heads: dict[str, Workload] = {}
        """By strict queue, the head that has waited last."""

        self._queues: dict[str, list[CohortNode]] = {}
        for node in tree.queues():
            self._queues.setdefault(node.root.name, []).append(node)

    # Events

    def submit(self, workload: Workload) -> None:
        """A workload asks for its quota."""
        self._note_event(self.tree[workload.queue].root.name)
        self.lines[workload.queue].add(workload)
        self._fresh.add(workload.queue)

    def finish(self, uid: str) -> None:
        """A workload gives back what it holds, or does not wait any more."""
        workload = self.admitted.pop(uid, None)
        if workload is None:
            self._withdraw(uid)
            return
        self._note_event(self.tree[workload.queue].root.name)
        self._release(workload)

    def _release(self, workload: Workload) -> None:
        self.tree.give(workload.queue, workload.usage)
        holders = self._holders[workload.queue][workload.priority]
        del holders[workload.uid]
        if not holders:
            del self._holders[workload.queue][workload.priority]
        self._gained.add(self.tree[workload.queue].root.name)

    def requeue(self, uid: str) -> None:
        """A workload that was evicted gives back what it holds, and asks for it again."""
        workload = self.admitted.pop(uid)
        self._release(workload)
        self._back.setdefault(self.tree[workload.queue].root.name, set()).add(uid)
        self.lines[workload.queue].add(workload, is_back=True)
        self._fresh.add(workload.queue)

    # Decisions

    def decide(self, now: float = 0.0) -> Iterator[Decision]:
        """One pass: decisions in order, until nobody else fits."""
        coming, postponed = _Coming(self.tree), list[Workload]()
        try:
            yield from self._settle_debts(coming, now)
            queues = self._awake()
            for head in self._heads.values():
                if self.lines[head.queue].is_blocked:
                    self._keep(head, coming)
            turns = self._turns(queues)
            while (workload := turns.next()) is not None:
                kept = coming.lift(workload.queue)  # a queue is not kept from its own
                decision = self._decided(workload, coming)
                self._note(decision, now)
                if isinstance(decision, Wait) and coming.fits_without_kept(workload, self._passing):
                    postponed.append(workload)
                self._keep(kept or (decision.workload if isinstance(decision, Wait) else None), coming)
                if isinstance(decision, Preempt):
                    turns = self._turns(queues)  # who loses something may borrow less, and be earlier for it
                else:
                    turns.moved(self.tree[workload.queue])
                yield decision
        finally:
            coming.undo()
            for workload in postponed:
                self.lines[workload.queue].unpark(workload)
                self._fresh.add(workload.queue)

    def _passing(self, queue: str) -> bool:
        """Whether what is kept for a queue is kept for this pass only."""
        return not self.lines[queue].is_strict

    def _note(self, decision: Decision, now: float) -> None:
        """Take a decision over: who is admitted leaves the line, who waits steps aside."""
        workload, line = decision.workload, self.lines[decision.workload.queue]
        if isinstance(decision, Admit):
            line.leave(workload)
            self._admit(workload, now)
            return
        line.park(workload)
        if line.is_strict:
            self._heads[workload.queue] = workload
        if isinstance(decision, Preempt):
            line.withdraw(workload.uid)
            self._owed[workload.uid] = decision

    def _settle_debts(self, coming: "_Coming", now: float) -> Iterator[Decision]:
        """Those for whom others were sent away come first; until these are gone, what they leave is kept for them.

        Without this a victim may be let in again before the one that it had to go for, for ever.
        """
        for uid, debt in list(self._owed.items()):
            workload = debt.workload
            if coming.fits_already(workload) and self.tree.fits(workload.queue, workload.usage):
                self._redeem(uid)
                self._admit(workload, now)
                yield Admit(workload)
                continue
            leaving = [target for target in debt.targets if target[0].uid in self.admitted]
            if leaving:
                coming.leave(target for target in leaving if target[0].uid not in coming.leaving)
                coming.book(workload)
            else:
                self._redeem(uid)
                self.submit(workload)  # what was left did not suffice: somebody's quota was cut

    def _redeem(self, uid: str) -> None:
        queue = self._owed.pop(uid).workload.queue
        self.lines[queue].is_blocked = False
        self._fresh.add(queue)

    def why_not(self, workload: Workload) -> Denial | None:
        """Why a workload does not fit at this moment; None if it does."""
        node = self.tree[workload.queue]
        for thing, amount in sorted(workload.usage.items()):
            flavor, resource = thing
            if amount > node.capacity(thing):
                most = told(resource, node.capacity(thing))
                return Denial(
                    OVER_LIMIT,
                    f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests (0) + "
                    f"current podset request ({told(resource, amount)}) > maximum capacity ({most})",
                )
            lacking = amount - node.free(thing)
            if lacking > 0:
                missing = told(resource, lacking)
                return Denial(
                    OVER_SHARE, f"insufficient unused quota for {resource} in flavor {flavor}, {missing} more needed"
                )
        return None

    def _decided(self, workload: Workload, coming: "_Coming") -> Decision:
        denial = self.why_not(workload)
        if denial is None:
            if coming.is_nothing or coming.fits_already(workload):
                return Admit(workload)
            coming.book(workload)
            return Wait(workload, Denial(OVER_SHARE, "waits for quota of workloads that are being evicted"))
        if denial.code == OVER_SHARE and self._may_preempt(workload):
            targets = self._targets(workload, coming)
            if targets:
                coming.leave(targets)
                coming.book(workload)
                return Preempt(workload, targets)
        return Wait(workload, denial)

    def _keep(self, workload: Workload | None, coming: "_Coming") -> None:
        """What is free of a queue's quota is kept for a workload that nobody makes way for."""
        if workload is None or not self._is_owed_room(workload):
            return
        node, usage = self.tree[workload.queue], dict[FlavorResource, int]()
        borrows = self.tree.borrow_level(workload.queue, workload.usage) > 0
        for thing, amount in workload.usage.items():
            room = node.limit(thing) if borrows else node.nominal(thing)
            usage[thing] = max(0, min(amount, room - node.used(thing)))
        coming.keep(workload, usage)

    def _is_owed_room(self, workload: Workload) -> bool:
        """Whether a workload may count on quota that it lacks, and on no victims who bring it."""
        policy = self._policies.get(workload.queue, _NEVER)
        return policy.reclaim is not Reclaim.ANY and bool(self._lacks(workload)) and self._may_count_on_it(workload)

    def _lacks(self, workload: Workload) -> list[FlavorResource]:
        node = self.tree[workload.queue]
        return [thing for thing, amount in workload.usage.items() if amount > node.free(thing)]

    def _may_count_on_it(self, workload: Workload) -> bool:
        """Whether what a workload lacks is its queue's own, or may be taken back, or preempted for while borrowing."""
        policy, node = self._policies.get(workload.queue, _NEVER), self.tree[workload.queue]
        if policy.borrows or (self._by_shares and policy.reclaim is not Reclaim.NEVER):
            return True
        usage = workload.usage
        return all(
            usage[thing] <= node.nominal(thing) or borrow_level(node, thing, usage[thing])[1]
            for thing in self._lacks(workload)
        )

    def _targets(self, workload: Workload, coming: "_Coming") -> Sequence[Target]:
        things = self._lacks(workload)
        candidates = [other for other in self._candidates(workload, things) if other.uid not in coming.leaving]
        if self._by_shares:
            return fair_victims(self.tree, workload, things, candidates, self._policies, self._rules)
        return victims(self.tree, workload, things, candidates, self._policies)

    def _may_preempt(self, workload: Workload) -> bool:
        """Whether a search for victims can find any: most that wait borrow already, and nobody is below them."""
        policy = self._policies.get(workload.queue)
        if policy is None or workload.uid in self._back.get(self.tree[workload.queue].root.name, ()):
            return False
        if not self._may_count_on_it(workload):
            return False
        if policy.within is not Within.NEVER and any(p <= workload.priority for p in self._holders[workload.queue]):
            return True
        if policy.reclaim is Reclaim.NEVER:
            return False
        node = self.tree[workload.queue]
        is_flat = node.parent is None or node.parent.parent is None
        borrows = any(node.borrows_with(thing, amount) for thing, amount in workload.usage.items())
        return self._by_shares or policy.borrows or not is_flat or not borrows

    def _candidates(self, workload: Workload, things: Sequence[FlavorResource]) -> Iterator[Workload]:
        """Who was admitted to the workload's queue, or to one of its tree that borrows what is lacking."""
        for node in self._queues[self.tree[workload.queue].root.name]:
            if node.name == workload.queue or not node.is_within(things):
                for holders in self._holders[node.name].values():
                    yield from holders.values()

    def _admit(self, workload: Workload, now: float) -> None:
        self.tree.take(workload.queue, workload.usage)
        held = Workload(
            uid=workload.uid, queue=workload.queue, usage=workload.usage, priority=workload.priority, since=workload.since,
            admitted=now,
        )  # fmt: skip
        self.admitted[workload.uid] = held
        self._holders[workload.queue].setdefault(workload.priority, {})[workload.uid] = held

    def _note_event(self, root: str) -> None:
        """Somebody new came, or went for good: who was evicted may preempt again."""
        if self._back.pop(root, None):
            self._gained.add(root)

    def _withdraw(self, uid: str) -> None:
        if uid in self._owed:
            self._redeem(uid)
            return
        for name, line in self.lines.items():
            if line.withdraw(uid):
                line.is_blocked = False  # behind the head of a strict queue somebody may have become the head
                if self._heads.get(name, _NOBODY).uid == uid:
                    self._gained.add(self.tree[name].root.name)  # something may have been kept for it
                self._fresh.add(name)
                return

    # Turns

    def _awake(self) -> list[CohortNode]:
        """The queues in which anybody may fit: somebody joined, or something was given back."""
        for root in self._gained:
            for node in self._queues[root]:
                line = self.lines[node.name]
                is_owed = line.is_strict and any(debt.workload.queue == node.name for debt in self._owed.values())
                if not is_owed and line.wake(self._may_fit):
                    self._fresh.add(node.name)
        queues = [self.tree[name] for name in sorted(self._fresh)]
        self._fresh, self._gained = set(), set()
        return queues

    def _turns(self, queues: Sequence[CohortNode]) -> "_TurnsByLevel | _TurnsByShare":
        return _TurnsByShare(self.lines, queues) if self._by_shares else _TurnsByLevel(self.lines, queues)

    def _may_fit(self, workload: Workload) -> bool:
        """Whether a workload fits, might with victims, or has room kept for it."""
        fits = self.tree.fits(workload.queue, workload.usage)
        return fits or self._may_preempt(workload) or self._is_owed_room(workload)


_NEVER = PreemptionPolicy()
_NOBODY = Workload(uid="", queue="")


def _place(workload: Workload) -> tuple[int, float, str]:
    return -workload.priority, workload.since, workload.uid


class _Coming:
    """What the tree will be like when those who are preempted in this pass are gone, and who is promised what they leave."""

    def __init__(self, tree: CohortTree) -> None:
        self._tree = tree
        self._booked: list[Workload] = []
        self._kept: dict[str, tuple[Workload, Usage]] = {}
        """By queue, for whom what is kept."""

        self.leaving: dict[str, Workload] = {}

    @property
    def is_nothing(self) -> bool:
        return not self._booked

    def leave(self, targets: Iterable[Target]) -> None:
        for other, _ in targets:
            self.leaving[other.uid] = other
            self._tree.give(other.queue, other.usage)

    def book(self, workload: Workload) -> None:
        self._booked.append(workload)
        self._tree.take(workload.queue, workload.usage)

    def keep(self, workload: Workload, usage: Usage) -> None:
        self.lift(workload.queue)
        self._kept[workload.queue] = workload, usage
        self._tree.take(workload.queue, usage)

    def lift(self, queue: str) -> Workload | None:
        """Keep nothing for a queue any more; for whom it was."""
        if queue not in self._kept:
            return None
        workload, usage = self._kept.pop(queue)
        self._tree.give(queue, usage)
        return workload

    def fits_without_kept(self, workload: Workload, are_left_out: Callable[[str], bool]) -> bool:
        """Whether a workload would fit if nothing were kept for these queues."""
        out = [(queue, usage) for queue, (_, usage) in self._kept.items() if are_left_out(queue)]
        for queue, usage in out:
            self._tree.give(queue, usage)
        fits = bool(out) and self._tree.fits(workload.queue, workload.usage)
        for queue, usage in out:
            self._tree.take(queue, usage)
        return fits

    def fits_already(self, workload: Workload) -> bool:
        """Whether a workload fits while those who leave are still there, and those who are promised their quota are not."""
        self.undo()
        fits = self._tree.fits(workload.queue, workload.usage)
        for other in self.leaving.values():
            self._tree.give(other.queue, other.usage)
        for other in self._booked:
            self._tree.take(other.queue, other.usage)
        for queue, (_, usage) in self._kept.items():
            self._tree.take(queue, usage)
        return fits

    def undo(self) -> None:
        """Put the tree back to what it is now."""
        for queue, (_, usage) in self._kept.items():
            self._tree.give(queue, usage)
        for workload in self._booked:
            self._tree.give(workload.queue, workload.usage)
        for workload in self.leaving.values():
            self._tree.take(workload.queue, workload.usage)


def shape_of(workload: Workload, *, alone: bool = False) -> Shape:
    """What workloads of a queue have in common that fit or do not fit alike; one that is alone shares it with nobody."""
    return workload.priority, tuple(sorted(workload.usage.items())), workload.uid if alone else ""


class _TurnsByLevel:
    """Heads of queues by how far up they borrow. A level only rises during a pass, so it is looked at when its turn comes."""

    def __init__(self, lines: Mapping[str, WorkloadLine], queues: Iterable[CohortNode]) -> None:
        self._lines = lines
        self._heap: list[tuple[Turn, CohortNode]] = []
        for node in queues:
            self.moved(node)

    def next(self) -> Workload | None:
        while self._heap:
            turn, node = heappop(self._heap)
            workload = self._lines[node.name].head()
            if workload is None:
                continue
            fresh = _turn(node, workload)
            if fresh > turn:
                heappush(self._heap, (fresh, node))
                continue
            return workload
        return None

    def moved(self, node: CohortNode) -> None:
        """A queue's head is another one now."""
        workload = self._lines[node.name].head()
        if workload is not None:
            heappush(self._heap, (_turn(node, workload), node))


def _turn(node: CohortNode, workload: Workload) -> Turn:
    level = 0
    for thing, amount in workload.usage.items():
        if node.borrows_with(thing, amount):
            level = max(level, borrow_level(node, thing, amount)[0])
    return level, -workload.priority, workload.since, workload.uid


class _TurnsByShare:
    """A tournament: each cohort sends the best that its members offer. A decision changes the path to the root alone."""

    def __init__(self, lines: Mapping[str, WorkloadLine], queues: Iterable[CohortNode]) -> None:
        self._lines = lines
        self._offers: dict[str, dict[str, tuple[Turn, CohortNode]]] = {}
        """By cohort and member, the offer with the queue that it comes from."""

        self._alone: dict[str, CohortNode] = {}
        """Queues, and roots of trees, that have somebody to offer."""

        for node in queues:
            self.moved(node)

    def next(self) -> Workload | None:
        while self._alone:
            name, node = next(iter(self._alone.items()))
            queue = self._winner(node)
            workload = self._lines[queue.name].head() if queue is not None else None
            if workload is not None:
                return workload
            del self._alone[name]
        return None

    def moved(self, node: CohortNode) -> None:
        """A queue's head is another one now, or what it holds has changed."""
        below = node
        for cohort in node.above():
            offers = self._offers.setdefault(cohort.name, {})
            queue = self._winner(below)
            if queue is None:
                offers.pop(below.name, None)
            else:
                offers[below.name] = self._turn(below, queue), queue
            below = cohort
        self._alone[below.name] = below

    def _winner(self, node: CohortNode) -> CohortNode | None:
        """The queue whose head is the best offer of a member."""
        if node.is_queue:
            return node if self._lines[node.name].head() is not None else None
        offers = self._offers.get(node.name)
        return min(offers.values(), key=_first)[1] if offers else None

    def _turn(self, member: CohortNode, queue: CohortNode) -> Turn:
        workload = self._lines[queue.name].head()
        assert workload is not None, "a queue offers its head"
        charge = next(usage for node, usage in climbing(queue, workload.usage) if node is member)
        borrows = any(member.borrows_with(thing, charge.get(thing, 0)) for thing in workload.usage)
        return borrows, share_of(member, charge), -workload.priority, workload.since, workload.uid


def _first(offer: tuple[Turn, CohortNode]) -> Turn:
    return offer[0]
