"""Durations as people write them: 30s, 5m, 1h30m, or seconds alone."""

import re

from hekla.cli.main import EXIT_USAGE, CommandError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, option: str) -> float:
    """Seconds; CommandError that names the option if the text is no duration."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    raise CommandError(f'{option} is "{text}"; write a duration such as 30s, 5m or 1h', EXIT_USAGE)
