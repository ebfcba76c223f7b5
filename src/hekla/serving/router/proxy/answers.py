"""What the router itself says: refusals in OpenAI's error shape, and small documents."""

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


def error_document(refusal: Refusal) -> bytes:
    """The error as OpenAI's clients read it; `code` is our stable reason."""
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.reason}
    return msgspec.json.encode({"error": error})


def error_event(refusal: Refusal) -> bytes:
    """An error inside a stream that has begun."""
    return b"data: %b\n\n" % error_document(refusal)


def refusal_bytes(refusal: Refusal, *, keeps_alive: bool, request_id: bytes = b"", is_head: bool = False) -> bytes:
    """A whole answer that refuses."""
    extra = b""
    if refusal.retry_after_s is not None:
        extra += b"retry-after: %d\r\n" % max(1, -int(-refusal.retry_after_s // 1))
    if refusal.allow:
        extra += b"allow: %b\r\n" % refusal.allow.encode()
    if refusal.status == 401:
        extra += b'www-authenticate: Bearer realm="hekla"\r\n'
    if request_id:
        extra += b"x-request-id: %b\r\n" % request_id
    return answer_bytes(refusal.status, error_document(refusal), keeps_alive=keeps_alive, extra=extra, is_head=is_head)


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
