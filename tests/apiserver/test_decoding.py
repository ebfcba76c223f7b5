import pytest

from hekla.apiserver import decoding
from hekla.apiserver.decoding import DecodeError

JSON, YAML = "application/json", "application/yaml"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"apiVersion": "v1", ', "unexpected end of JSON input"),
        (b"", "unexpected end of JSON input"),
        (b"hello", "invalid character 'h' looking for beginning of value"),
        (b'{"a": 1,}', "invalid character '}' looking for beginning of object key string"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a": 1 "b": 2}', "invalid character '\"' after object key:value pair"),
        (b'{"a": [1 2]}', "invalid character '2' after array element"),
        (b'{"a": 1} x', "invalid character 'x' after top-level value"),
        (b"[" * 5000, "exceeded max depth"),
        (b"[1]", "json: cannot unmarshal array into Go value"),
    ],
)
def test_what_is_no_json_is_refused_in_gos_words(body: bytes, sentence: str):
    with pytest.raises(DecodeError) as caught:
        decoding.parse(body, JSON)
    assert str(caught.value).startswith(sentence)


def test_keys_that_come_twice_are_named_with_their_paths():
    body = b'{"a": 1, "a": 2, "l": [{"x": {"k": 1, "k": 2}}]}'
    assert decoding.key_count(body) == 6
    assert decoding.duplicates(body) == ['duplicate field "a"', 'duplicate field "l[0].x.k"']


def test_yaml_keys_are_text_and_times_stay_text():
    parsed = decoding.parse(b"1: a\ntrue: b\nat: 2026-01-01T00:00:00Z\nday: 2026-01-01\nmode: 0644\n", YAML)
    assert parsed.document == {"1": "a", "true": "b", "at": "2026-01-01T00:00:00Z", "day": "2026-01-01", "mode": 420}


def test_yaml_keys_that_come_twice_are_named_with_their_line():
    parsed = decoding.parse(b"a: 1\nb: 2\na: 3\n", YAML)
    assert parsed.duplicates == ['yaml: unmarshal errors:\n  line 3: key "a" already set in map']
    assert parsed.document["a"] == 3


def test_json_is_yaml():
    assert decoding.parse(b'{"a": 1}', YAML).document == {"a": 1}
    assert decoding.parse(b"{a: 1}", YAML).document == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n".encode() for i in range(8)
        ),
        b"a: &a [*a]",
        b"a: [1",
        b"- 1\n- 2\n",
        b"a: !!python/object/apply:os.system ['true']",
        b"\x00",
    ],
)  # fmt: skip
def test_bad_yaml_and_alias_bombs_are_refused(body: bytes):
    with pytest.raises(DecodeError):
        decoding.parse(body, YAML)
