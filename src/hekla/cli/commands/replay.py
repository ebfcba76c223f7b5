"""Decide again by a snapshot, on any machine and without a cluster, and show the decisions.

Where the snapshot has the decisions of the live scheduler, they are compared: exit code 0 if they are the same, 1 if
not, with what differs. With --with, another configuration decides, and what would come out differently is shown.

Examples:

  hekla replay monday.hekla

  hekla replay monday.hekla --with stricter.conf

  hekla replay monday.hekla --as-scenario > tests/scenarios/gang/monday.yaml
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hekla.scheduler.configuration import Configuration
    from hekla.scheduler.decisions import DecisionDifference, Decisions
    from hekla.scheduler.snapshot import Snapshot

MOST_CYCLES = 10_000
GZIP = b"\x1f\x8b"

Cycles = Annotated[
    int,
    typer.Option("--cycles", min=1, max=MOST_CYCLES, help="Go on: pods run where they were put, and the next decides."),
]
With = Annotated[
    str, typer.Option("--with", metavar="CONF", help="Decide by this configuration, and compare.", show_default=False)
]
AsScenario = Annotated[bool, typer.Option("--as-scenario", help="Print a test in YAML of what was decided.")]
About = Annotated[
    list[str],
    typer.Option("--about", metavar="JOB", help="With --as-scenario: keep what matters for this job; repeatable."),
]
Form = Annotated[str, typer.Option("-o", "--output", help="json, yaml or wide.", show_default=False)]


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)],
    cycles: Cycles = 1,
    with_: With = "",
    as_scenario: AsScenario = False,
    about: About = [],  # noqa: B006  # typer wants a list, and nobody changes it
    output: Form = "",
) -> None:
    """Replay."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    if output not in ("", "json", "yaml", "wide"):
        raise CommandError(f'-o "{output}" is not known; use json, yaml or wide', EXIT_USAGE)
    snapshot = _read(file)
    if as_scenario:
        typer.echo(_scenario(file, snapshot, about), nl=False)
        return
    decided = _decided(file, snapshot, cycles)
    other = _decided(with_, snapshot, cycles, _configuration(with_)) if with_ else None
    differences = _differences(snapshot, decided[0], other[0] if other else None)
    if output in ("json", "yaml"):
        _print_documents(output, decided, other, snapshot, differences)
    else:
        _print_text(decided, other, with_, is_wide=output == "wide")
        _print_verdict(snapshot, differences, with_)
    if differences and other is None:
        raise typer.Exit(1)


def _read(file: str) -> "Snapshot":
    from hekla.cli.main import CommandError
    from hekla.scheduler.snapshot import SnapshotError, unpacked

    try:
        with Path(file).open("rb") as opened:
            head = opened.read(len(GZIP))  # what is no snapshot may be endless, such as /dev/zero
            return unpacked(head + opened.read() if head == GZIP else head)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None
    except SnapshotError as error:
        raise CommandError(f"{file}: {error}") from None


def _scenario(file: str, snapshot: "Snapshot", about: list[str]) -> str:
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.scheduler.as_scenario import UnknownJobError, scenario_text

    try:
        return scenario_text(snapshot, about, source=Path(file).name)
    except UnknownJobError as error:
        raise CommandError(f"--about: {error}", EXIT_USAGE) from None


def _configuration(file: str) -> "Configuration":
    from hekla.cli.main import CommandError
    from hekla.scheduler.configuration import ConfigurationError, parse_configuration
    from hekla.scheduler.reload import read_file

    try:
        return parse_configuration(read_file(Path(file)))
    except ConfigurationError as error:
        raise CommandError(f"{file}: {error}") from None


def _decided(
    file: str, snapshot: "Snapshot", cycles: int, configuration: "Configuration | None" = None
) -> "list[Decisions]":
    from hekla.cli.main import CommandError
    from hekla.scheduler.configuration import ConfigurationError
    from hekla.scheduler.engine_state import UnknownStateError
    from hekla.scheduler.replay import Replay

    try:
        return Replay(snapshot, configuration).cycles(cycles)
    except (ConfigurationError, UnknownStateError) as error:
        raise CommandError(f"{file}: {error}") from None


def _differences(snapshot: "Snapshot", decided: "Decisions", other: "Decisions | None") -> "list[DecisionDifference]":
    """Between this configuration and another, or between the live scheduler and this replay."""
    from hekla.scheduler.decisions import difference

    if other is not None:
        return difference(decided, other)
    return difference(snapshot.decisions, decided) if snapshot.decisions is not None else []


def _print_documents(
    form: str, decided: "list[Decisions]", other: "list[Decisions] | None", snapshot: "Snapshot",
    differences: "list[DecisionDifference]",
) -> None:  # fmt: skip
    import msgspec

    from hekla.cli.output import print_document

    document: dict[str, Any] = {"cycles": msgspec.to_builtins(decided)}
    if other is not None:
        document |= {"with": msgspec.to_builtins(other), "differences": msgspec.to_builtins(differences)}
    elif snapshot.decisions is not None:
        document |= {"isTheSame": not differences, "differences": msgspec.to_builtins(differences)}
    print_document(document, form)


def _print_text(decided: "list[Decisions]", other: "list[Decisions] | None", with_: str, *, is_wide: bool) -> None:
    for number, one in enumerate(decided, 1):
        _print_cycle(f"cycle {number}" if len(decided) > 1 else "decided", one, is_wide=is_wide)
    for number, one in enumerate(other or (), 1):
        name = f"cycle {number} with {with_}" if other and len(other) > 1 else f"with {with_}"
        _print_cycle(name, one, is_wide=is_wide)


def _print_cycle(title: str, decisions: "Decisions", *, is_wide: bool) -> None:
    from hekla.cli.output import columns_text
    from hekla.scheduler.decisions import rows, summary

    typer.echo(f"{title}: {summary(decisions)}")
    headers = ("decision", "what", "node", "queue", "why")
    cells = [row if is_wide else _shortened(row) for row in rows(decisions)]
    if cells:
        typer.echo(columns_text(headers, cells))


LONGEST_WHY = 100


def _shortened(row: "Sequence[str]") -> "Sequence[str]":
    *others, why = row
    return [*others, why if len(why) <= LONGEST_WHY else f"{why[: LONGEST_WHY - 3]}..."]


def _print_verdict(snapshot: "Snapshot", differences: "list[DecisionDifference]", with_: str) -> None:
    if with_:
        typer.echo(f"with {with_} everything is the same" if not differences else f"with {with_} it is otherwise:")
    elif snapshot.decisions is None:
        typer.echo("the snapshot has no decisions to compare with")
    else:
        typer.echo(
            "the same as the live scheduler decided" if not differences else "not what the live scheduler decided:"
        )
    for one in differences:
        typer.echo(f"  {one.sentence()}")
