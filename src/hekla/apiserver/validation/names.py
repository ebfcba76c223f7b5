"""Which names, labels and values are well-formed. Each check returns the sentences of what is wrong."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

NameCheck = Callable[[str, bool], list[str]]
"""From a name and whether it is only a prefix (generateName) to sentences."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_QUALIFIED})?"
_LABEL_WITH_UNDERSCORE = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH = rf"{_LABEL_WITH_UNDERSCORE}(\.{_LABEL_WITH_UNDERSCORE})*"
_HEADER = r"[-A-Za-z0-9]+"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_WILDCARD = rf"\*\.{_SUBDOMAIN}"
_URL_PATH = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"

_match_label = re.compile(rf"{_LABEL}\Z").match
_match_subdomain = re.compile(rf"{_SUBDOMAIN}\Z").match
_match_label_1035 = re.compile(rf"{_LABEL_1035}\Z").match
_match_qualified = re.compile(rf"{_QUALIFIED}\Z").match
_match_value = re.compile(rf"{_VALUE}\Z").match
_match_config_key = re.compile(rf"{_CONFIG_KEY}\Z").match
_match_wildcard = re.compile(rf"{_WILDCARD}\Z").match
_match_url_path = re.compile(rf"{_URL_PATH}\Z").match
_match_search = re.compile(rf"{_SEARCH}\Z").match
_match_header = re.compile(rf"{_HEADER}\Z").match
_match_env = re.compile(r"[ -<>-~]+\Z").match

_NOT_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '" + _LABEL + "')"
)
_NOT_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is '" + _SUBDOMAIN + "')"
)
_NOT_WILDCARD = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower"
    " case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used"
    " for validation is '" + _WILDCARD + "')"
)
_NOT_URL_PATH = f"Invalid path (regex used for validation is '{_URL_PATH}')"
_NOT_LABEL_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '"
    + _LABEL_1035 + "')"
)  # fmt: skip
_NOT_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '" + _QUALIFIED + "')"
)
_NOT_TWO_PARTS = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '" + _QUALIFIED
    + "') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)  # fmt: skip
_NOT_LABEL_KEY = _NOT_TWO_PARTS.replace("a qualified name", "a valid label key", 1)
_NOT_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '"
    + _VALUE + "')"
)  # fmt: skip
_NOT_SEARCH = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start"
    " and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '" + _SEARCH + "')"
)
_NOT_HEADER = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for"
    " validation is '" + _HEADER + "')"
)
_NOT_CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME', "
    " or 'key-name', regex used for validation is '" + _CONFIG_KEY + "')"
)


def too_long(bound: int) -> str:
    """The sentence on a text over its bound."""
    return f"must be no more than {bound} characters"


def any_name(name: str, is_prefix: bool = False) -> list[str]:
    """What an object that is there already is called: it was looked at when the object was made."""
    return []


def dns_label(name: str, is_prefix: bool = False) -> list[str]:
    """RFC 1123 label: namespaces, containers, volumes."""
    masked = _masked(name, is_prefix)
    sentence = "must not contain dots" if "." in masked and _match_subdomain(masked) else _NOT_LABEL
    return _checked(masked, 63, _match_label, sentence)


def dns_subdomain(name: str, is_prefix: bool = False) -> list[str]:
    """RFC 1123 subdomain: the name of most objects."""
    return _checked(_masked(name, is_prefix), 253, _match_subdomain, _NOT_SUBDOMAIN)


def wildcard_subdomain(name: str, is_prefix: bool = False) -> list[str]:
    """A subdomain behind `*.`: the host of an ingress."""
    return _checked(_masked(name, is_prefix), 253, _match_wildcard, _NOT_WILDCARD)


def url_path(text: str) -> list[str]:
    """What may stand in a URL after the first slash."""
    return [] if _match_url_path(text) else [_NOT_URL_PATH]


def dns_label_1035(name: str, is_prefix: bool = False) -> list[str]:
    """RFC 1035 label: services."""
    return _checked(_masked(name, is_prefix), 63, _match_label_1035, _NOT_LABEL_1035)


def path_segment(name: str, is_prefix: bool = False) -> list[str]:
    """Any text that can stand in a URL path: roles and their bindings."""
    said = [f"may not be '{name}'"] if name in (".", "..") and not is_prefix else []
    return said + [f"may not contain '{char}'" for char in "/%" if char in name]


@lru_cache(maxsize=8192)  # label keys and resource names are few, and every object has some
def qualified_name(name: str) -> Sequence[str]:
    """A name, perhaps with a subdomain and a slash before it."""
    prefix, slash, last = name.rpartition("/")
    if "/" in prefix:
        return [_NOT_TWO_PARTS]
    said: list[str] = []
    if slash:
        said = (
            ["prefix part must be non-empty"] if not prefix else [f"prefix part {one}" for one in dns_subdomain(prefix)]
        )
        said = [one.replace("253 characters", "253 bytes") for one in said]
    if not last:
        said.append("name part must be non-empty")
    elif len(last) > 63:
        said.append("name part must be no more than 63 bytes")
    if not _match_qualified(last):
        said.append(_NOT_QUALIFIED)
    return said


def label_key(name: str) -> Sequence[str]:
    """The same for a label's key, which Kubernetes calls by that name where it has too many slashes."""
    if name.count("/") > 1:
        return [_NOT_LABEL_KEY]
    return qualified_name(name)


@lru_cache(maxsize=8192)
def label_value(value: str) -> Sequence[str]:
    """The value of a label."""
    said = [] if len(value) <= 63 else ["must be no more than 63 bytes"]
    return said if _match_value(value) else [*said, _NOT_VALUE]


def dns_subdomain_with_underscore(name: str) -> list[str]:
    """A subdomain in which underscores are let pass: what a resolver searches."""
    return _checked(name, 253, _match_search, _NOT_SEARCH)


def http_header(name: str) -> list[str]:
    """The name of a header that a probe sends."""
    return [] if _match_header(name) else [_NOT_HEADER]


def config_key(key: str) -> list[str]:
    """A key of a config map or a secret, which becomes a file name."""
    said = _checked(key, 253, _match_config_key, _NOT_CONFIG_KEY)
    if key == ".":
        said.append("must not be '.'")
    elif key == "..":
        said.append("must not be '..'")
    elif key.startswith(".."):
        said.append("must not start with '..'")
    return said


def env_name(name: str) -> list[str]:
    """The name of an environment variable."""
    if _match_env(name):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def port_name(name: str) -> list[str]:
    """The name of a container's port (IANA service name)."""
    said = [] if len(name) <= 15 else [too_long(15)]
    if not re.fullmatch(r"[-a-z0-9]+", name):
        said.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", name):
        said.append("must contain at least one letter (a-z)")
    if "--" in name:
        said.append("must not contain consecutive hyphens")
    if name and (name[0] == "-" or name[-1] == "-"):
        said.append("must not begin or end with a hyphen")
    return said


def port_number(number: int) -> list[str]:
    """A port that can be listened on."""
    return [] if 1 <= number <= 65535 else ["must be between 1 and 65535, inclusive"]


def _checked(text: str, bound: int, match: Callable[[str], object], sentence: str) -> list[str]:
    said = [] if len(text) <= bound else [too_long(bound)]
    if not match(text):
        said.append(sentence)
    return said


def _masked(name: str, is_prefix: bool) -> str:
    # a generated suffix follows, so a trailing hyphen is fine
    return name[:-1] + "a" if is_prefix and len(name) > 1 and name.endswith("-") else name
