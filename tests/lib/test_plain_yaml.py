"""Texts that PyYAML promises to refuse with one error and refuses with six."""

import pytest
import yaml

from hekla.apiserver.documents import yaml_value
from hekla.apiserver.status import StatusError
from hekla.lib import plain_yaml

LIES = (
    "!!bool x",
    "!!timestamp x",
    "!!int ''",
    "!!float x",
    "!!map [x]",
    "!!int 0b2",
    "2026-02-31",
    "[" * 200_000,
)


@pytest.mark.parametrize("value", LIES, ids=lambda value: value[:12])
def test_a_value_that_is_not_what_its_tag_says_is_a_yaml_error(value):
    with pytest.raises(yaml.YAMLError):
        plain_yaml.load(f"a: {value}")
    with pytest.raises(yaml.YAMLError):
        plain_yaml.load_all(f"a: 1\n---\na: {value}")


def test_bytes_that_are_no_text_are_a_yaml_error():
    with pytest.raises(yaml.YAMLError):
        plain_yaml.load(b"a: \xff")


def test_what_is_right_comes_as_it_is():
    assert plain_yaml.load("a: [1, yes, x]") == {"a": [1, True, "x"]}
    assert plain_yaml.load_all("1\n---\n2") == [1, 2]


@pytest.mark.parametrize("value", [one for one in LIES if not one[0].isdigit()], ids=lambda value: value[:12])
def test_the_api_server_answers_400(value):
    with pytest.raises(StatusError) as refused:
        yaml_value(f"a: {value}".encode())
    assert refused.value.code == 400
