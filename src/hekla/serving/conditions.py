"""What is observed of an object, and how observations follow one another: a condition keeps its time while its status stays.

The `*_status.py` beside this decide what is observed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.volcano.topology import StrictCondition
from hekla.kube.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class Observation:
    """One condition that holds, or does not, and why."""

    type: str
    holds: bool
    reason: str
    message: str


def conditions(
    before: Sequence[StrictCondition], observed: Iterable[Observation], generation: int, now: datetime
) -> list[Document]:
    """The list of conditions to write, in the order observed."""
    known = {one.type: one for one in before}
    return [_condition(known.get(one.type), one, generation, now) for one in observed]


def _condition(before: StrictCondition | None, one: Observation, generation: int, now: datetime) -> Document:
    status = "True" if one.holds else "False"
    since = before.last_transition_time if before is not None and before.status == status else None
    return {
        "type": one.type,
        "status": status,
        "reason": one.reason,
        "message": one.message[:32_768],
        "observedGeneration": generation,
        "lastTransitionTime": since or rfc3339(now),
    }


def as_documents(before: Iterable[StrictCondition]) -> list[Document]:
    """Conditions as they stand in an object, to compare with."""
    return [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "observedGeneration": one.observed_generation,
            "lastTransitionTime": one.last_transition_time,
        }
        for one in before
    ]
