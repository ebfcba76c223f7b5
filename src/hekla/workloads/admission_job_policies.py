"""What Volcano refuses in lifecycle policies: events and exit codes mixed, missing, repeated, or not for users."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from hekla.api.volcano.batch import LifecyclePolicy
from hekla.api.volcano.bus import Action, Event
from hekla.apiserver.fielderrors import shown
from hekla.apiserver.webhook_rule import go_errors, go_list
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.workloads.job_policies import INTERNAL_EVENTS, events_of

_FORBIDDEN_ACTIONS = frozenset(
    {Action.SYNC_JOB, Action.ENQUEUE_JOB, Action.SYNC_QUEUE, Action.OPEN_QUEUE, Action.CLOSE_QUEUE}
)
EVENTS = tuple(event for event in Event if event not in INTERNAL_EVENTS)
ACTIONS = tuple(action for action in Action if action not in _FORBIDDEN_ACTIONS)


def policy_errors(policies: Sequence[LifecyclePolicy], field: str) -> str:
    """What is wrong with a list of policies, and what would be right; Volcano stops at the first policy that is wrong."""
    errors = list(_errors(policies, field))
    if not errors:
        return ""
    return f"{go_errors(errors)} valid events are {go_list(EVENTS)}, valid actions are {go_list(ACTIONS)};"


def _errors(policies: Sequence[LifecyclePolicy], field: str) -> Iterator[str]:
    events: set[str] = set()
    codes: set[int] = set()
    for policy in policies:
        wrong = _wrong(policy, field, events, codes)
        if wrong:
            yield wrong
            break
    if Event.ANY in events and len(events) > 1:
        yield "if there's * here, no other policy should be here"


def _wrong(policy: LifecyclePolicy, field: str, events: set[str], codes: set[int]) -> str:
    """The first thing that is wrong with a policy; what it names is added to `events` and `codes`."""
    named = events_of(policy)
    if named and policy.exit_code is not None:
        return "must not specify event and exitCode simultaneously"
    if not named and policy.exit_code is None:
        return "either event and exitCode should be specified"
    if policy.timeout and (said := _wrong_duration(policy.timeout)):
        return f"{field}: Invalid value: {shown(policy.timeout)}: {said}"
    if policy.exit_code is not None:
        # Volcano looks at the action of a policy for events only, and lets one for an exit code do nothing.
        return _wrong_action(policy, field) or _wrong_code(policy.exit_code, codes)
    for event in named:
        if event not in EVENTS:
            return f"{field}: Invalid value: {shown(event)}: invalid policy event"
        if said := _wrong_action(policy, field):
            return said
        if event in events:
            return f"duplicate event {event}  across different policy"
        events.add(event)
    return ""


def _wrong_action(policy: LifecyclePolicy, field: str) -> str:
    if policy.action in ACTIONS:
        return ""
    return f"{field}: Invalid value: {shown(policy.action)}: invalid policy action"


def _wrong_duration(text: str) -> str:
    try:
        timeout = parse_duration(text)
    except DurationError:
        return f"time: invalid duration {shown(text)}"
    # Volcano takes a negative one as none at all.
    return "" if timeout >= timedelta() else "timeout must be greater than or equal to 0"


def _wrong_code(code: int, codes: set[int]) -> str:
    if code == 0:
        return "0 is not a valid error code"
    if code in codes:
        return f"duplicate exitCode {code}"
    codes.add(code)
    return ""
