"""Reads what an API server answered: Status documents into errors, watch frames into events.

The bytes come from a transport (`in_process.py`, `https.py`); `api_client.py` asks for them.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from hekla.kube.errors import ApiError, error_from_status

_decode_status = msgspec.json.Decoder(dict[str, Any]).decode

MAX_FRAME = 64 * 1024 * 1024
"""The longest line a watch may send: well above the largest object any server stores."""


class Frame(msgspec.Struct):
    """One line of a watch; the object is decoded once its type is known."""

    type: str
    object: msgspec.Raw


class ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_token": "continue"}):
    """What a list says about itself."""

    resource_version: str = ""
    continue_token: str = ""


class RawList(msgspec.Struct):
    """A list whose items stay as they came."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


decode_frame = msgspec.json.Decoder(Frame).decode
decode_raw_list = msgspec.json.Decoder(RawList).decode


def header(headers: Sequence[tuple[str, str]], name: str) -> str:
    """One header's value; empty if it is not there."""
    return next((value for key, value in headers if key.lower() == name), "")


def error_from_response(
    status: int, body: bytes, headers: Sequence[tuple[str, str]] = (), *, asked: str = ""
) -> ApiError:
    """The exception that an answer of 400 or more stands for, whether or not its body is a Status.

    One that is not, such as `404 page not found`, names nothing: its sentence begins with what was `asked`.
    """
    error = error_from_status(_status_document(status, body, asked))
    retry_after = header(headers, "retry-after")
    if retry_after.isdigit():
        error.details.setdefault("retryAfterSeconds", int(retry_after))
    return error


def _status_document(status: int, body: bytes, asked: str) -> dict[str, Any]:
    try:
        document = _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = {}
    if document.get("kind") == "Status":
        return {**document, "code": document.get("code") or status}
    text = body[:500].decode(errors="replace").strip() or f"the server answered with status {status} and no text"
    return {"code": status, "reason": "", "message": f"{asked}: {text}" if asked else text}


async def lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream, however it was cut into pieces."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > MAX_FRAME:
            raise ApiError(0, "", f"a watch sent a line longer than {MAX_FRAME} bytes")
    if rest.strip():
        yield rest
