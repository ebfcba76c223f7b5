"""What a client's document says, field by field: of the right kind, or refused with a sentence that names the field and its value.

A field that is absent or null says nothing, as in protobuf's JSON.
"""

from __future__ import annotations

import json
from typing import Any

from hekla.sandbox.daemon.http import HttpError

LONGEST_SHOWN = 64


def text(asked: dict[str, Any], name: str) -> str:
    """A text; empty if it says nothing."""
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "a text")
    return value or ""


def texts(asked: dict[str, Any], name: str) -> list[str]:
    """A list of texts."""
    value = asked.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        raise _wrong(name, value, "a list of texts")
    return value or []


def named_texts(asked: dict[str, Any], name: str) -> dict[str, str]:
    """Texts by name, as variables of the environment are."""
    value = asked.get(name)
    if value is not None and not (isinstance(value, dict) and all(isinstance(one, str) for one in value.values())):
        raise _wrong(name, value, "an object of texts")
    return value or {}


def inner(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """A document in the document; empty if it says nothing."""
    value = asked.get(name)
    if value is not None and not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value or {}


def whole_number(asked: dict[str, Any], name: str, otherwise: int, most: int) -> int:
    """A whole number from 0 to `most`; digits in a text are one, too."""
    value = asked.get(name)
    if value is None:
        return otherwise
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _wrong(name, value, f"a whole number from 0 to {most}")
    return value


def milliseconds(headers: dict[str, str], name: str) -> int:
    """A header that says how long, of at most ten digits, as Connect has it; 0 if it is not there."""
    value = headers.get(name, "")
    if value and not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise HttpError(
            400,
            f"the header {name} is {_shown(value)}; it must be milliseconds, in at most ten digits",
            "invalid_argument",
        )
    return int(value or 0)


def _wrong(name: str, value: object, wanted: str) -> HttpError:
    return HttpError(400, f'"{name}" is {_shown(value)}; it must be {wanted}', "invalid_argument")


def _shown(value: object) -> str:
    told = json.dumps(value)
    return told if len(told) <= LONGEST_SHOWN else f"{told[:LONGEST_SHOWN]}..."
