"""Stop the embedded platform that runs on a data directory, and everything it runs.

Examples:

  hekla down

  hekla down --data-dir /tmp/h
"""

from pathlib import Path
from typing import Annotated

import typer


def run(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long it has before it is killed: 30s, 1m.")] = "30s",
) -> None:
    """Stop the platform."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.detached import stop
    from hekla.app.serving import PlatformError
    from hekla.app.settings import default_data_dir
    from hekla.cli.durations import parse_duration
    from hekla.cli.main import CommandError
    from hekla.cli.platform_errors import in_words

    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    with in_words(PlatformError):
        running = directory.running()
        if running is None:
            typer.echo(directory.nobody_runs())
            return
        typer.echo(f"stopping process {running.pid} ...")
        ended_well = stop(running, timeout_s=parse_duration(timeout, "--timeout"))
    if not ended_well:
        raise CommandError(
            f"process {running.pid} did not end in {timeout} and was killed; nothing that was acknowledged is lost"
        )
    typer.echo("stopped")
