"""JSON as it is read at the border: what is missing or of another type is told as an answer that makes no sense."""

import json
from collections.abc import Mapping
from typing import cast

from hekla_sdk.errors import BadAnswerError

Document = Mapping[str, object]


def document_of(data: bytes) -> Document:
    """A JSON object."""
    try:
        told = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise BadAnswerError(f"the answer is no JSON: {data[:200].decode('utf-8', 'replace')}") from None
    if not isinstance(told, dict):
        raise BadAnswerError(f"the answer is no JSON object: {data[:200].decode('utf-8', 'replace')}")
    return cast(Document, told)


def documents_in(told: Document, name: str) -> list[Document]:
    """A list of objects; none if it is missing."""
    found = told.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadAnswerError(f'"{name}" of the answer is no list of objects')
    return cast(list[Document], found)


def document_in(told: Document, name: str) -> Document:
    """An object; an empty one if it is missing."""
    found = told.get(name) or {}
    if not isinstance(found, dict):
        raise BadAnswerError(f'"{name}" of the answer is no object')
    return cast(Document, found)


def text_in(told: Document, name: str) -> str:
    """A text; empty if it is missing."""
    found = told.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise BadAnswerError(f'"{name}" of the answer is no text')
    return found


def texts_in(told: Document, name: str) -> dict[str, str]:
    """An object of texts."""
    return {key: str(value) for key, value in document_in(told, name).items()}


def number_in(told: Document, name: str) -> float:
    """A number, also one that is written as a text, as Connect writes large ones; 0 if it is missing."""
    found = told.get(name, 0)
    try:
        return float(cast(float, found) or 0)
    except (TypeError, ValueError):
        raise BadAnswerError(f'"{name}" of the answer is no number') from None
