"""Durations as Go writes them (`1h30m`, `250ms`, `-1.5s`): what Kubernetes' and Volcano's fields and flags hold."""

import re
from datetime import timedelta

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")

MOST_S = 2**63 / 1e9
"""Go counts nanoseconds in 63 bits, which is 292 years, and reads no duration beyond."""

MOST_CHARACTERS = 200
"""No longer text is looked into: it may be anybody's annotation, and 16,000 digits without a unit took 5.7 s."""

MOST_TOLD = 60
"""So much of a text that is no duration is shown."""


class DurationError(ValueError):
    """The text is not a duration."""


def parse_duration(text: str) -> timedelta:
    """Read a duration; raises DurationError."""
    if len(text) > MOST_CHARACTERS:
        raise DurationError(f'"{cut(text)}" is not a duration: it has {len(text)} characters')
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return timedelta()
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise DurationError(f'"{text}" is not a duration; write it like "90s", "1h30m" or "250ms"')
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds >= MOST_S:
        raise DurationError(f'"{text}" is longer than any duration, which is 292 years')
    return sign * timedelta(seconds=seconds)


def cut(text: str) -> str:
    """A text that is no duration, as far as it is shown."""
    return f"{text[:MOST_TOLD]}..." if len(text) > MOST_TOLD else text


def write_duration(seconds: float) -> str:
    """Seconds as Go's Duration.String writes them: `15m0s`, `1.5s`, `250ms`, `0s`."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and nanoseconds else ""
    if nanoseconds < 10**9:
        for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)):
            if nanoseconds >= size:
                return f"{sign}{_decimal(nanoseconds, size)}{unit}"
        return "0s"
    minutes, left = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(left, 10**9)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
