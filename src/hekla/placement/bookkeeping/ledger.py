"""What queues hold, ask for and have been promised: running totals, kept with every change of a task's status.

`Job` posts here when a task moves; quota plug-ins and the queues' status read. Whatever is taken back is posted back,
so a discarded attempt leaves no trace. Where queues form a tree, what a queue does is posted to all queues above it too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hekla.quota.decay import had_by, span_us

Amounts = Mapping[str, int]


class Account:
    """The totals of one queue, by resource."""

    __slots__ = ("asked", "clock", "firm", "had", "held", "known_us", "noted_us")

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        """By tasks that are placed."""

        self.asked: Counter[str] = Counter()
        """By tasks that are placed or wait."""

        self.firm: Counter[str] = Counter()
        """The part of `held` that belongs to the jobs' minimums; what goes beyond is elastic."""

        self.clock: LedgerClock | None = None
        self.had: Mapping[str, int] = {}
        """What it had until `noted_us`, in amount-microseconds, where the ledger keeps the past; it holds `held` since."""

        self.noted_us = 0
        self.known_us = 0
        """Until when the past is known from before we were started."""

    def post(self, request: Amounts, asked: int, held: int) -> None:
        """So many more tasks with this request ask, and hold."""
        if held and self.clock is not None and self.clock.now_us > self.noted_us:
            self.note(self.clock)  # before it changes, what was held until now is written down
        if asked:
            totals = self.asked
            for name, amount in request.items():
                totals[name] += amount * asked
        if held:
            totals = self.held
            for name, amount in request.items():
                totals[name] += amount * held

    # The past

    def note(self, clock: "LedgerClock") -> None:
        """Write down what was had until now."""
        self.had = self.had_by(clock.now_us)
        self.noted_us = clock.now_us

    def had_by(self, now_us: int) -> Mapping[str, int]:
        """What it had until then, in amount-microseconds, the longer ago the less."""
        if self.clock is None:
            return {}
        return had_by(self.had, self.held, now_us - self.noted_us, self.clock.half_life_us)

    def credit(self, request: Amounts, since_us: int) -> None:
        """A task that comes to our knowledge now has held this since then."""
        if self.clock is None or since_us >= self.clock.now_us:
            return
        self.note(self.clock)
        span = span_us(self.clock.now_us - max(since_us, self.known_us), self.clock.half_life_us)
        self.had = {
            name: self.had.get(name, 0) + request.get(name, 0) * span for name in self.had.keys() | request.keys()
        }


class LedgerClock:
    """The time of day as the ledger was last told it, and how fast it forgets."""

    __slots__ = ("half_life_us", "now_us", "since_us")

    def __init__(self, half_life_us: int) -> None:
        self.half_life_us = half_life_us
        self.now_us = 0
        self.since_us = 0
        """When it was first told: what happened before, somebody else has seen."""


class Ledger:
    """The accounts of all queues that own jobs, or did."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._chains: dict[str, tuple[Account, ...]] = {}
        """By queue, what `chain` found: each of two hundred thousand lone pods asks for its own."""

        self.changes = 0
        """Grows with every change of what is held."""

        self.eases = 0
        """Grows whenever somebody stops asking: others may then deserve more."""

        self.clock: LedgerClock | None = None
        """Where somebody asks for the past; None spares the writing."""

        self.parents: Mapping[str, str] = {}
        """Each queue's queue above; empty where queues are not taken as a tree."""

    def of(self, queue: str) -> Account:
        """A queue's account."""
        account = self.accounts.get(queue)
        if account is None:
            account = self.accounts[queue] = Account()
            account.clock = self.clock
            account.noted_us = self.clock.now_us if self.clock is not None else 0
        return account

    def keep_past(self, half_life_s: float | None) -> None:
        """Write down from now on what queues had, with this half life; None to stop."""
        if half_life_s is None:
            self.clock = None
        elif self.clock is None:
            self.clock = LedgerClock(round(half_life_s * 1e6))
        else:
            self.clock.half_life_us = round(half_life_s * 1e6)
        for account in self.accounts.values():
            account.clock = self.clock

    def tell_time(self, wall_s: float) -> None:
        """What happens next, happens at this time of day; time never goes back."""
        if self.clock is not None:
            self.clock.now_us = max(self.clock.now_us, round(wall_s * 1e6))
            self.clock.since_us = self.clock.since_us or self.clock.now_us

    def bring_past(self, queue: str, had: Amounts, at_us: int) -> None:
        """What a queue had by a moment, from the time before we were started; known once, it is not taken over again."""
        account = self.of(queue)
        if self.clock is None or account.known_us or not 0 < at_us < self.clock.since_us:
            return
        account.note(self.clock)
        before = had_by(had, {}, self.clock.now_us - at_us, self.clock.half_life_us)
        account.had = {
            name: account.had.get(name, 0) + before.get(name, 0) for name in account.had.keys() | before.keys()
        }
        account.known_us = at_us

    def chain(self, queue: str) -> tuple[Account, ...]:
        """The accounts that a queue's jobs post to: its own, then those above."""
        chain = self._chains.get(queue)
        if chain is None:
            chain = self._chains[queue] = tuple(self.of(name) for name in self.line(queue))
        return chain

    def line(self, queue: str) -> Sequence[str]:
        """A queue and those above it, by name; a ring is cut where it closes."""
        names = [queue] if queue else []
        while names and (above := self.parents.get(names[-1], "")) and above not in names:
            names.append(above)
        return names

    def post(self, queue: str, sums: Amounts, sign: int) -> None:
        """So much more is held, or less, by jobs of a queue whose totals were added up beforehand."""
        self.changes += 1
        for account in self.chain(queue):
            account.post(sums, 0, sign)

    def open_anew(self, parents: Mapping[str, str]) -> None:
        """Start over with another tree; the caller has all jobs post again."""
        self.parents = dict(parents)
        before = dict(self.accounts)
        self.accounts.clear()
        self._chains.clear()
        for name, account in before.items():
            if self.clock is None:
                break
            account.note(self.clock)
            fresh = self.of(name)
            fresh.had, fresh.noted_us, fresh.known_us = account.had, account.noted_us, account.known_us

    def names(self) -> Iterable[str]:
        """Queues that have an account."""
        return self.accounts.keys()
