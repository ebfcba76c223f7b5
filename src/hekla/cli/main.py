"""The `hekla` command: finds one module per subcommand in `commands/` and turns errors into sentences.

Only the module of the command that was asked for is imported, so that `hekla version` answers in a tenth of a second.

Exit codes: 0 done · 1 the request was understood and refused · 2 wrong usage · 3 the platform cannot be reached ·
124 a wait timed out · 130 interrupted. `hekla exec` passes on the command's own.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_TIMEOUT, EXIT_INTERRUPTED = 1, 2, 3, 124, 130


class CommandError(Exception):
    """Something the user can mend; printed as one sentence."""

    def __init__(self, sentence: str, exit_code: int = EXIT_REFUSED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(_without_values(sys.argv[1:] if arguments is None else arguments))
    try:
        return _invoke(given)
    except CommandError as error:
        print(f"hekla: {error}", file=sys.stderr)  # noqa: T201  # the command line's own voice
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _without_values(words: Sequence[str]) -> Iterator[str]:
    """Turn switches as kubectl spells them into ours: `--wait=false` is `--no-wait`, `--all=true` is `--all`."""
    own = list(words).index("--") if "--" in words else len(words)
    for word in words[:own]:
        switch, _, value = word.partition("=")
        if not word.startswith("--") or value not in ("true", "false"):
            yield word
        elif value == "true":
            yield switch
        elif switch == "--wait":  # the one switch that is on unless it is turned off
            yield "--no-wait"
    yield from words[own:]


def _invoke(given: list[str]) -> int:
    import typer

    names = command_names()
    asked = next((word for word in given if not word.startswith("-")), "")
    program = typer.Typer(
        help="One scheduling platform for training jobs, LLM serving and AI-agent sandboxes.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        pretty_exceptions_enable=False,
    )

    @program.callback()
    def root() -> None:
        """One scheduling platform for training jobs, LLM serving and AI-agent sandboxes."""

    for name in [asked] if asked in names else names:
        _register(program, name)
    try:
        program(args=given, prog_name="hekla")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def command_names() -> list[str]:
    """Every command there is, by the modules of `hekla.cli.commands`; `port_forward` is `port-forward`."""
    package = importlib.import_module("hekla.cli.commands")
    return sorted(module.name.strip("_").replace("_", "-") for module in pkgutil.iter_modules(package.__path__))


def _register(program: Any, name: str) -> None:
    module = importlib.import_module(f"hekla.cli.commands.{_module_name(name)}")
    run: Callable[..., Any] = module.run
    program.command(name, help=_as_written(module.__doc__ or ""), **getattr(module, "OPTIONS", {}))(run)


def _as_written(text: str) -> str:
    """A help text whose examples keep their lines: click reflows every paragraph not marked with a backspace."""
    head, examples, rest = text.partition("\nExamples:\n")
    if not examples:
        return text
    lines = "\n".join(line for line in rest.splitlines() if line.strip())
    return f"{head}\n\b\nExamples:\n{lines}\n"


def _module_name(command: str) -> str:
    stem = command.replace("-", "_")
    return f"{stem}_" if stem in {"exec"} else stem


if __name__ == "__main__":
    # the module that commands import their CommandError from, which is another than this one when run by `python -m`
    sys.exit(importlib.import_module("hekla.cli.main").main())
