"""Bodies that no strategy knows: options, patches, reviews. JSON or YAML, bounded in depth, always an object or a list."""

import json
from typing import Any

import msgspec
import yaml

from hekla.api.meta import Document
from hekla.apiserver.decoding import go_syntax_error
from hekla.apiserver.negotiation import JSON, media_type_of
from hekla.apiserver.status import StatusError, bad_request
from hekla.lib import plain_yaml
from hekla.lib.yaml_depth import is_too_deep

MAX_BODY = 3 << 20
"""Bytes of a request's body, as in Kubernetes."""

MAX_YAML_NODES = 1_000_000
"""A short YAML can unfold through aliases into any size; a body of 3 MB has fewer values than this."""


def loose_document(body: bytes, content_type: str = JSON) -> Document:
    """A body as a document, without any schema; raises 400."""
    value = loose_value(body, content_type)
    if not isinstance(value, dict):
        raise bad_request(f"the body must be an object, not {_named(value)}")
    return value


def part_of(document: Document, name: str) -> Document:
    """An object inside a loose document; empty if it is not there. Raises 400 if it is something else."""
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object, not {_named(value)}")
    return value


def list_in(document: Document, name: str) -> list[Any]:
    """A list inside a loose document; empty if it is not there. Raises 400 if it is something else."""
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list, not {_named(value)}")
    return value


def texts_in(document: Document, name: str) -> list[str]:
    """A list of texts inside a loose document. Raises 400 if it is something else, or something else is in it."""
    values = list_in(document, name)
    for value in values:
        if not isinstance(value, str):
            raise bad_request(f"{name} must be a list of texts, and {_named(value)} is in it")
    return values


def number_in(document: Document, name: str) -> int:
    """A whole number inside a loose document; 0 if it is not there. Raises 400 if it is something else."""
    value = document.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{name} must be a whole number, not {_named(value)}")
    return value


def text_in(document: Document, name: str, otherwise: str = "") -> str:
    """A text inside a loose document. Raises 400 if it is something else."""
    value = document.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, str):
        raise bad_request(f"{name} must be text, not {_named(value)}")
    return value


def loose_value(body: bytes, content_type: str = JSON) -> Any:
    """A body as a value; raises 400."""
    if "yaml" in media_type_of(content_type):
        return yaml_value(body)
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise bad_request(f"error decoding the body: {go_syntax_error(body)}") from None


def yaml_value(body: bytes) -> Any:
    """YAML (or JSON) as a value made of JSON's types; raises 400."""
    if body.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML's flow style looks like JSON and is not
    if is_too_deep(body):
        raise too_deep()
    try:
        return _jsonable(plain_yaml.load(body, _Loader), [MAX_YAML_NODES])
    except RecursionError:
        raise too_deep() from None
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: times stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _jsonable(value: Any, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError(f"its aliases unfold to more than {MAX_YAML_NODES} values")
    if isinstance(value, dict):
        return {k if isinstance(k, str) else json.dumps(k): _jsonable(item, budget) for k, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item, budget) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"a value of type {type(value).__name__} has no place in JSON")


def too_deep() -> StatusError:
    """The refusal of a body nested so deep that reading it would take the stack."""
    return bad_request("the body is nested too deeply: at most a few hundred levels are read")


def _named(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
