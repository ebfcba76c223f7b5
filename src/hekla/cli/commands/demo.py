"""Play the demo: a platform starts, a gang of real processes trains, another waits its turn, and all ends by itself.

Examples:

  hekla demo

  hekla demo --simulated     # the engine simulator serves even where vLLM is installed
"""

from typing import Annotated

import typer


def run(
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Let the engine simulator serve, even where vLLM is installed.")
    ] = False,
) -> None:
    """Play the demo."""
    from hekla.app.data_directory import DataDirectoryError
    from hekla.app.demo import run_demo
    from hekla.app.demo_errors import DemoError
    from hekla.app.serving import PlatformError
    from hekla.cli.main import CommandError
    from hekla.kube.errors import KubeError

    try:
        run_demo(is_simulated=simulated)
    except BaseExceptionGroup as group:
        raise CommandError(f"the demo ended early: {_first(group)}") from None
    except (DemoError, PlatformError, DataDirectoryError, KubeError) as error:
        raise CommandError(f"the demo ended early: {error}") from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
