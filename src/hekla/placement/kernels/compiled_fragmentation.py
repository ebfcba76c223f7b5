# mypy: disable-error-code="no-untyped-def"
# numba types what it compiles; annotations would be ignored.
"""The compiled form of `fragmentation.py`: the same answers, at about a microsecond per node."""

import numba
import numpy as np
from numba import int32, int64

_WHOLE = np.int64(1000)
_ROWS = int64[::1]


@numba.njit(inline="always")
def _lost(cpu, rest, devices, models, kind_cpu, kind_gpus, kind_milli, kind_models, kind_share):
    total = np.int64(0)
    for d in range(devices):
        total += max(rest[d], np.int64(0))
    lost = np.int64(0)
    for k in range(kind_cpu.shape[0]):
        may = kind_models[k] == 0 or (models & kind_models[k]) != 0
        if kind_gpus[k] == 0 or cpu < kind_cpu[k] or not may:
            lost += kind_share[k] * total
            continue
        roomy, small = np.int64(0), np.int64(0)
        for d in range(devices):
            if rest[d] >= kind_milli[k]:
                roomy += 1
            else:
                small += max(rest[d], np.int64(0))
        lost += kind_share[k] * (small if roomy >= kind_gpus[k] else total)
    return lost


@numba.njit([numba.void(
    _ROWS, int64[:, ::1], _ROWS, int64, int64, _ROWS, _ROWS, _ROWS, _ROWS, _ROWS, _ROWS, int32[::1],
)], cache=True)  # fmt: skip
def gradients(
    cpu, left, models, asked_cpu, asked_milli, kind_cpu, kind_gpus, kind_milli, kind_models, kind_share, growth, device
):
    """See `fragmentation.gradients`."""
    devices = left.shape[0]
    rest = np.empty(devices, np.int64)
    for row in range(cpu.shape[0]):
        growth[row], device[row] = 0, -1
        for d in range(devices):
            rest[d] = left[d, row]
        free, mask = cpu[row], models[row]
        before = _lost(free, rest, devices, mask, kind_cpu, kind_gpus, kind_milli, kind_models, kind_share)
        if 0 < asked_milli < _WHOLE:
            for d in range(devices):
                seen = False
                for e in range(d):
                    seen = seen or left[e, row] == left[d, row]  # an equal GPU before it grows it as much
                if seen or left[d, row] < asked_milli:
                    continue
                rest[d] -= asked_milli
                grown = _lost(
                    free - asked_cpu, rest, devices, mask, kind_cpu, kind_gpus, kind_milli, kind_models, kind_share
                )
                rest[d] += asked_milli
                if device[row] < 0 or grown - before < growth[row]:
                    growth[row], device[row] = grown - before, d
            continue
        wanted = asked_milli // _WHOLE
        for d in range(devices):
            if wanted > 0 and rest[d] == _WHOLE:
                rest[d] = 0
                wanted -= 1
        if wanted == 0:
            after = _lost(
                free - asked_cpu, rest, devices, mask, kind_cpu, kind_gpus, kind_milli, kind_models, kind_share
            )
            growth[row] = after - before
