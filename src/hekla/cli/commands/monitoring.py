"""Write what Prometheus and Grafana need to watch the platform of this machine: where to read, alerts, dashboards.

The files name the platform's addresses and certificates, so write them anew after it was started on other ports. For a cluster
see `hekla install --render --with monitoring`.

Examples:

  hekla monitoring ./watch && prometheus --config.file=./watch/prometheus.yml

  hekla monitoring ./watch && GF_PATHS_PROVISIONING=$PWD/watch/grafana grafana server
"""

from pathlib import Path
from typing import Annotated

import typer


def run(
    directory: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.", show_default=False)],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)
    ] = None,
) -> None:
    """Write the files and say which."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.monitoring.files import write_monitoring
    from hekla.app.settings import default_data_dir
    from hekla.cli.main import EXIT_UNREACHABLE, CommandError
    from hekla.cli.platform_errors import in_words

    platform = DataDirectory((data_dir or default_data_dir()).absolute())
    with in_words():
        running = platform.running()
    if running is None:
        raise CommandError(f"{platform.nobody_runs()}; start one with `hekla up --detach`", EXIT_UNREACHABLE)
    try:
        written = write_monitoring(platform, running, directory.absolute())
    except OSError as error:
        raise CommandError(
            f"{error.filename or directory} cannot be written: {error.strerror}; name another directory"
        ) from None
    for path in written:
        typer.echo(path)
