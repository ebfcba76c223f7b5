"""What is left of each GPU: a part of a GPU fits on one of them, and whole GPUs are taken from those that are free.

A node that offers 8,000 of `hekla.dev/gpu-milli` has eight GPUs. A pod that asks for 300 gets 0.3 of one; one that asks
for 2,000 gets two that nobody else uses. The sum over a node stays an amount like any other, in the columns beside; this
table adds what a sum cannot tell: eight halves are no whole GPU.

MIG profiles, memory limits and the count `nvidia.com/gpu` belong to the device model, which will own this table.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GPU_MILLI = "hekla.dev/gpu-milli"
"""Thousandths of a GPU."""

WHOLE = 1000
_MOST_DEVICES = 64
"""More GPUs than a node has; a node that claims more shares no more than these."""


class DeviceShares:
    """The GPUs of all nodes. Rows are those of `Nodes`."""

    __slots__ = ("counts", "held", "left")

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)  # [node]
        self.held: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [device, node] milli
        self.left: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [device, node] milli; 0 where there is no device

    def put(self, row: int, milli: int, rows: int) -> None:
        """Let a node have so many thousandths of GPUs; what is left over beyond whole GPUs is no device."""
        count = min(milli // WHOLE, _MOST_DEVICES)
        if not count and not len(self.counts):
            return  # a cluster whose GPUs are never shared pays nothing
        self._grow(max(count, self.held.shape[0]), max(rows, len(self.counts)))
        self.counts[row] = count
        self.left[:, row] = np.where(np.arange(self.left.shape[0]) < count, WHOLE, 0) - self.held[:, row]

    def fits(self, milli: int, rows: int) -> NDArray[np.bool_]:
        """Which nodes have the devices for a request.  # [node]"""
        return self.slots(milli, rows) > 0

    def slots(self, milli: int, rows: int) -> NDArray[np.int64]:
        """How many equal requests each node has the devices for.  # [node]"""
        found = np.zeros(rows, np.int64)
        if is_even(milli) and len(self.counts):
            left = np.maximum(self.left, 0)
            told = (left // milli).sum(axis=0) if milli < WHOLE else (left == WHOLE).sum(axis=0) // (milli // WHOLE)
            found[: len(told)] = told
        return found

    def fullest(self, row: int, milli: int) -> tuple[int, ...]:
        """The devices that a pod gets on a node if nobody knows better: the fullest that has room, or the first that are free.

        A pod that is there already and should not fit gets the devices with the most left: the books tell what is so.
        """
        if row >= len(self.counts) or not self.counts[row]:
            return ()
        left: list[int] = self.left[: self.counts[row], row].tolist()
        number = devices_of(milli)
        if number > 1 or milli >= WHOLE:
            return tuple(sorted(range(len(left)), key=lambda device: (-left[device], device))[:number])
        roomy = [device for device, rest in enumerate(left) if rest >= milli]
        if not roomy:
            return (max(range(len(left)), key=lambda device: left[device]),)
        return (min(roomy, key=lambda device: (left[device], device)),)

    def take(self, row: int, devices: Sequence[int], milli: int) -> None:
        """Put a request to use on devices of a node, in equal parts."""
        self._change(row, devices, milli)

    def give(self, row: int, devices: Sequence[int], milli: int) -> None:
        """Give back what was taken."""
        self._change(row, devices, -milli)

    def _change(self, row: int, devices: Sequence[int], milli: int) -> None:
        for device in devices:
            self.held[device, row] += milli // len(devices)
            self.left[device, row] -= milli // len(devices)

    def _grow(self, devices: int, rows: int) -> None:
        if (devices, rows) == self.held.shape:
            return
        counts, held, left = self.counts, self.held, self.left
        self.counts, self.held, self.left = (
            np.zeros(rows, np.int64), np.zeros((devices, rows), np.int64), np.zeros((devices, rows), np.int64)
        )  # fmt: skip
        self.counts[: len(counts)] = counts
        self.held[: held.shape[0], : held.shape[1]] = held
        self.left[: left.shape[0], : left.shape[1]] = left


def is_even(milli: int) -> bool:
    """Whether a request is a part of one GPU, or whole GPUs: nothing between can be granted."""
    return 0 < milli < WHOLE or (milli > 0 and milli % WHOLE == 0)


def devices_of(milli: int) -> int:
    """How many devices a request takes."""
    return -(-milli // WHOLE)
