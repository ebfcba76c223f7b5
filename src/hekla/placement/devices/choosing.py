"""Which devices a pod's claims get on one node: the first ones that answer all requests and agree with one another.

Requests are answered in turn, each by the first of its choices for which all that follow can be answered too; what was
picked is taken back where that fails. The devices of a request are picked in ascending order, since it makes no difference
which of them came first. The search gives up after so many steps that no claim of sane size is concerned, so that no
tenant's claim can hold up a cluster.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hekla.placement.constraint import Effect
from hekla.placement.devices.claims import Choice, ClaimRequest, CounterId, Device, DeviceClaim, DeviceId, Grant, Match

MOST_STEPS = 20_000
"""Devices that are tried for one node."""

MOST_DEVICES = 32
"""Devices that one claim may have, as Kubernetes has it."""


def choose(
    claims: Sequence[DeviceClaim], within_reach: Sequence[Device], *, taken: Callable[[DeviceId], bool],
    left: Mapping[CounterId, int], picks: Callable[[Choice, Device], bool],
) -> tuple[tuple[Grant, ...], ...] | None:  # fmt: skip
    """What each claim is granted; None if they cannot all be answered with what is free."""
    search = _Search(claims, within_reach, taken, left, picks)
    return search.granted() if search.answer(0) else None


def tolerates(choice: Choice, device: Device) -> bool:
    """Whether a device's taints keep nobody away, or not those who choose so."""
    return all(
        taint.effect is Effect.PREFER_NO_SCHEDULE or any(one.tolerates(taint) for one in choice.tolerations)
        for taint in device.taints
    )


class _Search:
    def __init__(
        self, claims: Sequence[DeviceClaim], within_reach: Sequence[Device], taken: Callable[[DeviceId], bool],
        left: Mapping[CounterId, int], picks: Callable[[Choice, Device], bool],
    ) -> None:  # fmt: skip
        self._claims, self._within_reach = claims, within_reach
        self._taken, self._left, self._picks = taken, left, picks
        self._turns = [(number, request) for number, claim in enumerate(claims) for request in claim.requests]
        self._picked: list[list[tuple[ClaimRequest, Choice, Device]]] = [[] for _ in claims]
        self._own: set[DeviceId] = set()
        self._spent: Counter[CounterId] = Counter()
        self._steps = 0

    def granted(self) -> tuple[tuple[Grant, ...], ...]:
        return tuple(
            tuple(Grant(choice.label, device.id, choice.is_admin) for _, choice, device in picked)
            for picked in self._picked
        )

    def answer(self, turn: int) -> bool:
        """Whether this request and all after it can be answered."""
        if turn == len(self._turns):
            return True
        return any(self._choose(turn, choice) for choice in self._turns[turn][1].choices)

    def _choose(self, turn: int, choice: Choice) -> bool:
        meant = [device for device in self._within_reach if self._picks(choice, device)]
        count = len(meant) if choice.takes_all else choice.count
        if not meant or count > MOST_DEVICES - len(self._picked[self._turns[turn][0]]):
            return False
        return self._fill(turn, choice, meant, 0, count)

    def _fill(self, turn: int, choice: Choice, meant: Sequence[Device], start: int, missing: int) -> bool:
        if not missing:
            return self.answer(turn + 1)
        for at in range(start, len(meant) - missing + 1):
            self._steps += 1
            if self._steps > MOST_STEPS:
                return False
            if self._is_free(turn, choice, meant[at]):
                self._take(turn, choice, meant[at])
                if self._fill(turn, choice, meant, at + 1, missing - 1):
                    return True
                self._give_back(turn)
        return False

    def _is_free(self, turn: int, choice: Choice, device: Device) -> bool:
        number, request = self._turns[turn]
        if not choice.is_admin:
            if device.id in self._own or self._taken(device.id):
                return False
            if any(self._left.get(one, 0) - self._spent[one] < amount for one, amount in device.consumes):
                return False
        return all(
            self._agrees(match, number, device)
            for match in self._claims[number].matches
            if match.is_about(request.name, choice.label)
        )

    def _agrees(self, match: Match, number: int, device: Device) -> bool:
        value = device.attributes.get(match.attribute)
        if value is None:
            return False
        others = (
            other.attributes[match.attribute]
            for request, choice, other in self._picked[number]
            if match.is_about(request.name, choice.label)
        )
        return all(_is_same(value, other) != match.is_distinct for other in others)

    def _take(self, turn: int, choice: Choice, device: Device) -> None:
        number, request = self._turns[turn]
        self._picked[number].append((request, choice, device))
        if not choice.is_admin:
            self._own.add(device.id)
            self._spent.update(dict(device.consumes))

    def _give_back(self, turn: int) -> None:
        _, choice, device = self._picked[self._turns[turn][0]].pop()
        if not choice.is_admin:
            self._own.discard(device.id)
            self._spent.subtract(dict(device.consumes))


def _is_same(one: bool | int | str, other: bool | int | str) -> bool:
    return type(one) is type(other) and one == other  # True is 1 to Python, but not to a driver
