"""How placing a pod would fragment the GPUs of nodes, the plain form; `compiled_fragmentation.py` gives equal answers.

A workload is a mix of kinds of pods, as arrays by kind: cpu, number of GPUs, thousandths of each, a mask of the GPU
models it may use (0: any), and its share of the mix in millionths. What is left of a node's GPUs is lost for a kind
as far as that kind cannot use it:

    all that is left, if the kind asks for no GPU, lacks cpu, may not use the model, or finds too few GPUs with room
    else what is left on the GPUs that have no room for it

    fragmentation(node) = sum over kinds of share * what is lost

All in integers, so that both forms agree to the bit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WHOLE = 1000
_NONE = np.int64(1) << 60


def gradients(
    cpu: Array, left: Array, models: Array, asked_cpu: int, asked_milli: int,
    kind_cpu: Array, kind_gpus: Array, kind_milli: Array, kind_models: Array, kind_share: Array,
    growth: Array, device: Array,
) -> None:  # fmt: skip
    """By how much fragmentation would grow on each node, and which GPU makes it grow least for a part of one (else -1).

    `left` is [device, node], the rest by node or by kind; nodes without room get 0 and -1.
    """
    kinds = (kind_cpu, kind_gpus, kind_milli, kind_models, kind_share)
    before = lost(cpu, left, models, kinds)
    growth[:], device[:] = 0, -1
    if 0 < asked_milli < WHOLE:
        best = np.full(len(cpu), _NONE)
        for number in range(left.shape[0]):
            after = left.copy()
            after[number] -= asked_milli
            grown = lost(cpu - asked_cpu, after, models, kinds) - before
            is_better = (left[number] >= asked_milli) & (grown < best)
            best[is_better], device[is_better] = grown[is_better], number
        growth[device >= 0] = best[device >= 0]
    else:
        after, wanted = left.copy(), np.full(len(cpu), asked_milli // WHOLE)
        for number in range(left.shape[0]):
            taken = (left[number] == WHOLE) & (wanted > 0)
            after[number, taken] = 0
            wanted -= taken
        growth[:] = np.where(wanted > 0, 0, lost(cpu - asked_cpu, after, models, kinds) - before)


def lost(cpu: Array, left: Array, models: Array, kinds: tuple[Array, ...]) -> Array:
    """The fragmentation of each node, in millionths of thousandths of a GPU."""
    rest = np.maximum(left, 0)
    total, amount = rest.sum(axis=0), np.zeros(len(cpu), np.int64)
    for need_cpu, gpus, milli, model_mask, share in zip(*kinds, strict=True):
        has_room = rest >= milli
        can = (gpus > 0) & (cpu >= need_cpu) & ((model_mask == 0) | ((models & model_mask) != 0))
        can = can & (has_room.sum(axis=0) >= gpus)
        amount += share * np.where(can, np.where(has_room, 0, rest).sum(axis=0), total)
    return amount
