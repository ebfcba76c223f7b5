"""What queues hold, ask for and have been promised: running totals, kept with every change of a task's status.

`Job` posts here when a task moves; quota plug-ins and the queues' status read. Whatever is taken back is posted back,
so a discarded attempt leaves no trace. Where queues form a tree, what a queue does is posted to all queues above it too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

Amounts = Mapping[str, int]


class Account:
    """The totals of one queue, by resource."""

    __slots__ = ("asked", "firm", "held")

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        """By tasks that are placed."""

        self.asked: Counter[str] = Counter()
        """By tasks that are placed or wait."""

        self.firm: Counter[str] = Counter()
        """The part of `held` that belongs to the jobs' minimums; what goes beyond is elastic."""

    def post(self, request: Amounts, asked: int, held: int) -> None:
        """So many more tasks with this request ask, and hold."""
        if asked:
            totals = self.asked
            for name, amount in request.items():
                totals[name] += amount * asked
        if held:
            totals = self.held
            for name, amount in request.items():
                totals[name] += amount * held


class Ledger:
    """The accounts of all queues that own jobs, or did."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.changes = 0
        """Grows with every change of what is held."""

        self.eases = 0
        """Grows whenever somebody stops asking: others may then deserve more."""

        self.parents: Mapping[str, str] = {}
        """Each queue's queue above; empty where queues are not taken as a tree."""

    def of(self, queue: str) -> Account:
        """A queue's account."""
        account = self.accounts.get(queue)
        if account is None:
            account = self.accounts[queue] = Account()
        return account

    def chain(self, queue: str) -> tuple[Account, ...]:
        """The accounts that a queue's jobs post to: its own, then those above; a ring is cut where it closes."""
        if not queue:
            return ()
        names = [queue]
        while (above := self.parents.get(names[-1], "")) and above not in names:
            names.append(above)
        return tuple(self.of(name) for name in names)

    def open_anew(self, parents: Mapping[str, str]) -> None:
        """Start over with another tree; the caller has all jobs post again."""
        self.parents = dict(parents)
        self.accounts.clear()

    def names(self) -> Iterable[str]:
        """Queues that have an account."""
        return self.accounts.keys()
