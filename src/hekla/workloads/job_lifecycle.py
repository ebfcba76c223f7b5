"""The life of a Volcano Job, as a table: in which phase what may happen, and where it leads.

`job.py` finds out what happened and carries it out; the diagram in docs/reference/job-lifecycle.md is drawn from here.
"""

from collections.abc import Mapping
from enum import StrEnum

from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.bus import Action


class Trigger(StrEnum):
    """What moves a job from one phase to the next."""

    RESTART = "a restart is ordered"
    ABORT = "an abort is ordered"
    COMPLETE = "completion is ordered"
    TERMINATE = "termination is ordered"
    RESUME = "it is resumed"
    STARTED = "enough pods run"
    GANG_LOST = "too few pods run"
    SUCCEEDED = "enough pods succeeded"
    FAILED = "too many pods failed"
    SETTLED = "its pods are gone"
    RETRIES_EXHAUSTED = "it has no retries left"


_ORDERS = {
    Trigger.RESTART: Phase.RESTARTING,
    Trigger.ABORT: Phase.ABORTING,
    Trigger.COMPLETE: Phase.COMPLETING,
    Trigger.TERMINATE: Phase.TERMINATING,
}

TRANSITIONS: Mapping[Phase, Mapping[Trigger, Phase]] = {
    Phase.PENDING: {**_ORDERS, Trigger.STARTED: Phase.RUNNING},
    Phase.RUNNING: {
        **_ORDERS,
        Trigger.GANG_LOST: Phase.PENDING,
        Trigger.SUCCEEDED: Phase.COMPLETED,
        Trigger.FAILED: Phase.FAILED,
    },
    Phase.RESTARTING: {Trigger.SETTLED: Phase.PENDING, Trigger.RETRIES_EXHAUSTED: Phase.FAILED},
    Phase.ABORTING: {Trigger.SETTLED: Phase.ABORTED, Trigger.RESUME: Phase.RESTARTING},
    Phase.ABORTED: {Trigger.RESUME: Phase.RESTARTING},
    Phase.COMPLETING: {Trigger.SETTLED: Phase.COMPLETED},
    Phase.TERMINATING: {Trigger.SETTLED: Phase.TERMINATED},
    Phase.COMPLETED: {},
    Phase.TERMINATED: {},
    Phase.FAILED: {},
}

TRIGGER_OF: Mapping[Action, Trigger] = {
    Action.RESTART_JOB: Trigger.RESTART,
    Action.RESTART_TASK: Trigger.RESTART,
    Action.RESTART_POD: Trigger.RESTART,
    Action.RESTART_PARTITION: Trigger.RESTART,
    Action.ABORT_JOB: Trigger.ABORT,
    Action.COMPLETE_JOB: Trigger.COMPLETE,
    Action.TERMINATE_JOB: Trigger.TERMINATE,
    Action.RESUME_JOB: Trigger.RESUME,
}
"""What ordering an action means to a job. Actions that are not here only look after it."""

ALIVE = frozenset({Phase.PENDING, Phase.RUNNING, Phase.RESTARTING})
"""Phases in which a job has, or is to have, pods."""

FINISHED = frozenset({Phase.COMPLETED, Phase.TERMINATED, Phase.FAILED})
"""Phases that a job never leaves."""


class TransitionError(ValueError):
    """A trigger came in a phase that does not expect it."""


def expects(phase: Phase, trigger: Trigger) -> bool:
    """Whether the trigger means anything in this phase."""
    return trigger in TRANSITIONS[phase]


def after(phase: Phase, trigger: Trigger) -> Phase:
    """The phase that follows; TransitionError says what was expected instead."""
    try:
        return TRANSITIONS[phase][trigger]
    except KeyError:
        expected = ", ".join(f"{one.value!r}" for one in TRANSITIONS[phase]) or "nothing more"
        raise TransitionError(f"a job that is {phase} takes no {trigger.value!r}; it expects {expected}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.PENDING}"]
    for phase, row in TRANSITIONS.items():
        lines += [f"    {phase} --> {following}: {trigger.value}" for trigger, following in row.items()]
        if phase in FINISHED:
            lines.append(f"    {phase} --> [*]")
    return "\n".join(lines) + "\n"
