"""Shares as plain numbers, by which queues and jobs are ordered: the smaller goes first.

They are quotients of whole numbers, rounded correctly by Python, so equal shares are equal floats on every machine.
"""

from collections.abc import Mapping

from hekla.quota.amounts import PODS, Amounts


def quotient(part: float, whole: float) -> float:
    """How much of the whole; of nothing, nothing is 0 and anything is 1."""
    if whole > 0:
        return part / whole
    return 1.0 if part > 0 else 0.0


def dominant_share(held: Amounts, total: Amounts) -> float:
    """The largest share of any resource of a cluster."""
    return max((quotient(held.get(name, 0), whole) for name, whole in total.items()), default=0.0)


def use_of(held: Amounts, deserved: Amounts) -> float:
    """How much of what it deserves a queue holds, in the resource of which it holds most."""
    most = 0.0  # a loop: a queue is weighed after each of its placements, and a generator took twice as long
    for name, share in deserved.items():
        part = held.get(name, 0)
        use = part / share if share > 0 else 1.0 if part > 0 else 0.0
        if use > most:
            most = use
    return most


def has_all(held: Amounts, deserved: Amounts) -> bool:
    """Whether a queue holds all that it deserves, of every resource."""
    for name, share in deserved.items():  # noqa: SIM110 - asked before every turn
        if held.get(name, 0) < share and name != PODS:
            return False
    return True


def reclaimable(held: Amounts, keeps: Amounts) -> Mapping[str, int]:
    """What a queue holds beyond what it may keep, by resource."""
    return {name: held[name] - kept for name, kept in keeps.items() if held.get(name, 0) > kept}
