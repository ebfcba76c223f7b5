"""Bodies as clients send them, and what is read from them."""

import json

import msgspec
import pytest

from hekla.serving.router.plan import Refusal
from hekla.serving.router.question import Question
from hekla.serving.router.reading import MEDIA_TOKENS, read

CHAT = "/v1/chat/completions"


def question(body, path=CHAT):
    read_as = read(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert isinstance(read_as, Question), read_as
    return read_as


def refusal(body, path=CHAT):
    refused = read(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert isinstance(refused, Refusal), refused
    return refused.status, refused.reason, refused.message


def chat(*contents, **more):
    return {"model": "m", "messages": [{"role": "user", "content": one} for one in contents], **more}


def test_a_chat_is_read_with_what_its_answer_may_cost():
    body = chat("Why is the sky blue?", stream=True, stream_options={"include_usage": True}, max_tokens=100)
    asked = question(body)
    assert (asked.model, asked.output_tokens, asked.is_stream, asked.wants_usage) == ("m", 100, True, True)
    assert asked.prompt == json.dumps(body["messages"]).encode()
    assert asked.input_tokens == -(-len(asked.prompt) // 4)
    assert asked.body == json.dumps(body).encode()


def test_the_newer_name_of_the_limit_counts_first():
    assert question(chat("x", max_tokens=9, max_completion_tokens=7)).output_tokens == 7


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/v1/completions", {"model": "m", "prompt": "Once upon"}, b"Once upon"),
        ("/v1/completions", {"model": "m", "prompt": ["a", "b"]}, b'["a", "b"]'),
        ("/v1/embeddings", {"model": "m", "input": "some text"}, b"some text"),
        ("/v1/embeddings", {"model": "m", "input": ["a", "b"]}, b'["a", "b"]'),
        ("/v1/responses", {"model": "m", "instructions": "Be brief.", "input": "hi"}, b'"Be brief.""hi"'),
        ("/v1/responses", {"model": "m", "input": [{"role": "user"}]}, b'[{"role": "user"}]'),
        ("/v1/messages", {"model": "m", "system": "s", "messages": [1]}, b'"s"[1]'),
        ("/rerank", {"model": "m", "query": "q", "documents": ["d"]}, b'"q"["d"]'),
        ("/v1/score", {"model": "m", "text_1": "q", "text_2": ["d"]}, b'"q"["d"]'),
        ("/tokenize", {"model": "m", "prompt": "p"}, b"p"),
        ("/detokenize", {"model": "m", "tokens": [1, 2]}, b"[1,2]"),
    ],
)
def test_each_endpoint_has_its_prompt_somewhere_else(path, body, prompt):
    read_as = question(body, path)
    assert read_as.prompt.strip(b'"').replace(b", ", b",") == prompt.strip(b'"').replace(b", ", b",")
    assert read_as.path == path


def test_tools_stand_before_the_messages_as_templates_render_them():
    asked = question(chat("x", tools=[{"type": "function"}]))
    assert asked.prompt.startswith(b'[{"type": "function"}][{"role"')


def test_another_cache_salt_is_another_prefix_from_the_first_byte_on():
    one, other = question(chat("x", cache_salt="a")), question(chat("x", cache_salt="b"))
    assert one.prompt[1] != other.prompt[1]


def test_token_ids_are_counted_exactly():
    assert question({"model": "m", "prompt": [5, 6, 7]}).input_tokens == 3
    assert question({"model": "m", "prompt": [[5, 6], [7]]}).input_tokens == 3
    assert question({"model": "m", "prompt": [5, 6, 7]}).is_tokens
    assert not question({"model": "m", "prompt": ["5"]}).is_tokens


def test_a_picture_counts_as_its_tokens_and_equal_pictures_as_equal_prompts():
    def with_picture(letter):
        url = f"data:image/png;base64,{letter * 1_000_000}"
        return question(chat([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]))

    assert MEDIA_TOKENS < with_picture("A").input_tokens < MEDIA_TOKENS + 100
    assert with_picture("A").prompt == with_picture("A").prompt != with_picture("B").prompt


def test_a_clip_counts_as_its_tokens():
    clip = {"type": "input_audio", "input_audio": {"data": "QUJD" * 100_000, "format": "wav"}}
    assert question(chat([clip])).input_tokens < MEDIA_TOKENS + 100


@pytest.mark.parametrize(
    ("body", "status", "reason", "message"),
    [
        (b"", 400, "request_parsing", "invalid request body: it is empty"),
        (b'{"model": "m"', 400, "request_parsing", "invalid request body: Input data was truncated"),
        (b'{"model": "m", "prompt": "x"} {}', 400, "request_parsing", "invalid request body"),
        (b'["model"]', 400, "request_parsing", "invalid request body: expected a JSON object"),
        (b"[" * 100_000, 400, "request_parsing", "invalid request body: expected a JSON object"),
        (b'{"prompt": "x"}', 400, "request_parsing", "model not found"),
        (b'{"model": 7, "prompt": "x"}', 400, "request_parsing", "model not found"),
        (b'{"model": "", "prompt": "x"}', 400, "request_parsing", "model not found"),
        (b'{"model": "m"}', 400, "prompt_parsing", "prompt not found"),
        (b'{"model": "m", "messages": null}', 400, "prompt_parsing", "prompt not found"),
    ],
)
def test_what_cannot_be_routed_is_refused_in_kthenas_words_and_openais_status(body, status, reason, message):
    said = refusal(body)
    assert said[:2] == (status, reason)
    assert said[2].startswith(message)


def test_a_body_that_ends_deep_inside_is_malformed_not_a_crash():
    assert refusal(b'{"model": "m", "messages": ' + b"[" * 100_000)[0] == 400


def test_what_is_the_engines_to_judge_passes():
    asked = question(chat("x", max_tokens="many", stream="yes", stream_options=7, temperature=[]))
    assert (asked.output_tokens, asked.is_stream, asked.wants_usage) == (0, False, False)


def test_the_last_of_two_equal_keys_counts_as_it_does_in_engines():
    assert question(b'{"model": "a", "model": "b", "prompt": "x"}').model == "b"


def test_what_is_read_is_what_a_whole_decode_reads():
    body = json.dumps(chat('ünïcode \u4e2d \\ " \n', "more", tools=[], max_tokens=3)).encode()
    whole = msgspec.json.decode(body)
    asked = question(body)
    assert asked.model == whole["model"]
    tools, messages = asked.prompt[:2], asked.prompt[2:]
    assert (json.loads(tools), json.loads(messages)) == (whole["tools"], whole["messages"])
