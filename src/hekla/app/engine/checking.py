"""What vLLM's API server says of a body that is not what it should be: pydantic's words, and its way to take "5" for 5.

A body's fields are looked at one by one, by the table of its kind; fields that no table names are passed over, as vLLM
passes them over. The sentences are those of vLLM 0.32; `tests/app/vllm_answers.json` holds what it answered.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from hekla.wire.messages import Request

T = TypeVar("T")
MALFORMED = "Bad Request"
"""The type of a refusal of a body's form."""
MOST_TOLD, MOST_INPUT = 10, 200
"""Wrong fields that are told of one body, and characters of what stood there."""
WORDS_OF_TRUTH = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


class BadBodyError(Exception):
    """The body cannot be served; the sentence is for the client."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class UnreadableError(Exception):
    """The body is no text."""


class Trouble(NamedTuple):
    """One thing that is wrong with a body."""

    kind: str
    place: str
    sentence: str
    found: object
    context: dict[str, Any] | None = None

    def __str__(self) -> str:
        told: dict[str, Any] = {
            "type": self.kind, "loc": self.place, "msg": self.sentence, "input": _shown(self.found),
        }  # fmt: skip
        return str(told | {"ctx": self.context} if self.context else told)


class Taken(NamedTuple):
    """A value as it was meant, and what is wrong with it."""

    value: Any
    troubles: tuple[Trouble, ...] = ()


Check = Callable[[Any, str], Taken]


def _shown(found: object) -> str:
    if isinstance(found, list | dict):
        return f"<{type(found).__name__} of {len(found)} items>"
    text = str(found)
    return text if len(text) <= MOST_INPUT else f"{text[:MOST_INPUT]}...[truncated]"


def refused(*troubles: Trouble) -> BadBodyError:
    """The answer to a body with these troubles."""
    told = [f"  {one}" for one in troubles[:MOST_TOLD]]
    if more := len(troubles) - len(told):
        told.append(f"  ...and {more} more errors")
    count = f"{len(troubles)} validation error{'s' * (len(troubles) > 1)}:"
    return BadBodyError("\n".join((count, *told)), kind=MALFORMED, param=troubles[0].place)


def parameter(sentence: str, name: str, value: object = None) -> BadBodyError:
    """A refusal that names a parameter, as vLLM does."""
    shown = "" if value is None else f", value={value}"
    return BadBodyError(f"{sentence} (parameter={name}{shown})", param=name)


# values


def whole(value: Any, place: str) -> Taken:
    """An integer: also 5.0, "5" and true."""
    if isinstance(value, bool | int):
        return Taken(int(value))
    if isinstance(value, float):
        if value.is_integer():
            return Taken(int(value))
        said = "Input should be a valid integer, got a number with a fractional part"
        return Taken(None, (Trouble("int_from_float", place, said, value),))
    if not isinstance(value, str):
        return Taken(None, (Trouble("int_type", place, "Input should be a valid integer", value),))
    try:
        return Taken(int(value))
    except ValueError:
        said = "Input should be a valid integer, unable to parse string as an integer"
        return Taken(None, (Trouble("int_parsing", place, said, value),))


def natural(value: Any, place: str) -> Taken:
    """An integer that is not negative: a token."""
    taken = whole(value, place)
    if taken.troubles or taken.value >= 0:
        return taken
    said = "Input should be greater than or equal to 0"
    return Taken(None, (Trouble("greater_than_equal", place, said, value, {"ge": 0}),))


def number(value: Any, place: str) -> Taken:
    """A number: also "0.5" and true."""
    if isinstance(value, bool | int | float):
        try:
            return Taken(float(value))
        except OverflowError:  # as the same digits in a text are read
            return Taken(math.inf if value > 0 else -math.inf)
    if not isinstance(value, str):
        return Taken(None, (Trouble("float_type", place, "Input should be a valid number", value),))
    try:
        return Taken(float(value))
    except ValueError:
        said = "Input should be a valid number, unable to parse string as a number"
        return Taken(None, (Trouble("float_parsing", place, said, value),))


def flag(value: Any, place: str) -> Taken:
    """True or false: also 1, "yes" and their like."""
    if isinstance(value, bool):
        return Taken(value)
    if not isinstance(value, str | int | float):
        return Taken(None, (Trouble("bool_type", place, "Input should be a valid boolean", value),))
    word = value.lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else ""
    if word in WORDS_OF_TRUTH:
        return Taken(WORDS_OF_TRUTH[word])
    said = "Input should be a valid boolean, unable to interpret input"
    return Taken(None, (Trouble("bool_parsing", place, said, value),))


def text(value: Any, place: str) -> Taken:
    """Text, and nothing that could be made text."""
    if isinstance(value, str):
        return Taken(value)
    return Taken(None, (Trouble("string_type", place, "Input should be a valid string", value),))


def mapping(value: Any, place: str) -> Taken:
    """A dictionary of anything."""
    if isinstance(value, dict):
        return Taken(value)
    return Taken(None, (Trouble("dict_type", place, "Input should be a valid dictionary", value),))


def a_list(of: Check) -> Check:
    """A list of such values."""

    def check(value: Any, place: str) -> Taken:
        if not isinstance(value, list):
            return Taken(None, (Trouble("list_type", place, "Input should be a valid list", value),))
        taken = [of(one, f"{place}.{at}") for at, one in enumerate(value)]
        return Taken([one.value for one in taken], tuple(trouble for one in taken for trouble in one.troubles))

    return check


def either(*checks: Check) -> Check:
    """The first that fits; what none fits is told in the words of all."""

    def check(value: Any, place: str) -> Taken:
        troubles: tuple[Trouble, ...] = ()
        for one in checks:
            taken = one(value, place)
            if not taken.troubles:
                return taken
            troubles += taken.troubles
        return Taken(None, troubles)

    return check


def one_of(*words: str) -> Check:
    """One of these words."""
    *most, last = map(repr, words)
    expected = f"{', '.join(most)} or {last}" if most else last

    def check(value: Any, place: str) -> Taken:
        if isinstance(value, str) and value in words:
            return Taken(value)
        said = f"Input should be {expected}"
        return Taken(None, (Trouble("literal_error", place, said, value, {"expected": expected}),))

    return check


def a_model(fields: Mapping[str, Check], needed: tuple[str, ...] = ()) -> Check:
    """An object with such fields; others are passed over."""

    def check(value: Any, place: str) -> Taken:
        if not isinstance(value, dict):
            said = "Input should be a valid dictionary or object to extract fields from"
            return Taken(None, (Trouble("model_attributes_type", place, said, value),))
        known, troubles = dict(value), []
        for name, field in fields.items():
            where = f"{place}.{name}"
            if name not in value:
                if name in needed:
                    troubles.append(Trouble("missing", where, "Field required", value))
            elif value[name] is not None or name in needed:
                known[name], wrong = field(value[name], where)
                troubles += wrong
        return Taken(known, tuple(troubles))

    return check


# bodies


def read(request: Request, kind: type[T], check: Check) -> T:
    """A body as its kind. Raises BadBodyError, UnreadableError."""
    if request.body and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        said = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise BadBodyError(said, kind=MALFORMED)
    document = _decoded(request.body)
    if document is None:
        raise refused(Trouble("missing", "body", "Field required", None))
    value, troubles = check(document, "body")
    if troubles:
        raise refused(*troubles)
    try:
        return msgspec.convert({name: one for name, one in value.items() if one is not None}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadBodyError(str(error), kind=MALFORMED) from None


def _decoded(body: bytes) -> Any:
    if not body:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decoded_as_python_does(body)


def _decoded_as_python_does(body: bytes) -> Any:
    """NaN is let in, and what is wrong is told with its place."""
    try:
        document = json.loads(body)
        json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair is no text, and could not be told of
        return document
    except json.JSONDecodeError as error:
        trouble = Trouble("json_invalid", f"body.{error.pos}", "JSON decode error", {}, {"error": error.msg})
        raise refused(trouble) from None
    except (ValueError, RecursionError):
        raise UnreadableError from None
