"""Change a request's body without reading the prompt again: another model name, fields taken out or put in.

The client's bytes are never changed; each function gives new ones. `director.py` renames models, `connectors/` make the bodies
of prefill and decode.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from hekla.serving.router.forms import form_with_model

_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model; spliced where the name stands once, else written anew in the same order."""
    if body.startswith(b"--"):
        return form_with_model(body, model)
    found = _MODEL.search(body)
    if found is not None and _MODEL.search(body, found.end()) is None:
        start, end = found.span(1)
        return b"".join((body[:start], _encode(model), body[end:]))
    return with_fields(body, {"model": model})


def with_fields(body: bytes, put: Mapping[str, Any], without: Iterable[str] = ()) -> bytes:
    """The body with these fields set and those taken out; values that are not touched keep their bytes."""
    fields: dict[str, Any] = dict(_decode(body))
    for name in without:
        fields.pop(name, None)
    fields.update(put)
    return _encode(fields)


def fields_of(body: bytes) -> dict[str, Raw]:
    """The top level of a body, each value as its bytes."""
    return _decode(body)
