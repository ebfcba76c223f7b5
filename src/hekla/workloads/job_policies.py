"""Which action an event calls for: the task's policies first, then the job's, else none.

Volcano's resolution order, as a function of the job and the event alone; `job_orders.py` adds commands and delays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from hekla.api.volcano.batch import JobSpec, LifecyclePolicy
from hekla.api.volcano.bus import Action, Event
from hekla.lib.go_duration import parse_duration
from hekla.workloads.job_events import Happening

INTERNAL_EVENTS = frozenset({Event.OUT_OF_SYNC, Event.COMMAND_ISSUED, Event.POD_RUNNING})
"""Events that no policy hears of."""


@dataclass(frozen=True)
class PolicyAnswer:
    """What a policy says: the action, and how long to wait before it."""

    action: Action = Action.SYNC_JOB
    delay: timedelta = timedelta()


LOOK_AFTER = PolicyAnswer()
"""No policy has anything to say: keep the job going."""


def answer_to(spec: JobSpec, happening: Happening) -> PolicyAnswer:
    """What the job's policies say to an event."""
    if happening.event in INTERNAL_EVENTS:
        return LOOK_AFTER
    for policy in _policies(spec, happening.task):
        if _matches(policy, happening):
            return _answer(policy)
    return LOOK_AFTER


def events_of(policy: LifecyclePolicy) -> list[str]:
    """All events that a policy names, each once."""
    named = [*policy.events, *([policy.event] if policy.event else [])]
    return list(dict.fromkeys(named))


def _answer(policy: LifecyclePolicy) -> PolicyAnswer:
    try:
        return PolicyAnswer(Action(policy.action), parse_duration(policy.timeout) if policy.timeout else timedelta())
    except ValueError:
        # No admission has seen this policy: an action or a time that nobody knows calls for nothing.
        return LOOK_AFTER


def _policies(spec: JobSpec, task_name: str) -> Iterator[LifecyclePolicy]:
    for task in spec.tasks:
        if task_name and task.name == task_name:
            yield from task.policies
            break
    yield from spec.policies


def _matches(policy: LifecyclePolicy, happening: Happening) -> bool:
    return _names(events_of(policy), policy, happening) or (
        policy.exit_code is not None and policy.exit_code in happening.exit_codes
    )


def _names(events: Sequence[str], policy: LifecyclePolicy, happening: Happening) -> bool:
    # Being pending is no trouble by itself: only a policy with a timeout is meant.
    if happening.event is Event.POD_PENDING and policy.timeout is None:
        return False
    return happening.event in events or Event.ANY in events
