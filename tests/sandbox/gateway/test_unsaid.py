"""What the gateway's log does not repeat of what clients wrote."""

import pytest

from hekla.sandbox.gateway.front import LONGEST_SENTENCE, _why
from hekla.sandbox.gateway.tools import TOOLS, check_arguments
from hekla.sandbox.gateway.unsaid import unsaid, without_quotes
from hekla.sandbox.sessions.limits import RefusedError

KEY = "e2b_b8198e98e5523cee9ceeb77fa1833a69231c2fa0"
SESSION = "m3x2q5l7dtkq4rjv2o6yhc5wne"
UUID = "550e8400-e29b-41d4-a716-446655440000"
KEYS = [
    KEY, UUID, "Ab3dEf6hIj9lMn0p", "sk-ant-api03-abc_DEF123-ghi_JKL456", "sk-proj-Ab3dEf6hIj9kLmN0pQrS", "a" * 40,
    "correcthorsebatterystaplecorrect", "mfrggzdfmztwq2lknnwg23tpob", "hunter2", 'a"b"c', "a'b", '{"key": "hunter2"}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (f"/sandboxes/{KEY}/logs", "/sandboxes/e2b_b819.../logs"),
        (f"/sandboxes/{UUID}/logs", "/sandboxes/550e.../logs"),
        ("/sandboxes/sk-ant-api03-abc_DEF123-ghi_JKL456", "/sandboxes/sk-a..."),
        ("/sandboxes/Ab3dEf6hIj9lMn0p", "/sandboxes/Ab3d..."),
        ("/budgets/eyJhbGciOiJSUzI1NiJ9.eyJz-dWIi_In0.c2lnbmF0dXJl", "/budgets/eyJh..."),
        (f"/sandboxes/{SESSION}/logs", f"/sandboxes/{SESSION}/logs"),
        ("/agent-runtimes/my-code-interpreter-7f9c6d5b4-x2x4z", "/agent-runtimes/my-code-interpreter-7f9c6d5b4-x2x4z"),
        ("/filesystem.Filesystem/ListDir", "/filesystem.Filesystem/ListDir"),
        ("internationalizationwithoutend", "internationalizationwithoutend"),
        ("", ""),
    ],
)
def test_what_may_be_a_secret_in_a_path_is_shortened_and_names_and_ids_stay(path, left):
    assert unsaid(path) == left


@pytest.mark.parametrize(
    ("sentence", "left"),
    [
        ('template "secret" not found', "template (6 characters) not found"),
        (
            '"state" is "secret"; it must be running or paused',
            '"state" is (6 characters); it must be running or paused',
        ),
        (
            "a variable is named 'secret'; a name has a letter",
            "a variable is named (6 characters); a name has a letter",
        ),
        ("ttl is ['secret', 'an", "ttl is [(12 characters)"),
        (f'session "{SESSION}" not found', f"session {SESSION} not found"),
        (f'template "{SESSION}" not found', "template (26 characters) not found"),
        ('"secret" is not the session\'s', "(6 characters) is not the session's"),
        ("the session's body is too large", "the session's body is too large"),
        ("", ""),
    ],
)
def test_a_refusal_is_logged_with_the_length_of_what_it_quotes(sentence, left):
    assert without_quotes(sentence, "state") == left


@pytest.mark.parametrize("key", KEYS)
def test_the_log_says_why_without_the_key_that_was_written_as_a_template(key):
    told = _why(RefusedError(404, "template_not_found", f'there is no template "{key}"'))
    assert told == {"reason": "template_not_found", "sentence": f"there is no template ({len(key)} characters)"}
    told = _why(RefusedError(400, "template", f"template is {key!r}"))
    assert told == {"reason": "template", "sentence": f"template is ({len(repr(key)) - 2} characters)"}


def test_a_key_that_was_written_as_an_arguments_name_is_no_reason():
    with pytest.raises(RefusedError) as refused:
        check_arguments(next(iter(TOOLS.values())), {KEY: 1, **dict.fromkeys(next(iter(TOOLS.values())).required, "")})
    assert KEY in refused.value.sentence
    assert KEY not in str(_why(refused.value))


@pytest.mark.parametrize("sign", ["a", '"', "-1A"])
def test_what_is_quoted_may_be_as_long_as_a_body(sign):
    told = _why(RefusedError(404, "x", f'template "{sign * 1_000_000}" not found'))
    assert told["sentence"] == f"template ({len(sign)}000000 characters) not found"
    assert len(_why(RefusedError(404, "x", sign * 1_000_000))["sentence"]) <= LONGEST_SENTENCE
