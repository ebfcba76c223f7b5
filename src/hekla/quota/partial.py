"""Fewer pods rather than none: the largest part of a workload, not below its minimums, that is let in.

    count(i) = full(i) - room(i) * k // sum of rooms        room(i) = full(i) - least(i), k from 0 up

The smallest k that fits is found by halving, so whoever asks must find a smaller part no harder to fit.
"""

from collections.abc import Callable, Sequence


def largest_part(
    full: Sequence[int], least: Sequence[int], fits: Callable[[Sequence[int]], bool]
) -> Sequence[int] | None:  # fmt: skip
    """Counts by pod set, as close to full as fits; None if not even the least does, or nothing can be given up."""
    rooms = [most - few for most, few in zip(full, least, strict=True)]
    total = sum(rooms)
    if total <= 0 or not fits(_counts(full, rooms, total, total)):
        return None
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if fits(_counts(full, rooms, total, middle)):
            high = middle
        else:
            low = middle + 1
    return _counts(full, rooms, total, low)


def _counts(full: Sequence[int], rooms: Sequence[int], total: int, step: int) -> Sequence[int]:
    return [most - room * step // total for most, room in zip(full, rooms, strict=True)]
