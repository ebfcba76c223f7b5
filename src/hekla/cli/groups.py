"""Commands under one word: `hekla job run`, `hekla vcctl queue list`.

A module of `commands/` that has COMMANDS instead of `run` is such a group. `main.py` makes the command line of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

Command = Callable[..., None]
"""A function whose parameters are the options, and whose docstring is the help."""

Commands = Mapping[str, Union[Command, "Group"]]


@dataclass(frozen=True)
class Group:
    """Commands within a group that share a word of their own."""

    help: str
    commands: Commands
