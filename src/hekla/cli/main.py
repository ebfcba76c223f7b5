"""The `hekla` command: finds one module per subcommand in `commands/` and turns errors into sentences.

Only the module of the command that was asked for is imported, so that `hekla version` answers in a tenth of a second, half
of which the library that reads the command line takes to load.

Exit codes: 0 done · 1 the request was understood and refused · 2 wrong usage · 3 the platform cannot be reached ·
124 a wait timed out · 130 interrupted. `hekla exec` passes on the command's own.
"""

import errno
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hekla.cli.groups import Commands, Group

if TYPE_CHECKING:
    from typer import Typer

OWN_NAME = "hekla"
PURPOSE = "One scheduling platform for training jobs, LLM serving and AI-agent sandboxes."
EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_TIMEOUT, EXIT_INTERRUPTED = 1, 2, 3, 124, 130


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CommandError(Exception):
    """Something the user can mend; printed as one sentence."""

    def __init__(self, sentence: str, exit_code: int = EXIT_REFUSED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def main(arguments: Sequence[str] | None = None, *, program: str = OWN_NAME) -> int:
    """Run one command and return its exit code; `program` is the name that the user called."""
    if arguments is None:
        _read_and_write_utf8()
        _open_what_is_closed()
    given = list(_without_values(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _invoke(given, program)
        sys.stdout.flush()
        return code
    except CommandError as error:
        return _refused(program, str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _flush_what_was_printed()
        return _refused(program, f"{error.filename or 'the output'} cannot be written: {error.strerror}")
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        # no more than that: the rest may be a secret
        return _refused(program, f"{error.object[error.start : error.end]!r} is not text in UTF-8")


def _refused(program: str, sentence: str, exit_code: int = EXIT_REFUSED) -> int:
    try:
        print(f"{program}: {sentence}", file=sys.stderr, flush=True)  # noqa: T201  # the command line's own voice
    except OSError:
        _give_up(2)  # its disk is full, too: the exit code is all that can be said
    return exit_code


def _flush_what_was_printed() -> None:
    """It is sound where another file had no room."""
    try:
        sys.stdout.flush()
    except OSError:
        _give_up(1)


def _give_up(descriptor: int) -> None:
    """What is left for it is not tried again when Python ends, which would change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _read_and_write_utf8() -> None:
    """Manifests, arguments and answers are UTF-8 whatever the locale says: Python can only be told when it starts."""
    if sys.getfilesystemencoding().lower() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # for those that we start, and so that this happens once
        # a Python of `-E` or `-I` reads no environment, and of two options of a name the first counts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_what_is_closed() -> None:
    """Who closes standard input or output means nothing: else the next socket would get its number, and what is written to it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the program runs


KUBECTL_ONLY = {
    "top": "`hekla job top` shows which jobs hold what",
    "events": "`hekla describe TYPE/NAME` shows an object's events, `hekla get events` those of the namespace",
    "edit": "`hekla patch` changes fields, `hekla apply -f` a whole manifest",
    "replace": "`hekla apply -f` changes objects as a manifest says",
    "set": "`hekla patch` changes fields",
    **dict.fromkeys(
        ("attach", "auth", "autoscale", "cluster-info", "config", "cordon", "cp", "debug", "diff", "drain", "expose"),
        "",
    ),
    **dict.fromkeys(("kustomize", "proxy", "rollout", "taint", "uncordon"), ""),
}
"""What kubectl's users type: what does it here, or nothing where kubectl itself is to be asked."""

ON_UNLESS_TOLD = frozenset({"--wait", "--leader-elect", "--enable-prefix-caching", "--requirements", "--fast-lane"})
"""Switches that are on unless they are turned off; false for any other is what it is anyway."""


def _without_values(words: Sequence[str]) -> Iterator[str]:
    """Turn what kubectl's users write into what is read here: `--wait=false` is `--no-wait`, `-o=json` is `-o json`."""
    own = list(words).index("--") if "--" in words else len(words)
    for word in words[:own]:
        switch, equals, value = word.partition("=")
        if equals and len(switch) == 2 and switch[0] == "-" and switch[1].isalpha():
            yield from (switch, value)
        elif not word.startswith("--") or value not in ("true", "false"):
            yield word
        elif value == "true":
            yield switch
        elif switch in ON_UNLESS_TOLD:
            yield f"--no-{switch.removeprefix('--')}"
    yield from words[own:]


def _invoke(given: list[str], program: str) -> int:
    if given == ["--version"]:  # what every other program is asked first
        given = ["version"]
        if program != OWN_NAME and not hasattr(
            _module_of(program), "COMMANDS"
        ):  # `vsub` is one command, and has no such one
            program = OWN_NAME
    if program == OWN_NAME and given and given[0] in KUBECTL_ONLY:
        hint = KUBECTL_ONLY[given[0]] or "kubectl has it: export KUBECONFIG=$(hekla kubeconfig)"
        raise CommandError(f'there is no command "{given[0]}"; {hint}', EXIT_USAGE)
    app = _own_app(given) if program == OWN_NAME else _app_of(program)
    try:
        app(args=given, prog_name=program)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _own_app(given: list[str]) -> "Typer":
    """`hekla` itself: the command that is asked for, or all of them where it cannot be told which."""
    app = _empty_app(is_front_page=True)

    @app.callback(help=PURPOSE)
    def root() -> None:
        """Do nothing before a command."""

    names = command_names()
    asked = next((word for word in given or _words_to_complete() if not word.startswith("-")), "")
    for name in [asked] if asked in names else names:
        _register(app, name)
    return app


def _app_of(name: str) -> "Typer":
    """A command as a program of its own, such as `vcctl`."""
    app, module = _empty_app(), _module_of(name)
    if not hasattr(module, "COMMANDS"):
        _register(app, name)
        return app

    @app.callback(help=_as_written(module.__doc__ or ""))
    def root() -> None:
        """Do nothing before a command."""

    _register_group(app, module.COMMANDS)
    return app


def _empty_app(help_text: str = "", *, is_front_page: bool = False) -> "Typer":
    import typer

    from hekla.cli.front_page import CommandList, FrontPage

    return typer.Typer(
        help=help_text,
        cls=FrontPage if is_front_page else CommandList,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        pretty_exceptions_enable=False,
    )


def _words_to_complete() -> list[str]:
    """The finished words of the line that a shell asks to complete; a shell's Tab key should not import everything."""
    if "COMP_CWORD" in os.environ:
        return os.environ.get("COMP_WORDS", "").split()[1 : int(os.environ["COMP_CWORD"])]
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return words if line.endswith(" ") else words[:-1]


def command_names() -> list[str]:
    """Every command there is, by the modules of `hekla.cli.commands`; `port_forward` is `port-forward`."""
    package = importlib.import_module("hekla.cli.commands")
    return sorted(module.name.strip("_").replace("_", "-") for module in pkgutil.iter_modules(package.__path__))


def command_paths() -> Iterator[tuple[str, ...]]:
    """Every command with those below it: `("job",)`, `("job", "run")`."""
    for name in command_names():
        yield (name,)
        yield from ((name, *below) for below in _below(getattr(_module_of(name), "COMMANDS", {})))


def _below(commands: Commands) -> Iterator[tuple[str, ...]]:
    for name, one in commands.items():
        yield (name,)
        if isinstance(one, Group):
            yield from ((name, *below) for below in _below(one.commands))


def _register(app: "Typer", name: str) -> None:
    module = _module_of(name)
    help_text = _as_written(module.__doc__ or "")
    if hasattr(module, "COMMANDS"):
        app.add_typer(_group_app(help_text, module.COMMANDS), name=name)
    else:
        app.command(name, help=help_text, **getattr(module, "OPTIONS", {}))(module.run)


def _group_app(help_text: str, commands: Commands) -> "Typer":
    app = _empty_app(help_text)
    _register_group(app, commands)
    return app


def _register_group(app: "Typer", commands: Commands) -> None:
    for name, one in commands.items():
        if isinstance(one, Group):
            app.add_typer(_group_app(one.help, one.commands), name=name)
        else:
            app.command(name, help=_as_written(inspect.cleandoc(one.__doc__ or "")))(one)


def _module_of(name: str) -> Any:
    return importlib.import_module(f"hekla.cli.commands.{_module_name(name)}")


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
