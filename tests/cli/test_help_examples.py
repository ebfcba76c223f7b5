"""What the helps show as examples is read by the commands that show it: options, arguments and their number."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from hekla.cli.main import _app_of, _own_app, _without_values, command_names, command_paths

SHELL = {"|", ">", "<", "#", "&&"}
"""Where a shell takes over."""


def command_at(path: tuple[str, ...]) -> Any:
    command: Any = get_command(_own_app(list(path)))
    for name in path:
        command = command.commands[name]
    return command


def examples(path: tuple[str, ...]) -> list[str]:
    _, found, rest = (command_at(path).help or "").partition("Examples:\n")
    return [line.strip() for line in rest.splitlines() if line.strip()] if found else []


def calls(line: str) -> Iterator[list[str]]:
    """The words of each program of ours in a line of shell, with its name."""
    words = shlex.split(line.replace("$(", " ").replace(")", " ") if "$(" in line else line)
    programs = {"hekla", *command_names()}
    for place, word in enumerate(words):
        if word in programs and (not place or words[place - 1] == "|" or "=" in words[place - 1]):
            rest = words[place:]
            yield rest[: next((end for end, one in enumerate(rest) if one in SHELL), len(rest))]


def read(program: str, words: list[str]) -> None:
    """Let click read the words as the program does, and run nothing."""
    words = list(_without_values(words))
    command: Any = get_command(_own_app(words) if program == "hekla" else _app_of(program))
    context = None
    while True:
        context = command.make_context(program, list(words), parent=context)
        if not hasattr(command, "commands"):
            return
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("name", command_names())
def test_every_command_shows_examples_that_it_can_read(name: str) -> None:
    for path in [one for one in command_paths() if one[0] == name]:
        lines = examples(path)
        assert lines or hasattr(command_at(path), "commands"), f"hekla {' '.join(path)} shows no example"
        for line in lines:
            found = list(calls(line))
            assert found or " -- hekla " in line, line
            for program, *words in found:
                read(program, words)


@pytest.mark.parametrize(
    "words", [["label", "--nope"], ["explain"], ["job", "lst"], ["agent", "fork", "S", "--count", "x"]]
)
def test_what_a_command_cannot_read_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"No such option|Missing parameter|No such command|not a valid"):
        read("hekla", words)
