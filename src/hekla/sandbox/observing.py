"""What is observed of an object, as conditions: each keeps its time while its status stays, and those not named again are gone.

Every `reconcile_*` of this package writes its conditions through here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from hekla.api.meta import Document
from hekla.api.volcano.topology import StrictCondition
from hekla.kube.timestamps import rfc3339

MOST_WORDS = 32_768
"""Characters that Kubernetes allows in a message."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One condition: `status` is True, False, or None where it cannot be known."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def conditions(
    before: Sequence[StrictCondition], observed: Iterable[Observation], generation: int, now: datetime
) -> list[Document]:
    """The list of conditions to write, in the order observed."""
    known = {one.type: one for one in before}
    return [_condition(known.get(one.type), one, generation, now) for one in observed]


def _condition(before: StrictCondition | None, one: Observation, generation: int, now: datetime) -> Document:
    status = {True: "True", False: "False", None: "Unknown"}[one.status]
    since = before.last_transition_time if before is not None and before.status == status else None
    return {
        "type": one.type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since or rfc3339(now),
        "reason": one.reason,
        "message": one.message[:MOST_WORDS],
    }


def as_documents(before: Iterable[StrictCondition]) -> list[Document]:
    """Conditions as they stand in an object, to compare with what is to be written."""
    return [msgspec.to_builtins(one) for one in before]


def find(conditions: Iterable[StrictCondition], kind: str) -> StrictCondition | None:
    """The condition of a type, if there is one."""
    return next((one for one in conditions if one.type == kind), None)


def is_true(conditions: Iterable[StrictCondition], kind: str) -> bool:
    """Whether a condition holds."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"
