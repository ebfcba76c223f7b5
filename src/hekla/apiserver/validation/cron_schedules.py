"""What is wrong with the schedule of a CronJob, in the words of the parser that Kubernetes has for it."""

from typing import NamedTuple

from hekla.lib.go_duration import DurationError, parse_duration

_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_EVERY = "@every "


class _Bounds(NamedTuple):
    """The numbers that may stand in one field, and the names of them from the least on."""

    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _Bounds(0, 59),
    _Bounds(0, 23),
    _Bounds(1, 31),
    _Bounds(1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    _Bounds(0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


def wrong_with_schedule(schedule: str) -> str:
    """The sentence on the first thing that is wrong; empty if nothing is."""
    try:
        _parse(schedule)
    except ValueError as error:
        return str(error)
    return ""


def _parse(schedule: str) -> None:
    if schedule.startswith("@"):
        return _parse_descriptor(schedule)
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    for field, bounds in zip(fields, _FIELDS, strict=True):
        for part in filter(None, field.split(",")):
            _parse_range(part, bounds)
    return None


def _parse_descriptor(schedule: str) -> None:
    if schedule in _MACROS:
        return
    if not schedule.startswith(_EVERY):
        raise ValueError(f"unrecognized descriptor: {schedule}")
    text = schedule.removeprefix(_EVERY)
    try:
        parse_duration(text)
    except DurationError:
        raise ValueError(f'failed to parse duration {schedule}: time: invalid duration "{text}"') from None


def _parse_range(text: str, bounds: _Bounds) -> None:
    span, *steps = text.split("/")
    ends = span.split("-")
    if ends[0] in ("*", "?"):
        first, last = bounds.least, bounds.most
    else:
        first = _number_or_name(ends[0], bounds)
        if len(ends) > 2:
            raise ValueError(f"too many hyphens: {text}")
        last = _number_or_name(ends[1], bounds) if len(ends) == 2 else bounds.most if steps else first
    if len(steps) > 1:
        raise ValueError(f"too many slashes: {text}")
    step = _number(steps[0]) if steps else 1
    if first < bounds.least:
        raise ValueError(f"beginning of range ({first}) below minimum ({bounds.least}): {text}")
    if last > bounds.most:
        raise ValueError(f"end of range ({last}) above maximum ({bounds.most}): {text}")
    if first > last:
        raise ValueError(f"beginning of range ({first}) beyond end of range ({last}): {text}")
    if step == 0:
        raise ValueError(f"step of range should be a positive number: {text}")


def _number_or_name(text: str, bounds: _Bounds) -> int:
    name = text.lower()
    return bounds.least + bounds.names.index(name) if name in bounds.names else _number(text)


def _number(text: str) -> int:
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    if len(digits.lstrip("0")) > 18:
        raise ValueError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": value out of range')
    if int(text) < 0:
        raise ValueError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)
