"""Follow an engine's numbered messages without a gap: what to apply, what to ask for again, when to give up and begin anew.

ZeroMQ drops silently when a subscriber is slow or late. Each publisher numbers its messages from 0, keeps the last ten thousand
and sends them again on request. While a gap is being filled, what comes after waits here, in bounds. The shell (the feed) has the
sockets; this has the rules.
"""

from collections import OrderedDict
from dataclasses import dataclass

MOST_WAITING = 4096
"""Messages that wait behind a gap; beyond, the gap is given up."""
MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Of all of them; likewise."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Take this payload in."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for the messages from this number on."""

    start: int


@dataclass(frozen=True, slots=True)
class Forget:
    """What is known of this publisher is not so any more."""

    reason: str


Step = Apply | Ask | Forget


class Following:
    """One publisher's messages."""

    def __init__(self) -> None:
        self.next: int | None = None
        """The number that comes next; None: nothing was heard."""
        self.lost = 0
        """Messages that nobody could send again."""
        self._waiting: OrderedDict[int, bytes] = OrderedDict()
        self._waiting_bytes = 0
        self._is_asking = False
        self._last_live = -1

    def received(self, number: int, payload: bytes) -> list[Step]:
        """A message arrived, live; those of one process only go up."""
        if number <= self._last_live:
            return [*self._restarted(number), *self.received(number, payload)]
        self._last_live = number
        if self.next is None:
            self.next = 0  # whoever comes late asks for all that there was
        if number == self.next and not self._waiting:
            return self._in_turn(number, payload)
        return self._behind_a_gap(number, payload) if number >= self.next else []

    def replayed(self, number: int, payload: bytes) -> list[Step]:
        """A message arrived that was asked for; what is known already is passed over."""
        if self.next is None or number < self.next:
            return []
        if number > self.next:  # what lies between is not kept any more
            return [*self._give_up_until(number), *self.replayed(number, payload)]
        return [*self._in_turn(number, payload), *self._drain()]

    def replay_ended(self) -> list[Step]:
        """All that could be sent again was sent; a gap that is left stays for ever. Also called when the request failed."""
        self._is_asking = False
        if not self._waiting:
            return []
        return [*self._give_up_until(next(iter(self._waiting))), *self._drain()]

    def disconnected(self) -> list[Step]:
        """The publisher is gone; another incarnation of it begins from nothing."""
        was_known = self.next is not None
        self._begin_anew()
        return [Forget("the publisher is gone")] if was_known else []

    def _in_turn(self, number: int, payload: bytes) -> list[Step]:
        self.next = number + 1
        return [Apply(payload)]

    def _restarted(self, number: int) -> list[Step]:
        """Numbers went back: another process publishes, whose cache began empty."""
        self._begin_anew()
        return [Forget(f"message numbers went back to {number}")]

    def _begin_anew(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._is_asking = False
        self._last_live = -1
        self.next = None

    def _behind_a_gap(self, number: int, payload: bytes) -> list[Step]:
        self._waiting[number] = payload
        self._waiting_bytes += len(payload)
        assert self.next is not None
        if len(self._waiting) > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            return self.replay_ended()
        if self._is_asking:
            return []
        self._is_asking = True
        return [Ask(self.next)]

    def _give_up_until(self, number: int) -> list[Step]:
        """Blocks may have been removed in what is lost, so all that was known is doubtful."""
        assert self.next is not None
        lost, self.next = number - self.next, number
        self.lost += lost
        return [Forget(f"{lost} messages are lost")] if lost else []

    def _drain(self) -> list[Step]:
        steps: list[Step] = []
        while self.next is not None and self.next in self._waiting:
            payload = self._waiting.pop(self.next)
            self._waiting_bytes -= len(payload)
            steps += self._in_turn(self.next, payload)
        return steps
