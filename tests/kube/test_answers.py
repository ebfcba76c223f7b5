import asyncio

import pytest

from hekla.kube.answers import error_from_response, lines
from hekla.kube.errors import ConflictError, GoneError, NotFoundError, TooManyRequestsError

STATUS = b'{"kind":"Status","reason":"%s","message":"no","code":%d}'


async def pieces_of(*pieces):
    for piece in pieces:
        yield piece


def read(*pieces):
    async def main():
        return [line async for line in lines(pieces_of(*pieces))]

    return asyncio.run(main())


def test_lines_are_whole_however_the_stream_is_cut():
    text = b'{"a":1}\n{"b":2}\n\n{"c":3}\n'
    for size in range(1, len(text)):
        cut = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(*cut) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_a_last_line_needs_no_newline():
    assert read(b"one\ntwo") == [b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (404, b"NotFound", NotFoundError),
        (409, b"Conflict", ConflictError),
        (410, b"Expired", GoneError),
        (429, b"TooManyRequests", TooManyRequestsError),
    ],
)
def test_a_status_document_says_what_went_wrong(code, reason, error):
    found = error_from_response(code, STATUS % (reason, code))
    assert type(found) is error
    assert found.message == "no"


def test_a_status_without_a_reason_is_left_in_its_own_words():
    """As of a webhook that denies: it says itself what was asked."""
    found = error_from_response(400, b'{"kind": "Status", "message": "denied: no queue"}', asked="POST /apis/x")
    assert found.message == "denied: no queue"


def test_an_answer_that_is_no_status_is_quoted():
    found = error_from_response(502, b"<html>bad gateway</html>")
    assert (found.code, found.message) == (502, "<html>bad gateway</html>")
    assert "status 500" in error_from_response(500, b"").message


def test_the_header_says_when_to_come_again():
    found = error_from_response(429, STATUS % (b"TooManyRequests", 429), [("Retry-After", "7")])
    assert found.retry_after_s == 7
