"""Label and field selectors: parsed once per request, then asked per object.

The grammar and the sentences of refusal are Kubernetes'. A selector is bounded in length, so that a megabyte of it
costs a refusal and nothing more.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hekla.apiserver.status import StatusError, bad_request

MAX_SELECTOR_LENGTH = 65_536
"""Characters. Kubernetes has no bound of its own here; its HTTP server cuts at a megabyte of head."""

MAX_REQUIREMENTS = 1_000

_TOKEN = re.compile(r"\s*(?:(!=|==|=|!|\(|\)|,|<|>)|([^\s!=,()<>]+))")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One clause on one label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels satisfies this clause."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        return value is not None and _compares(value, self.operator, next(iter(self.values)))


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All clauses of a selector; no clause selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels satisfies every clause."""
        return all(one.matches(labels) for one in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Clauses `field=value` and `field!=value`."""

    clauses: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, field_of: Callable[[str], str]) -> bool:
        """Whether an object, asked for its fields by name, satisfies every clause."""
        return all((field_of(name) == value) is wants_equal for name, wants_equal, value in self.clauses)

    def exact(self, name: str) -> str | None:
        """The value that a field must have, if a clause pins it."""
        return next((value for field, wants_equal, value in self.clauses if field == name and wants_equal), None)


EVERYTHING = LabelSelector()
ANY_FIELDS = FieldSelector()


def label_selector(text: str) -> LabelSelector:
    """Parse `a=b,c!=d,e in (x,y),!f`; raises 400."""
    if not text:
        return EVERYTHING
    if len(text) > MAX_SELECTOR_LENGTH:
        raise bad_request(
            f"unable to parse requirement: the selector has {len(text)} characters, at most {MAX_SELECTOR_LENGTH} are read"
        )
    return _parsed_labels(text)


@lru_cache(maxsize=1024)
def _parsed_labels(text: str) -> LabelSelector:
    return LabelSelector(tuple(_Parser(text).requirements()))


def field_selector(text: str, known: Callable[[str], bool], refuse: Callable[[str], StatusError]) -> FieldSelector:
    """Parse `metadata.name=a,status.phase!=Running`; `refuse` says what is wrong with a field that is not selectable."""
    if not text:
        return ANY_FIELDS
    if len(text) > MAX_SELECTOR_LENGTH:
        raise bad_request(f"invalid selector: it has {len(text)} characters, at most {MAX_SELECTOR_LENGTH} are read")
    clauses = []
    for clause in _split_fields(text):
        name, operator, value = _field_clause(clause)
        if not known(name):
            raise refuse(name)
        clauses.append((name, operator, value))
    return FieldSelector(tuple(clauses))


def _split_fields(text: str) -> list[str]:
    pieces = re.split(r"(?<!\\),", text)
    return [piece for piece in pieces if piece]


def _field_clause(clause: str) -> tuple[str, bool, str]:
    for separator, wants_equal in (("!=", False), ("==", True), ("=", True)):
        name, found, value = clause.partition(separator)
        if found:
            return name.strip(), wants_equal, _ESCAPE.sub(_unescaped, value)
    raise bad_request(f"invalid selector: '{clause}'; can't understand '{clause}'")


_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def _unescaped(found: re.Match[str]) -> str:
    if found[1] not in ("\\", ",", "="):
        raise bad_request(f"invalid field selector: invalid escape sequence: \\{found[1]}")
    return found[1]


class _Parser:
    """Reads a label selector token by token, as Kubernetes' lexer does."""

    def __init__(self, text: str) -> None:
        self._tokens = [found[1] or found[2] for found in _TOKEN.finditer(text)]
        self._at = 0

    def requirements(self) -> list[Requirement]:
        """Every clause, in order."""
        found: list[Requirement] = []
        while self._peek() is not None:
            found.append(self._requirement())
            if len(found) > MAX_REQUIREMENTS:
                raise bad_request(f"unable to parse requirement: more than {MAX_REQUIREMENTS} requirements")
            if self._peek() is None:
                break
            self._separator()
        return found

    def _separator(self) -> None:
        found = self._next()
        if found != ",":
            raise _misplaced(found or "", "',' or 'end of string'")
        if self._peek() in {None, *_OPERATORS}:
            raise _misplaced(self._peek() or "", "identifier after ','")

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return Requirement(_checked_key(self._identifier("identifier")), "absent")
        if self._peek() in _OPERATORS:
            raise _misplaced(self._peek() or "", "!, identifier, or 'end of string'")
        key = _checked_key(self._identifier("identifier"))
        operator = self._peek()
        if operator is None or operator == ",":
            return Requirement(key, "exists")
        self._next()
        match operator:
            case "=" | "==":
                return Requirement(key, "in", frozenset({self._value(key)}))
            case "!=":
                return Requirement(key, "notin", frozenset({self._value(key)}))
            case "in" | "notin":
                return Requirement(key, operator, self._values(key))
            case ">" | "<":
                return Requirement(key, operator, frozenset({self._integer()}))
        raise _unparsable(operator, "in, notin, =, ==, !=, gt, lt")

    def _value(self, key: str) -> str:
        token = self._peek()
        if token is None or token == ",":
            return ""
        return _checked_value(key, self._identifier("identifier"))

    def _values(self, key: str) -> frozenset[str]:
        opened = self._next()
        if opened != "(":
            raise bad_request(f"unable to parse requirement: found '{opened or ''}' expected: '('")
        values: set[str] = set()
        while True:
            token = self._next()
            if token is None:
                raise _unparsable("", "',', ')' or identifier" if not values else "',' or ')'")
            if token == ")":
                return frozenset(values or {""})
            if token == ",":
                continue
            values.add(_checked_value(key, token))

    def _integer(self) -> str:
        token = self._identifier("identifier")
        if not re.fullmatch(r"-?\d+", token):
            said = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise bad_request(f'unable to parse requirement: values[0]: Invalid value: "{token[:300]}": {said}')
        return token

    def _identifier(self, expected: str) -> str:
        token = self._next()
        if token is None or token == "!" or token in _OPERATORS:
            raise _unparsable(token or "", expected)
        return token

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str | None:
        token = self._peek()
        self._at += 1
        return token


_OPERATORS = frozenset({"=", "==", "!=", "(", ")", ",", "<", ">"})


def _misplaced(found: str, expected: str) -> StatusError:
    return bad_request(f"found '{found}', expected: {expected}")


def _unparsable(found: str, expected: str) -> StatusError:
    return bad_request(f"unable to parse requirement: found '{found}', expected: {expected}")


def _checked_key(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if (slash and not _SUBDOMAIN.match(prefix)) or len(name) > 63 or not _NAME.match(name):
        raise bad_request(
            f"unable to parse requirement: <nil>: Invalid value: \"{key[:300]}\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )
    return key


def _checked_value(key: str, value: str) -> str:
    if value and (len(value) > 63 or not _NAME.match(value)):
        raise bad_request(
            f"unable to parse requirement: values[0][{key}]: Invalid value: \"{value[:300]}\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )
    return value


def _compares(value: str, operator: str, bound: str) -> bool:
    try:
        number = int(value)
    except ValueError:
        return False
    return number > int(bound) if operator == ">" else number < int(bound)


def object_selector(selector: Mapping[str, object] | None) -> LabelSelector | None:
    """A LabelSelector as objects carry it (matchLabels, matchExpressions); None selects nothing."""
    if selector is None:
        return None
    labels = selector.get("matchLabels") or {}
    found = [Requirement(k, "in", frozenset({v})) for k, v in labels.items()]  # type: ignore[attr-defined]  # wire JSON
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for one in selector.get("matchExpressions") or ():  # type: ignore[attr-defined]  # wire JSON
        found.append(Requirement(one["key"], operators[one["operator"]], frozenset(one.get("values") or ())))
    return LabelSelector(tuple(found))
