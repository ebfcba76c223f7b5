"""From bytes to an answer: media type, warnings, the heads of partial objects, tables."""

import json
from collections.abc import Iterable

import yaml

from hekla.api.meta import Document
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import encode
from hekla.apiserver.calls import Call
from hekla.apiserver.listing import Page
from hekla.apiserver.negotiation import JSON, YAML, Wanted
from hekla.apiserver.status import StatusError
from hekla.wire.messages import Response

PARTIAL_HEAD = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",'
PARTIAL_LIST_HEAD = b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",'

MAX_WARNING, MAX_WARNINGS = 256, 4_096
"""Characters of one warning where all of them together are longer than the second: they travel in headers."""


def answer(call: Call, body: bytes, *, status: int = 200, warnings: Iterable[str] = ()) -> Response:
    """A JSON body in the media type that the caller wants."""
    if call.served.deprecation:
        warnings = [call.served.deprecation, *warnings]
    headers = warning_headers(warnings)
    if call.wanted.media_type == YAML:
        return Response(status, as_yaml(body), YAML, headers)
    return Response(status, body, JSON, headers)


def document_answer(call: Call, document: Document, *, status: int = 200, warnings: Iterable[str] = ()) -> Response:
    """A document in the media type that the caller wants."""
    return answer(call, encode(document), status=status, warnings=warnings)


def as_yaml(body: bytes) -> bytes:
    """JSON as YAML."""
    text: str = yaml.dump(json.loads(body), Dumper=yaml.CSafeDumper, default_flow_style=False, allow_unicode=True)
    return text.encode()


def error_answer(error: StatusError, wanted: Wanted | None = None) -> Response:
    """A refusal. It is JSON unless YAML was wanted; a Status is never shown as a Table."""
    body = encode(error.document())
    if wanted is not None and wanted.media_type == YAML:
        return Response(error.code, as_yaml(body), YAML, tuple(error.headers))
    return Response(error.code, body, JSON, tuple(error.headers))


def warning_headers(warnings: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """One Warning header per sentence, bounded."""
    if not warnings:
        return ()
    headers: list[tuple[str, str]] = []
    said = [_printable(sentence) for sentence in dict.fromkeys(warnings)]
    longest = MAX_WARNING if sum(map(len, said)) > MAX_WARNINGS else MAX_WARNINGS
    length = 0
    for sentence in said:
        length += min(len(sentence), longest)
        if length > MAX_WARNINGS:
            break
        quoted = sentence[:longest].replace("\\", "\\\\").replace('"', '\\"')
        headers.append(("warning", f'299 - "{quoted}"'))
    return tuple(headers)


def _printable(sentence: str) -> str:
    return (
        "".join(letter if letter.isprintable() else " " for letter in sentence)
        .encode("latin-1", "replace")
        .decode("latin-1")
    )


def table_answer(backend: Backend, call: Call, page: Page, *, is_list: bool, status: int = 200) -> Response:
    """Objects as the rows that `kubectl get` prints."""
    from hekla.apiserver.tables import table_of

    return document_answer(
        call, table_of(backend, call.served, page, call.option("includeObject"), is_list=is_list), status=status
    )
