"""Check a file of Volcano's scheduler configuration, or show the one that the running platform's scheduler uses.

`lint FILE` prints what is wrong as FILE:LINE: SENTENCE, errors first; - reads standard input. Exit code 1 if a line is
an error or a warning, 0 if there are notes only (what this build does not have yet) or nothing.

Examples:

  hekla scheduler lint volcano-scheduler.conf

  hekla scheduler lint volcano-scheduler.conf -o json

  hekla scheduler config
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli.options import Kubeconfig, Output, SchedulerName

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.scheduler.configuration import Finding


def run(
    words: Annotated[list[str], typer.Argument(metavar="lint FILE | config", show_default=False)],
    output: Output = "",
    scheduler_name: SchedulerName = "volcano",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Check or show a scheduler configuration."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    match words:
        case ["lint", file]:
            lint(file, output)
        case ["config"]:
            show(kubeconfig, output, scheduler_name)
        case _:
            asked = " ".join(words)
            raise CommandError(f'"{asked}" is not known; use `scheduler lint FILE` or `scheduler config`', EXIT_USAGE)


def lint(file: str, output: str) -> None:
    """Say everything that there is to say about a file."""
    from hekla.scheduler.configuration import Severity, check_text

    findings = sorted(check_text(_text_of(file)), key=lambda one: (list(Severity).index(one.severity), one.line))
    if output:
        from hekla.cli.output import print_document

        print_document({"file": file, "findings": [_document(one) for one in findings]}, output)
    else:
        for one in findings:
            typer.echo(f"{file}:{one.line or 1}: {one.severity}: {one.sentence}")
        if not findings:
            typer.echo(f"{file} is right")
    if any(one.severity is not Severity.NOTE for one in findings):
        raise typer.Exit(1)


def _text_of(file: str) -> str:
    from hekla.cli.main import CommandError
    from hekla.scheduler.configuration import ConfigurationError
    from hekla.scheduler.reload import read_file, read_stream

    try:
        return read_stream(sys.stdin) if file == "-" else read_file(Path(file))
    except ConfigurationError as error:
        raise CommandError(f"{file} {error}") from None


def _document(finding: "Finding") -> dict[str, Any]:
    return {"line": finding.line, "severity": finding.severity.value, "sentence": finding.sentence}


def show(kubeconfig: str, output: str, scheduler_name: str) -> None:
    """Print the configuration that is in use, with where it comes from."""
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document

    found = run_connected(kubeconfig, lambda connection: _in_use(connection, scheduler_name))
    if output:
        print_document(found, output)
        return
    typer.echo(f"# from {found['source']}")
    for warning in (*found["warnings"], *found.get("measurements", ())):
        typer.echo(f"# {warning}")
    if found.get("refused"):
        typer.echo(f"# refused: {found['refused']}")
    typer.echo(found["configuration"].rstrip("\n"))


async def _in_use(connection: "Connection", scheduler_name: str) -> dict[str, Any]:
    from hekla.api.explanation import SCHEDULER
    from hekla.cli.why_asking import of_scheduler

    return await of_scheduler(connection, SCHEDULER, scheduler_name)
