"""Kubernetes' resource quantities (`500m`, `1Gi`, `1e3`): what they are worth, and how Kubernetes would write them.

Exact: integers and fractions only, never floats. Consumers count in base units (`to_int` for bytes and devices,
`to_milli` for processors), rounding up as Kubernetes does. `canonical` is the form an API server answers with:
the mantissa without factors of 1000 (or 1024, if it was written with Ki, Mi, ...), so `1024Mi` becomes `1Gi`.
"""

import re
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import NamedTuple

WRONG = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
"""What is said of a text, or of anything else, that is no quantity."""

_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = {0: "", **{exponent: suffix for suffix, exponent in _BINARY.items()}}
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)", re.ASCII)
_NANO = 10**9
_LARGEST = 2**63 - 1
_FAST_DIGITS = 18  # up to here Kubernetes keeps digits and exponent apart and does not cap
_MOST_EXPONENT = 1000  # 1e999999999 must not fill the memory
_LONGEST = 1000  # characters; ten thousand digits must not take a second


class QuantityError(ValueError):
    """The text is not a quantity; the message is Kubernetes' own."""


class Form(Enum):
    """Which family of suffixes a quantity is written with."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


class Quantity(NamedTuple):
    """A number and how it likes to be written."""

    value: Fraction
    form: Form

    def __str__(self) -> str:
        return _written(self)


def parse(text: str | int) -> Quantity:
    """Read a quantity; raises QuantityError."""
    return _parse(text) if isinstance(text, str) else Quantity(Fraction(text), Form.DECIMAL)


def canonical(text: str) -> str:
    """The quantity as Kubernetes writes it: `0.5` is `500m`, `1024Mi` is `1Gi`."""
    return _canonical(text)


def to_int(text: str | int) -> int:
    """Whole units (bytes, devices, pods), rounded up; 2^63-1 of them at most, either way."""
    return _to_int(text) if isinstance(text, str) else text


def to_milli(text: str | int) -> int:
    """Thousandths (of a processor), rounded up; of 2^63-1 units at most, either way."""
    return _to_milli(text) if isinstance(text, str) else text * 1000


def to_float(text: str | int) -> float:
    """As near as a float comes; infinite beyond its range, as in Kubernetes."""
    value = parse(text).value
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def is_valid(text: str) -> bool:
    """Whether the text is a quantity."""
    try:
        _parse(text)
    except QuantityError:
        return False
    return True


def from_int(units: int) -> str:
    """Whole units in decimal form: 5000 is `5k`."""
    return _written(Quantity(Fraction(units), Form.DECIMAL))


def from_bytes(count: int) -> str:
    """Bytes in binary form: 1073741824 is `1Gi`."""
    return _written(Quantity(Fraction(count), Form.BINARY))


def from_milli(milli: int) -> str:
    """Thousandths in decimal form: 1500 is `1500m`, 2000 is `2`."""
    return _written(Quantity(Fraction(milli, 1000), Form.DECIMAL))


@lru_cache(maxsize=8192)  # the same few hundred texts occur in every pod
def _canonical(text: str) -> str:
    return _written(_parse(text))


@lru_cache(maxsize=8192)
def _to_int(text: str) -> int:
    return _counted(_parse(text).value)


@lru_cache(maxsize=8192)
def _to_milli(text: str) -> int:
    return _counted(_parse(text).value, 1000)


def _counted(value: Fraction, times: int = 1) -> int:
    """Rounded up, and capped: `1e308` is text that Kubernetes keeps, but no float can hold ten times as much."""
    value = max(min(value, Fraction(_LARGEST)), Fraction(-_LARGEST)) * times
    return -((-value.numerator) // value.denominator)


@lru_cache(maxsize=8192)  # a refusal is not remembered, and what is long is refused: the cache stays small
@lru_cache(maxsize=8192)
def _parse(text: str) -> Quantity:
    match = _SHAPE.fullmatch(text) if 0 < len(text) <= _LONGEST else None
    if match is None:
        raise QuantityError(WRONG)
    sign, whole, part, suffix = match[1], match[2], match[3] or "", match[4]
    scale, form = _scale(suffix)
    if not whole and not part:
        raise QuantityError("unable to parse numeric part of quantity")
    digits = (whole + part).lstrip("0")
    magnitude = Fraction(int(digits or "0"), 10 ** len(part)) * scale
    magnitude = _bounded(magnitude, is_fast=form is not Form.BINARY and len(digits) <= _FAST_DIGITS)
    if form is Form.BINARY and 0 < magnitude < 1:
        form = Form.DECIMAL
    return Quantity(-magnitude if sign == "-" else magnitude, form)


def _scale(suffix: str) -> tuple[Fraction, Form]:
    if suffix in _BINARY:
        return Fraction(1024 ** _BINARY[suffix]), Form.BINARY
    if suffix in _DECIMAL:
        return _power_of_ten(_DECIMAL[suffix]), Form.DECIMAL
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match[1]) > 6 or abs(int(match[1])) > _MOST_EXPONENT:
        raise QuantityError("unable to parse quantity's suffix")
    return _power_of_ten(int(match[1])), Form.EXPONENT


def _power_of_ten(exponent: int) -> Fraction:
    return Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)


def _bounded(magnitude: Fraction, *, is_fast: bool) -> Fraction:
    """Rounded up to a billionth, as Kubernetes keeps it, and capped where it caps."""
    if magnitude.denominator != 1 and _NANO % magnitude.denominator:
        nano = magnitude * _NANO
        magnitude = Fraction(-((-nano.numerator) // nano.denominator), _NANO)
    return magnitude if is_fast or magnitude <= _LARGEST else Fraction(_LARGEST)


def _written(quantity: Quantity) -> str:
    value, form = quantity
    if value == 0:
        return "0"
    if form is Form.BINARY and value.denominator == 1 and abs(value) >= 1024:
        return _binary(value.numerator)
    return _decimal(value, form)


def _binary(number: int) -> str:
    exponent = 0
    while number % 1024 == 0 and exponent < 6:
        number, exponent = number // 1024, exponent + 1
    return f"{number}{_BINARY_SUFFIX[exponent]}"


def _decimal(value: Fraction, form: Form) -> str:
    number, exponent = (value * _NANO).numerator, -9
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    if form is Form.EXPONENT or exponent not in _DECIMAL_SUFFIX:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_SUFFIX[exponent]}"
