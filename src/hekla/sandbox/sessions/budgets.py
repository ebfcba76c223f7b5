"""What a session may use before it stands still: read from `hekla.dev/budget`, compared with what it has used. Pure; `metering.py` acts.

    hekla.dev/budget: cpu=1h, awake=8h, network=2Gi, storage=500Mi, memory=4Gi

`cpu` is processor time, `awake` the time in which it did not stand still, `network` bytes both ways through the broker, `storage`
files that it has at one time, `memory` what it takes times hours: `4Gi` is four gibibytes for an hour, or one for four. A session has
the budget of its object and one of its owner's; the smaller of each holds, so that an owner can lower what an operator set, not raise it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from hekla.api.agents.node_contract import Usage
from hekla.lib import quantity
from hekla.lib.go_duration import DurationError, parse_duration, write_duration

_HOUR_S: Final = 3600.0
_USED: Final[Mapping[str, Callable[[Usage], float]]] = {
    "cpu": lambda usage: usage.cpu_us / 1e6,
    "awake": lambda usage: usage.wall_s - usage.frozen_s,
    "network": lambda usage: usage.network_sent_bytes + usage.network_received_bytes,
    "storage": lambda usage: usage.storage_bytes,
    "memory": lambda usage: usage.memory_byte_s / _HOUR_S,
}
_TIMES: Final = frozenset({"cpu", "awake"})
_WORDS: Final = {
    "cpu": "of processor time", "awake": "awake", "network": "through the network", "storage": "in files", "memory": "of memory for an hour",
}  # fmt: skip

Budget = dict[str, float]
"""How much by what: seconds, or bytes (of memory, bytes for an hour). What is not named has no bound."""


class BudgetError(ValueError):
    """A budget that makes no sense; the sentence says why."""


def read_budget(text: str) -> Budget:
    """A budget as `hekla.dev/budget` writes it; empty: none."""
    found: Budget = {}
    for part in (one.strip() for one in text.split(",") if one.strip()):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _USED:
            raise BudgetError(f'"{part[:64]}" is not one of {", ".join(_USED)} with = and an amount')
        if name in found:
            raise BudgetError(f'"{name}" is named twice; name it once')
        found[name] = _amount(name, amount)
    return found


def _amount(name: str, text: str) -> float:
    try:
        amount = parse_duration(text).total_seconds() if name in _TIMES else float(quantity.to_int(text))
    except (DurationError, quantity.QuantityError):
        wanted = 'a duration such as "90s" or "1h30m"' if name in _TIMES else 'an amount such as "500Mi" or "2Gi"'
        raise BudgetError(f'"{name}" is "{text[:32]}"; it must be {wanted}') from None
    if amount <= 0:
        raise BudgetError(f'"{name}" is "{text[:32]}"; it must be above 0')
    return amount


def write_budget(budget: Budget) -> str:
    """As it is read."""
    return ",".join(f"{name}={_shown(name, amount)}" for name, amount in budget.items())


def smaller(one: Budget, other: Budget) -> Budget:
    """Both hold."""
    return {name: min(bounds) for name in _USED if (bounds := [each[name] for each in (one, other) if name in each])}


def spent(budget: Budget, usage: Usage) -> str:
    """Why a session stands still, in a sentence; empty: there is something left of everything."""
    for name, may in budget.items():
        used = _USED[name](usage)
        if used >= may:
            whole = used if name in _TIMES else int(used) >> 10 << 10
            return f"it has used {_shown(name, whole)} {_WORDS[name]} of a budget of {_shown(name, may)}; raise {name} in its budget"
    return ""


def _shown(name: str, amount: float) -> str:
    return write_duration(round(amount, 3)) if name in _TIMES else quantity.from_bytes(int(amount))


def told(usage: Usage) -> dict[str, float]:
    """An account as it stands in the log when a session ends."""
    return {
        "cpu_s": round(usage.cpu_us / 1e6, 3), "memory_gib_h": round(usage.memory_byte_s / (1 << 30) / _HOUR_S, 6),
        "network_bytes": usage.network_sent_bytes + usage.network_received_bytes,
        "awake_s": round(usage.wall_s - usage.frozen_s, 3), "frozen_s": round(usage.frozen_s, 3),
    }  # fmt: skip


def added(one: Usage, other: Usage) -> Usage:
    """What a session has used in an earlier sandbox and in the one that it has now; what it has now is the other's."""
    return Usage(
        at=other.at, memory_bytes=other.memory_bytes, storage_bytes=other.storage_bytes, source=other.source or one.source,
        cpu_us=one.cpu_us + other.cpu_us, memory_byte_s=one.memory_byte_s + other.memory_byte_s,
        read_bytes=one.read_bytes + other.read_bytes, written_bytes=one.written_bytes + other.written_bytes,
        network_sent_bytes=one.network_sent_bytes + other.network_sent_bytes,
        network_received_bytes=one.network_received_bytes + other.network_received_bytes,
        wall_s=one.wall_s + other.wall_s, frozen_s=one.frozen_s + other.frozen_s,
    )  # fmt: skip
