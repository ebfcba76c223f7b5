"""What a simulated engine answers where a request prescribes the form: tools that must be called, JSON by a schema, one of some texts.

By the official client, whose own reading of schemas and tools is what programs built against vLLM rely on.
"""

import contextlib
import enum
import json
from typing import Annotated, Literal

import openai
import pydantic
import pytest

from app.test_engine import HELLO, engine, run
from hekla.app.engine.bodies import Chat
from hekla.app.engine.checking import BadBodyError
from hekla.app.engine.prescribed import MOST_VALUES, prescribed, script_of
from hekla.simulation.engine.tokens import detokenize

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 3}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
OTHER = {"type": "function", "function": {"name": "other"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


class Colour(enum.Enum):
    RED = "red"


class Leaf(pydantic.BaseModel):
    kind: Literal["leaf"]
    size: Annotated[int, pydantic.Field(ge=7, le=9)]


class Tree(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=5, max_length=8)]
    colour: Colour
    leaf: Leaf
    children: list["Tree"]
    parent: "Tree | None"
    share: Annotated[float, pydantic.Field(gt=0, lt=1)]
    even: Annotated[int, pydantic.Field(multiple_of=4, gt=4)]
    below: Annotated[int, pydantic.Field(lt=-3)]
    flags: Annotated[list[bool], pydantic.Field(min_length=3)]
    many: dict[str, int]
    either: int | str


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_a_tool_that_must_be_called_is_called(choice, reason):
    async def story():
        async with engine() as (client, _, _):
            wished = {"model": "m", "messages": HELLO, "tools": [TOOL, OTHER], "tool_choice": choice}
            whole = (await client.chat.completions.create(**wished)).choices[0]
            assert whole.finish_reason == reason
            assert whole.message.content == ""
            [call] = whole.message.tool_calls
            assert (call.type, call.function.name) == ("function", "weather")
            assert call.id.startswith("chatcmpl-tool-")
            assert json.loads(call.function.arguments) == {"city": "fox", "days": 3}

            chunks = [chunk async for chunk in await client.chat.completions.create(**wished, stream=True)]
            deltas = [one.choices[0].delta.tool_calls[0] for one in chunks if one.choices[0].delta.tool_calls]
            assert (deltas[0].function.name, deltas[0].type) == ("weather", "function")
            assert all(one.id is None and one.function.name is None for one in deltas[1:])
            assert "".join(one.function.arguments for one in deltas) == call.function.arguments
            assert chunks[-1].choices[0].finish_reason == reason

    run(story())


def test_a_tool_that_may_be_called_is_not():
    async def story():
        async with engine() as (client, _, _):
            answer = await client.chat.completions.create(model="m", messages=HELLO, tools=[TOOL], max_tokens=4)
            assert answer.choices[0].message.tool_calls is None
            assert answer.choices[0].message.content

    run(story())


def test_an_answer_by_a_schema_is_read_by_the_client_as_what_it_describes():
    async def story():
        async with engine() as (client, _, _):
            answer = await client.chat.completions.parse(
                model="m", messages=HELLO, response_format=Tree, n=2, temperature=1
            )
            assert len(answer.choices) == 2
            tree = answer.choices[0].message.parsed
            assert isinstance(tree, Tree)
            assert tree.leaf.size == 7
            assert answer.choices[0].finish_reason == "stop"
            with pytest.raises(openai.LengthFinishReasonError):
                await client.chat.completions.parse(model="m", messages=HELLO, response_format=Tree, max_tokens=3)
            free = await client.chat.completions.create(
                model="m", messages=HELLO, response_format={"type": "json_object"}
            )
            assert json.loads(free.choices[0].message.content) == {}
            likely = await client.chat.completions.create(
                model="m", messages=HELLO, response_format={"type": "json_object"}, logprobs=True
            )
            assert "".join(one.token for one in likely.choices[0].logprobs.content) == likely.choices[0].message.content

    run(story())


def test_one_of_some_texts_is_written_whole():
    async def story():
        async with engine() as (client, _, _):
            wished = {"structured_outputs": {"choice": ["já, ég vil það 😀", "no"]}}
            chunks = await client.completions.create(model="m", prompt="x", stream=True, extra_body=wished)
            assert "".join([one.choices[0].text async for one in chunks]) == "já, ég vil það 😀"

    run(story())


@pytest.mark.parametrize("text", ["", "plain", "já, ég", "😀😀", "a😀b", "x\n\ny", "\x00", "<|im_end|>"])
def test_no_token_of_a_prescribed_answer_ends_within_a_character(text):
    assert "".join(detokenize([token]) for token in script_of(text)) == text


def asked(schema):
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return prescribed(Chat(messages=[], response_format=shape))


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({}, "fox"),
        (True, "fox"),
        ({"const": [1]}, [1]),
        ({"enum": [None, 1]}, None),
        ({"type": ["null", "string"]}, None),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, None),
        ({"allOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": "fox"}),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}, True),
        ({"prefixItems": [{"const": 1}, {"const": 2}], "items": False}, [1, 2]),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "string", "maxLength": 2}, "fo"),
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -5}, -5),
        ({"type": "array", "maxItems": 0}, []),
    ],
)  # fmt: skip
def test_the_smallest_document_is_written(schema, document):
    assert json.loads(asked(schema)) == document


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**18},
        {"type": "array", "minItems": 1e300},
        {"type": "string", "minLength": 10**18},
        {"required": [str(number) for number in range(MOST_VALUES + 1)]},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://elsewhere/x"},
        {"allOf": [{"$ref": "#"}]},
        {"type": "array", "minItems": 2, "items": {"type": "array", "minItems": 50, "items": {"type": "array", "minItems": 50}}},
        {"type": "number", "minimum": 1, "multipleOf": 1e-320},
        {"type": "wibble"},
        "text",
        7,
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_no_answer_fits_is_refused_at_once(schema):
    with pytest.raises(BadBodyError, match="Invalid JSON schema"):
        asked(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 7, "required": "a"}, {"enum": {}}, {"anyOf": []}, {"type": []}, {"type": {}}, {"minItems": "x", "type": "array"},
        {"type": "integer", "minimum": 1e308, "multipleOf": 1e-308}, {"type": "integer", "multipleOf": 0}, {"type": "number", "minimum": -1e308},
        {"type": "number", "maximum": 1e308, "exclusiveMaximum": 1e308}, {"format": 7}, {"allOf": [7]}, {"anyOf": [7]}, {"items": 7, "type": "array"},
        {"type": "integer", "minimum": 10**400}, {"type": "number", "minimum": 10**400, "multipleOf": 0.5}, {"maxLength": -5}, {"minLength": -5},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_without_sense_breaks_nothing(schema):
    with contextlib.suppress(BadBodyError):
        json.loads(asked(schema))


LONG = "y" * 1_000_000
WIDE = {f"p{number}": {"$ref": "#/$defs/a"} for number in range(5_000)}
A = {"$defs": {"a": {"type": "boolean"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 990, "items": {"const": "y" * 10_000}},
        {"type": "array", "minItems": 990, "items": {"enum": ["y" * 10_000]}},
        {"type": "array", "minItems": 990, "items": {"properties": {"y" * 10_000: {"const": 1}}}},
        {"type": "array", "minItems": 990, "items": {"required": ["y" * 10_000]}},
        {"type": "array", "minItems": 990, "items": {"minLength": 10_000}},
        {"type": "array", "minItems": 990, "items": {"type": "integer", "minimum": 10**4_000}},
        {"const": LONG},
        {"const": "\u00e9" * 50_000},
        {"$ref": "#" + LONG},
        {"type": "array", "minItems": 990, "items": {"type": "object", "properties": WIDE}, **A},
        {"type": "array", "minItems": 990, "items": {"allOf": [{"properties": WIDE}, {"properties": WIDE}]}, **A},
        {"type": "array", "minItems": 990, "items": {"anyOf": [7] * 10_000}},
        {"type": "array", "minItems": 990, "items": {"type": "object", "required": [7] * 10_000}},
        {"enum": [1, *[2] * 1_000_000]},
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_what_would_keep_everybody_else_waiting_is_refused(schema):
    with pytest.raises(
        BadBodyError, match=r"Invalid JSON schema: (it asks for an answer of|it is too large|a reference has)"
    ):
        asked(schema)


def test_a_long_description_is_read_once_however_many_items_have_it(monkeypatch):
    """990 items of a schema with 1 MB of description kept the engine for 37 s."""
    from hekla.app.engine import prescribed as module

    written, dumps = [], json.dumps
    monkeypatch.setattr(module.json, "dumps", lambda *a, **k: written.append(dumps(*a, **k)) or written[-1])
    items = {"type": "object", "properties": {"q": {"type": "string", "description": LONG}}}
    asked({"type": "array", "minItems": 990, "items": items})
    assert sum(map(len, written)) < 50_000


def test_an_answer_of_many_characters_is_no_choice():
    with pytest.raises(BadBodyError, match="Invalid choice: it asks for an answer of 1,000,000 characters"):
        prescribed(Chat(messages=[], structured_outputs={"choice": [LONG]}))


@pytest.mark.parametrize(("schema", "text"), [({"minLength": 5.0}, "fox f"), ({"maxLength": True}, "fox")])
def test_lengths_are_whole_numbers(schema, text):
    assert json.loads(asked({"type": "string", **schema})) == text


@pytest.mark.parametrize("schema", ['{"const": NaN}', '{"enum": [-Infinity]}', '{"type": "number", "minimum": 1e999}'])
def test_what_json_cannot_write_is_refused(schema):
    with pytest.raises(BadBodyError, match="Invalid JSON schema"):
        prescribed(Chat(messages=[], structured_outputs={"json": schema}))
