"""How commands are listed by `--help`: by what people come for, each with its whole first sentence.

The library that reads the command line lists them in one row of the alphabet and cuts each sentence where the line ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.core import TyperGroup

SECTIONS: Mapping[str, Sequence[str]] = {
    "The platform of this machine": ("demo", "up", "status", "kubeconfig", "monitoring", "down"),
    "Objects": (
        *("get", "describe", "create", "apply", "patch", "scale", "label", "annotate", "delete", "wait"),
        *("logs", "exec", "port-forward", "explain", "api-resources"),
    ),
    "Why, and what if": ("why", "snapshot", "replay"),
    "Training": ("job", "queue", "jobflow", "jobtemplate", "vcctl"),
    "Serving": ("route", "engine"),
    "Agents": ("agent",),
    "On a cluster": ("install", "run", "scheduler"),
    "In LSF's manner": ("vsub", "vjobs", "vqueues", "vsuspend", "vresume", "vcancel"),
    "This program": ("version",),
}
"""The commands of `hekla` in the order in which a newcomer meets them."""

LONGEST = 120
"""Characters of a sentence that is told whole; a longer one ends at its first colon."""


class CommandList(TyperGroup):
    """Lists the commands below a word in their own order."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each section with its commands, in two columns that are the same for all of them."""
        shown = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        width = max(map(len, shown), default=0)
        for title, names in self.sections(shown):
            with formatter.section(title):
                rows = [(name.ljust(width), summary(self.commands[name].help or "")) for name in names]
                formatter.write_dl(rows)

    def sections(self, shown: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the titles with the commands that stand below them."""
        if shown:
            yield "Commands", shown


class FrontPage(CommandList):
    """Lists the commands of `hekla` itself by section."""

    def sections(self, shown: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the sections of which some command is shown."""
        for title, listed in SECTIONS.items():
            if some := [name for name in listed if name in shown]:
                yield title, some


def summary(text: str) -> str:
    """The first sentence of a help text in one line, without what follows a colon if it is long."""
    first = " ".join(text.partition("\n\n")[0].split())
    sentence = first.partition(". ")[0].rstrip(".")
    head = sentence if len(sentence) <= LONGEST else sentence.partition(": ")[0]
    return f"{head}."
