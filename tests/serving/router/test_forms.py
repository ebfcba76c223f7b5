"""Forms: audio to be transcribed finds its model and goes on as it came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.bodies import with_model
from hekla.serving.router.plan import Refusal
from hekla.serving.router.question import Question
from hekla.serving.router.reading import read
from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")

PATH = "/v1/audio/transcriptions"
SOUND = bytes(range(256)) * 40


def form(*parts: tuple[str, bytes], boundary: str = "xYz", file: bytes = SOUND) -> bytes:
    """As the official client writes it: fields, and a file."""
    line = f"--{boundary}\r\n".encode()
    texts = [b'%bContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (line, n.encode(), v) for n, v in parts]
    head = b'%bContent-Disposition: form-data; name="file"; filename="model.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return b"".join([*texts, head % line, file, f"\r\n--{boundary}--\r\n".encode()])


def asked(body: bytes, boundary: str = "xYz") -> Question | Refusal:
    return read(PATH, body, {"content-type": f"multipart/form-data; boundary={boundary}"})


def test_a_form_tells_its_model_and_its_switches() -> None:
    question = asked(form(("model", b"whisper"), ("stream", b"true"), ("prompt", b"four words of it")))
    assert isinstance(question, Question)
    assert (question.model, question.is_stream, question.is_form, question.prompt) == ("whisper", True, True, b"")
    assert question.input_tokens == 1024 + 4


def test_a_form_is_sent_on_for_another_model() -> None:
    before, after = form(("a", b"1"), ("model", b"whisper")), form(("a", b"1"), ("model", b"inside/whisper-v3"))
    assert with_model(before, "inside/whisper-v3") == after


def test_a_form_that_cannot_be_routed_says_why() -> None:
    broken = form(("model", b"m"))
    for body, said in (
        (form(("language", b"de")), "model not found"),
        (broken[:-10], "invalid request body"),
        (b"", "invalid request body"),
        (b"--xYz", "invalid request body"),
        (form(*[(f"n{number}", b"") for number in range(100)], ("model", b"m")), "invalid request body"),
    ):
        refusal = asked(body)
        assert isinstance(refusal, Refusal)
        assert refusal.status == 400
        assert refusal.message.startswith(said)


def test_a_files_own_words_are_no_field() -> None:
    inside = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nforged\r\n'
    question = asked(form(("model", b"m"), file=inside))
    assert isinstance(question, Question)
    assert question.model == "m"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_break_the_reading_of_forms(body: bytes, behind: bytes) -> None:
    for one in (body, b"--xYz" + body, form(("model", body), file=behind), form(("model", b"m"))[: len(body)]):
        asked(one)


def test_audio_reaches_the_engine_as_it_came() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            body = form(("model", b"m"), ("response_format", b"json"))
            head = f"POST {PATH} HTTP/1.1\r\nHost: r\r\nContent-Type: multipart/form-data; boundary=xYz\r\n"
            answer = await plane.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert answer.status == 200
            assert plane.engines[0].asked[0].body == body
            assert plane.engines[0].asked[0].headers["content-type"].endswith("boundary=xYz")

    kit.run(story())
