"""The hot loops over node columns, in two forms that give equal answers to the bit.

`twin.py` is plain NumPy: the oracle in tests, and what runs while nothing is compiled. `compiled.py` is numba, which
takes seconds to compile once and a third of a second to import; the scheduler has a child process compile it, then
calls `use_compiled`.
"""

from types import ModuleType
from typing import Any, Protocol, cast

from hekla.placement.kernels import twin

BLOCK = twin.BLOCK
SCALE = twin.SCALE
NOT_ASKED = twin.NOT_ASKED


class Kernels(Protocol):
    """What both forms offer. Arguments are described in `twin.py`."""

    def take(self, *args: Any) -> None:
        """Change the amounts in use on one row."""

    def place_one(self, *args: Any) -> int:
        """Score every row, take the best; its row or -1."""

    def score(self, *args: Any) -> None:
        """Score every row."""

    def best(self, *args: Any) -> int:
        """The row of the best score, ties by rank; -1 if none is feasible."""

    def build(self, *args: Any) -> None:
        """Score every row and index the blocks."""

    def repair(self, *args: Any) -> None:
        """Score again the rows that a log names."""

    def place_run(self, *args: Any) -> int:
        """Place many equal pods; how many found a row."""

    def gradients(self, *args: Any) -> None:
        """By how much a pod would fragment the GPUs of each node."""

    def place_stream(self, *args: Any) -> tuple[int, int, int]:
        """Place items of many classes in turn, each whole or not at all, up to the first that does not fit."""


_active = cast(Kernels, twin)


def active() -> Kernels:
    """The form in use."""
    return _active


def use(kernels: ModuleType) -> None:
    """Use this form from now on. Both give equal answers, so the change needs no care."""
    global _active
    _active = cast(Kernels, kernels)


def use_compiled() -> bool:
    """Use the compiled form if it can be had; whether it could. Quick if it was compiled before, else seconds."""
    try:
        from hekla.placement.kernels import compiled
    except ImportError:
        return False
    use(compiled)
    return True
