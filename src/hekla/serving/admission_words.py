"""How Kthena's webhooks say what is wrong: a heading, then one line per field, each in Kubernetes' words.

`admission.py` lists the rules; the other `admission_*.py` find what is wrong.
"""

import re
from collections.abc import Iterable

from hekla.api.fields import Duration
from hekla.api.scalars import IntOrString
from hekla.apiserver.fielderrors import Cause, FieldError, invalid
from hekla.lib.digits import whole_number
from hekla.lib.go_duration import DurationError, parse_duration

_PERCENT = re.compile(r"[0-9]+%\Z")
NOT_A_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
LONGEST_PERIOD_S = 1800.0


def denial(errors: Iterable[FieldError], joint: str = "\n") -> str:
    """All that is wrong; empty if nothing is."""
    lines = [f"  - {error.field}: {error.message}" for error in errors]
    return f"validation failed:{joint or ' '}{joint.join(lines)}" if lines else ""


def invalid_duration(field: str, value: Duration, detail: str) -> FieldError:
    """A duration that breaks a rule, as Go prints it: 31m is `31m0s`, without quotes."""
    return FieldError(
        Cause.INVALID, field, f"Invalid value: {go_duration(parse_duration(value).total_seconds())}: {detail}"
    )


def go_duration(seconds: float) -> str:
    """Seconds as Go's Duration prints them: `1h0m0s`, `1.5s`, `250ms`, `0s`."""
    if seconds == 0:
        return "0s"
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 1:
        return f"{sign}{round(left * 1000, 6):g}ms"
    minutes, rest = divmod(left, 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{round(rest, 9):g}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{shown}"
    return f"{sign}{minutes}m{shown}" if minutes else f"{sign}{shown}"


def check_period(field: str, value: Duration | None, detail: str) -> list[FieldError]:
    """A period or window: 0 to 30 minutes."""
    if not value:
        return []
    try:
        seconds = parse_duration(value).total_seconds()
    except DurationError as error:
        return [invalid(field, value, str(error))]
    return [] if 0 <= seconds <= LONGEST_PERIOD_S else [invalid_duration(field, value, detail)]


def check_int_or_percent(field: str, value: IntOrString | None) -> list[FieldError]:
    """A number of zero or more, or a percentage up to 100."""
    if value is None:
        return []
    if isinstance(value, int):
        return [] if value >= 0 else [invalid(field, value, "must be a non-negative integer")]
    if not _PERCENT.match(value):
        return [invalid(field, value, NOT_A_PERCENT)]
    percent = whole_number(value[:-1])
    if percent is None or percent > 100:
        return [invalid(field, value, "must be a valid percent value (0-100)")]
    return []


def scaled(value: IntOrString, total: int, *, rounds_up: bool = False) -> int | None:
    """What a number or percentage comes to; None: it is neither."""
    if isinstance(value, int):
        return value
    if not _PERCENT.match(value):
        return None
    percent = whole_number(value[:-1])
    if percent is None:
        return None
    share = percent * total
    return -(-share // 100) if rounds_up else share // 100


def unscalable(value: IntOrString) -> str:
    """Why `scaled` is None, in Kubernetes' words."""
    text = str(value)
    if not text.endswith("%"):
        return "invalid value for IntOrString: invalid type: string is not a percentage"
    return f'invalid value for IntOrString: invalid value "{text}": strconv.Atoi: parsing "{text[:-1]}": invalid syntax'
