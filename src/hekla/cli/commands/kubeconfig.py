"""Print the path, or the content, of the running platform's kubeconfig.

Examples:

  export KUBECONFIG=$(hekla kubeconfig)

  hekla kubeconfig --raw > ~/.kube/config
"""

from pathlib import Path
from typing import Annotated

import typer


def run(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The content, with its keys, instead of the path.")] = False,
) -> None:
    """Print the kubeconfig."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir
    from hekla.cli.main import EXIT_UNREACHABLE, CommandError
    from hekla.cli.platform_errors import in_words

    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    with in_words():
        text = directory.kubeconfig.read_text() if directory.kubeconfig.exists() else ""
    if not text:
        raise CommandError(
            f"{directory.root} has no kubeconfig yet; start a platform with `hekla up --detach`", EXIT_UNREACHABLE
        )
    typer.echo(text if raw else str(directory.kubeconfig), nl=not raw)
