"""What claims, classes and slices of devices have in common: names of drivers, pools and attributes, taints, lists."""

import re
from collections.abc import Callable, Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, duplicate, invalid, not_supported, required, too_long, too_many
from hekla.apiserver.validation import names

EFFECTS = ("NoExecute", "NoSchedule", "None")
MOST_REQUESTS = MOST_COUNTERS = 32
_LONGEST_DRIVER, _LONGEST_IDENTIFIER, _LONGEST_POOL = 63, 32, 253
_NOT_QUALIFIED = "a fully qualified name must be a domain and a name separated by a slash"
_NOT_IDENTIFIER = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters"
    " or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)


def check_driver(name: str, path: str) -> list[FieldError]:
    """The name of a driver, or a domain; capitals are let pass."""
    if not name:
        return [required(path)]
    errors = [too_long(path, _LONGEST_DRIVER)] if len(name) > _LONGEST_DRIVER else []
    return errors + [invalid(path, name, said) for said in names.dns_subdomain(name.lower())]


def check_pool_name(name: str, path: str) -> list[FieldError]:
    """The name of a pool: subdomains between slashes."""
    if not name:
        return [required(path)]
    errors = [too_long(path, _LONGEST_POOL)] if len(name) > _LONGEST_POOL else []
    return errors + [invalid(path, part, said) for part in name.split("/") for said in names.dns_subdomain(part)]


def check_attribute_name(name: str, path: str, *, is_whole: bool = False) -> list[FieldError]:
    """An identifier, perhaps behind a domain and a slash; a whole name must be."""
    domain, *rest = name.split("/")
    errors = list[FieldError]()
    if not rest:
        errors = _check_identifier(domain, path)
    elif len(rest) == 1:
        errors = check_driver(domain, path) + _check_identifier(rest[0], path)
    return [*errors, invalid(path, name, _NOT_QUALIFIED)] if is_whole and not rest else errors


def _check_identifier(name: str, path: str) -> list[FieldError]:
    errors = [too_long(path, _LONGEST_IDENTIFIER)] if len(name) > _LONGEST_IDENTIFIER else []
    return errors if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else [*errors, invalid(path, name, _NOT_IDENTIFIER)]


def check_each(
    items: Sequence[Document], most: int, path: str, check: Callable[[Document, str], list[FieldError]]
) -> list[FieldError]:
    """The items of a list with a bound; a list that is beyond it is told of, and not its items."""
    if len(items) > most:
        return [too_many(path, len(items), most)]
    return [error for index, one in enumerate(items) for error in check(one, f"{path}[{index}]")]


def check_taint(taint: Document, path: str) -> list[FieldError]:
    """A taint of a device."""
    key, value, effect = (taint.get(name, "") for name in ("key", "value", "effect"))
    errors = [invalid(f"{path}.key", key, said) for said in names.label_key(key)]
    errors += [invalid(f"{path}.value", value, said) for said in names.label_value(value)]
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


def check_counters(counters: Document, path: str) -> list[FieldError]:
    """Counters by name."""
    if not counters:
        return [required(path)]
    if len(counters) > MOST_COUNTERS:
        return [too_many(path, len(counters), MOST_COUNTERS)]
    return [invalid(path, name, said) for name in sorted(counters) for said in names.dns_label(name)]


def check_named(items: Sequence[Document], key: str, most: int, path: str) -> list[FieldError]:
    """Sets of counters, each named once by a label."""
    if len(items) > most:
        return [too_many(path, len(items), most)]
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(items):
        where, name = f"{path}[{index}]", one.get(key, "")
        if name in seen:
            errors.append(duplicate(where, name))
            continue
        seen.add(name)
        if not name:
            errors.append(required(f"{where}.{key}"))
        else:
            errors += [invalid(f"{where}.{key}", name, said) for said in names.dns_label(name)]
        errors += check_counters(one.get("counters") or {}, f"{where}.counters")
    return errors
