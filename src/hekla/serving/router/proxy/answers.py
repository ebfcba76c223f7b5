"""What the router itself says: refusals in the error shape of the API that was asked, OpenAI's or Anthropic's, and small documents."""

from http import HTTPStatus

import msgspec

from hekla.serving.router.plan import Refusal

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_MESSAGES = "/v1/messages"
"""Where Anthropic's API begins: its clients read the sentence of an error from another place than OpenAI's."""
_ANTHROPICS_TYPES = {413: "request_too_large", 503: "overloaded_error"}


def error_document(refusal: Refusal, path: str = "", request_id: bytes = b"") -> bytes:
    """The error as clients of this path read it; `code` is our stable reason."""
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    if not path.startswith(_MESSAGES):
        error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.reason}
        return msgspec.json.encode({"error": error})
    kind = _ANTHROPICS_TYPES.get(refusal.status, kind)
    document = {"type": "error", "error": {"type": kind, "message": refusal.message, "code": refusal.reason}}
    return msgspec.json.encode({**document, "request_id": request_id.decode("ascii")} if request_id else document)


def error_event(refusal: Refusal, path: str = "") -> bytes:
    """An error inside a stream that has begun; Anthropic's clients know it by its name."""
    name = b"event: error\n" if path.startswith(_MESSAGES) else b""
    return b"%bdata: %b\n\n" % (name, error_document(refusal, path))


def refusal_bytes(
    refusal: Refusal, path: str = "", *, keeps_alive: bool, request_id: bytes = b"", is_head: bool = False
) -> bytes:
    """A whole answer that refuses a request for this path."""
    extra = b""
    if refusal.retry_after_s is not None:
        extra += b"retry-after: %d\r\n" % max(1, -int(-refusal.retry_after_s // 1))
    if refusal.allow:
        extra += b"allow: %b\r\n" % refusal.allow.encode()
    if refusal.status == 401:
        extra += b'www-authenticate: Bearer realm="hekla"\r\n'
    if request_id:
        extra += b"x-request-id: %b\r\n" % request_id
    body = error_document(refusal, path, request_id)
    return answer_bytes(refusal.status, body, keeps_alive=keeps_alive, extra=extra, is_head=is_head)


def answer_bytes(
    status: int,
    body: bytes,
    *,
    content_type: bytes = b"application/json",
    keeps_alive: bool = True,
    extra: bytes = b"",
    is_head: bool = False,
) -> bytes:
    """A whole answer; to HEAD its head alone."""
    head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
        status,
        _PHRASES.get(status, b"Unknown"),
        content_type,
        len(body),
        extra,
        b"" if keeps_alive else b"connection: close\r\n",
    )
    return head if is_head else head + body
