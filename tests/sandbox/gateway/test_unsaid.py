"""What the gateway's log does not repeat of what clients wrote."""

import pytest

from hekla.sandbox.gateway.front import _why
from hekla.sandbox.gateway.unsaid import unsaid
from hekla.sandbox.sessions.limits import RefusedError

KEY = "e2b_b8198e98e5523cee9ceeb77fa1833a69231c2fa0"
SESSION = "m3x2q5l7dtkq4rjv2o6yhc5wne"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'template "{KEY}" not found', 'template "e2b_b819..." not found'),
        (f"/sandboxes/{KEY}/logs", "/sandboxes/e2b_b819.../logs"),
        ('"sk-proj-Ab3dEf6hIj9kLmN0pQrS" not found', '"sk-proj-Ab3d..." not found'),
        ("a budget eyJhbGciOiJSUzI1NiJ9.eyJz-dWIi_In0.c2lnbmF0dXJl makes no sense", "a budget eyJh... makes no sense"),
        (f'session "{SESSION}" not found', f'session "{SESSION}" not found'),
        (
            'pods "my-code-interpreter-7f9c6d5b4-x2x4z" not found',
            'pods "my-code-interpreter-7f9c6d5b4-x2x4z" not found',
        ),
        ("internationalizationwithoutend", "internationalizationwithoutend"),
        ("", ""),
    ],
)
def test_what_may_be_a_secret_is_shortened_and_names_and_ids_stay(text, left):
    assert unsaid(text) == left


def test_the_log_says_why_without_the_key_that_was_written_as_a_template():
    assert KEY not in str(_why(RefusedError(404, "template_not_found", f'template "{KEY}" not found')))
