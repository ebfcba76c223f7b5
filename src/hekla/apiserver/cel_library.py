"""The functions that Kubernetes adds to CEL, for rules in custom resource definitions.

The package `cel` brings the core language and, in `cel.stdlib`, cel-go's string, list, math and set functions; here are
Kubernetes' lists, regex, quantity, url, ip, cidr and format libraries. CEL values must cross into Rust and back, so
what is an object in Kubernetes is text here: a quantity is its exact fraction, an address its canonical form.
"""

import ipaddress
import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hekla.apiserver.cel_engine import cel, stdlib
from hekla.lib import quantity as quantities

TYPE_NAMES = {
    "string": "type('')", "int": "type(0)", "uint": "type(0u)", "double": "type(0.0)", "bool": "type(true)",
    "bytes": "type(b'')", "list": "type([])", "map": "type({})", "null_type": "type(null)",
}  # fmt: skip
"""Types by name; the package compares types but knows no names for them."""

MOST_TEXT = 10_000
"""Texts longer than this are not searched with `find`: Python's regular expressions can take exponential time."""

_LITERAL = re.compile(r"""(r?"(?:[^"\\]|\\.)*"|r?'(?:[^'\\]|\\.)*')""")
_TYPE_NAME = re.compile(rf"(?<![\w.])({'|'.join(TYPE_NAMES)})(?!\s*[\w(.:])")
_OPTIONAL_CHAIN = re.compile(r"\.\?([A-Za-z_]\w*)((?:\.\??[A-Za-z_]\w*(?![\w(]))*)")
_OPTIONAL_INDEX = re.compile(r"\[\?([^\[\]]+)\]")


def new_context() -> cel.Context:
    """An environment with every function; not to be shared between threads."""
    context = cel.Context()
    stdlib.add_stdlib_to_context(context)
    for name, function in FUNCTIONS.items():
        context.add_function(name, function)
    return context


def in_plain_syntax(expression: str) -> str:
    """`a.?b.c` and `a[?k]` as calls and names of types as types, because the package lacks those."""
    parts = _LITERAL.split(expression)
    for index in range(0, len(parts), 2):
        text = _OPTIONAL_CHAIN.sub(_chain_as_calls, parts[index])
        parts[index] = _TYPE_NAME.sub(lambda match: TYPE_NAMES[match[1]], text)
    return _OPTIONAL_INDEX.sub(r".optField(\1)", "".join(parts))


def _chain_as_calls(match: re.Match[str]) -> str:
    fields = [match[1], *re.findall(r"[A-Za-z_]\w*", match[2])]
    return "".join(f'.optField("{field}")' for field in fields)


def _opt_field(value: Any, key: Any) -> Any:
    if isinstance(value, cel.OptionalValue):
        if not value.has_value():
            return value
        value = value.value()
    if isinstance(value, dict) and key in value:
        return cel.OptionalValue.of(value[key])
    if isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
        return cel.OptionalValue.of(value[key])
    return cel.OptionalValue.none()


# ---- lists


def _is_sorted(values: list[Any]) -> bool:
    return all(one <= other for one, other in itertools.pairwise(values))


def _index_of(where: Any, what: Any, start: int = 0) -> int:
    if isinstance(where, str):
        return where.find(what, start)
    return next((index for index, value in enumerate(where) if value == what), -1)


def _last_index_of(where: Any, what: Any, end: int | None = None) -> int:
    if isinstance(where, str):
        return where.rfind(what) if end is None else where.rfind(what, 0, end + len(what))
    return next((index for index in range(len(where) - 1, -1, -1) if where[index] == what), -1)


# ---- regex


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _find(text: str, pattern: str) -> str:
    match = _pattern(pattern).search(text[:MOST_TEXT])
    return match[0] if match else ""


def _find_all(text: str, pattern: str, most: int = -1) -> list[str]:
    found = [match[0] for match in _pattern(pattern).finditer(text[:MOST_TEXT])]
    return found if most < 0 else found[:most]


# ---- quantities: kept as "numerator/denominator"


def _quantity(text: str) -> str:
    return str(quantities.parse(text).value)


def _is_quantity(text: str) -> bool:
    return quantities.is_valid(text)


def _fraction_of(value: Any) -> Fraction:
    return Fraction(value)


def _as_integer(value: str) -> int:
    fraction = Fraction(value)
    if fraction.denominator != 1:
        raise ValueError("cannot convert value to integer")
    return fraction.numerator


def _compared(compare: Callable[[Any, Any], Any], parse: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def call(one: Any, other: Any) -> Any:
        return compare(parse(one), parse(other))

    return call


def _compare(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def _sign(value: str) -> int:
    return _compare(Fraction(value), 0)


# ---- urls


def _url(text: str) -> str:
    if not _is_url(text):
        raise ValueError(f"URL parse error during conversion from string: parse {text!r}: invalid URI for request")
    return text


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) or text.startswith("/")


def _host(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def _hostname(text: str) -> str:
    return urlsplit(text).hostname or ""


def _port(text: str) -> str:
    port = urlsplit(text).port
    return str(port) if port is not None else ""


def _query(text: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(text).query, keep_blank_values=True)


# ---- addresses


def _ip(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _cidr(text: str) -> str:
    return str(ipaddress.ip_interface(text).with_prefixlen) if "/" in text else _refuse_cidr(text)


def _refuse_cidr(text: str) -> str:
    raise ValueError(f"network address parse error during conversion from string: {text!r}")


def _parses(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def call(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return call


def _address(text: str) -> Any:
    return ipaddress.ip_address(text.split("/", 1)[0])


def _contains_ip(cidr: str, address: str) -> bool:
    return _address(address) in ipaddress.ip_network(cidr, strict=False)


def _contains_cidr(cidr: str, other: str) -> bool:
    wide, narrow = ipaddress.ip_network(cidr, strict=False), ipaddress.ip_network(other, strict=False)
    return type(wide) is type(narrow) and narrow.subnet_of(wide)  # type: ignore[arg-type]  # both of one family


# ---- formats, by name as `format.named(...)` knows them


@cache
def _checks() -> dict[str, Callable[[str], Sequence[str]]]:
    from hekla.apiserver.validation import names

    return {
        "dns1123Label": names.dns_label,
        "dns1123Subdomain": names.dns_subdomain,
        "dns1035Label": names.dns_label_1035,
        "qualifiedName": names.qualified_name,
        "labelValue": names.label_value,
    }


def _named_format(name: str) -> Any:
    return cel.OptionalValue.of(name) if name in _checks() else cel.OptionalValue.none()


def _validate(format_: str, text: str) -> Any:
    said = list(_checks()[format_](text))
    return cel.OptionalValue.of(said) if said else cel.OptionalValue.none()


def _formatted(template: str, values: list[Any]) -> str:
    """`'%s is %d'.format(list)`."""
    rest = iter(values)
    return re.sub(r"%(%|(?:\.(\d+))?[sdfexXob])", lambda match: _one_formatted(match, rest), template)


def _one_formatted(match: re.Match[str], rest: Any) -> str:
    verb = match[1][-1]
    if verb == "%":
        return "%"
    value = next(rest)
    if verb == "s":
        return str(value).lower() if isinstance(value, bool) else str(value)
    if verb in "fe":
        return f"{float(value):.{match[2] or 6}{verb}}"
    return format(int(value), verb)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "optField": _opt_field,
    "isSorted": _is_sorted,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "find": _find,
    "findAll": _find_all,
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "isInteger": lambda value: Fraction(value).denominator == 1,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda value: float(Fraction(value)),
    "sign": _sign,
    "isGreaterThan": _compared(lambda a, b: a > b, _fraction_of),
    "isLessThan": _compared(lambda a, b: a < b, _fraction_of),
    "compareTo": _compared(_compare, _fraction_of),
    "add": _compared(lambda a, b: str(a + b), _fraction_of),
    "sub": _compared(lambda a, b: str(a - b), _fraction_of),
    "url": _url,
    "isURL": _is_url,
    "getScheme": lambda text: urlsplit(text).scheme,
    "getHost": _host,
    "getHostname": _hostname,
    "getPort": _port,
    "getEscapedPath": lambda text: urlsplit(text).path,
    "getQuery": _query,
    "ip": lambda value: _ip(value.split("/", 1)[0]),
    "isIP": _parses(ipaddress.ip_address),
    "ip.isCanonical": lambda text: _ip(text) == text,
    "family": lambda text: _address(text).version,
    "isLoopback": lambda text: _address(text).is_loopback,
    "isUnspecified": lambda text: _address(text).is_unspecified,
    "isLinkLocalUnicast": lambda text: _address(text).is_link_local,
    "isLinkLocalMulticast": lambda text: _address(text).is_multicast and _address(text).is_link_local,
    "isGlobalUnicast": lambda text: not (_address(text).is_multicast or _address(text).is_loopback),
    "cidr": _cidr,
    "isCIDR": _parses(_cidr),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "masked": lambda text: str(ipaddress.ip_network(text, strict=False)),
    "prefixLength": lambda text: ipaddress.ip_interface(text).network.prefixlen,
    "format": _formatted,
    "format.named": _named_format,
    "validate": _validate,
    **{f"format.{name}": (lambda named: lambda: named)(name) for name in ("dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "labelValue")},
}  # fmt: skip
"""By the name under which rules call them; a method call passes its target first."""

NATIVE = frozenset(
    [
        "has",
        "all",
        "exists",
        "exists_one",
        "map",
        "filter",
        "size",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "timestamp",
        "duration",
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "type",
        "dyn",
        "max",
        "min",
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "optional.of",
        "optional.none",
        "optional.ofNonZeroValue",
        "hasValue",
        "value",
        "orValue",
        "or",
        "optMap",
        "optFlatMap",
        "bool",
    ]
)
"""Functions and macros that the package itself knows."""
