"""Who had less in the past goes first: use over time, the longer ago the less, by weight.

    had(queue)  = integral of what it held, halved with every half life (`quota/decay.py`), in amount-seconds
    order       the smaller  max over resources of (had + held * ahead) / (what the cluster has) / weight

Other orders look at this moment alone: a queue that had the cluster all week and one that had nothing are equal when both
hold nothing. `ahead` counts what a queue holds now as if it was held so much longer, so that in one cycle queues take
turns too. The past lives in the ledger; after a restart it is what running pods have held since they started, and what
was written to the queue's annotation before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Self

from hekla.placement.framework import Key, plugin
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.registry import as_seconds_from_0
from hekla.placement.session import Session
from hekla.quota.amounts import PODS
from hekla.quota.fairness import quotient

WEEK_S, FIVE_MINUTES_S = 604_800.0, 300.0


@plugin
@dataclass(frozen=True, kw_only=True)
class FairShare:
    """Orders queues by what they had."""

    half_life_s: float = WEEK_S
    """After how long what was had counts half; 0: nothing is ever forgotten."""

    ahead_s: float = FIVE_MINUTES_S
    """For how much longer what is held now counts."""

    reads_accounts = True
    """Asked by `queueing/lookahead.py`: what it says of a queue's turn follows from the accounts of queues."""

    def open(self, session: Session) -> Mapping[str, int]:
        """What the cluster has."""
        return session.cluster.nodes.totals()

    def queue_key(self, session: Session, queue: Queue) -> Key:
        """The dominant share of what it had."""
        shares = (quotient(had, whole) for had, whole in self._had(session, queue).values())
        return (max(shares, default=0.0),)

    def queue_keys(self, session: Session, queue: Queue, growth: ProjectedUse) -> Sequence[Iterable[Any]]:
        """The same as it will hold more and more."""
        ahead_us, uses = self._ahead_us, list[Iterable[float]]()
        for name, (had, whole) in self._had(session, queue).items():
            more = growth.more[name].tolist() if name in growth.more else [0] * growth.count
            uses.append([quotient(had + part * ahead_us, whole) for part in more])
        return (map(max, *uses) if len(uses) > 1 else uses[0] if uses else repeat(0.0),)

    @property
    def _ahead_us(self) -> int:
        return round(self.ahead_s * 1e6)

    def _had(self, session: Session, queue: Queue) -> Mapping[str, tuple[int, int]]:
        """(What it had, and has for a while ahead, in amount-microseconds; what counts as all) by resource."""
        ledger, total = session.cluster.ledger, session.opened(self)
        account = ledger.of(queue.name)
        had, weight = account.had_by(ledger.clock.now_us if ledger.clock else 0), max(queue.weight, 1)
        return {
            name: (had.get(name, 0) + account.held[name] * self._ahead_us, whole * weight)
            for name, whole in total.items()
            if name != PODS
        }

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From `halfLife` and `ahead`, durations like `168h` and `5m`."""
        keys = {"half_life_s": "halfLife", "ahead_s": "ahead"}
        told = {name: value for name, key in keys.items() if (value := arguments.get(key)) is not None}
        return cls(**{name: as_seconds_from_0(keys[name], value) for name, value in told.items()})
