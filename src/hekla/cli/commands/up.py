"""Start the embedded platform: an API server, a scheduler, the controllers and nodes that run real processes.

Examples:

  hekla up

  hekla up --detach --nodes 2 --gpus-per-node 8

  hekla up --data-dir /tmp/h --nodes 0 --without scheduler

  hekla up --simulated-nodes 1000

  hekla up --scheduler-conf volcano-scheduler.conf

  hekla up --gpus-per-node 8 --engine-python /opt/vllm/bin/python
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.app.settings import Settings, SettingsError, default_data_dir

if TYPE_CHECKING:
    from hekla.app.embedded import Platform

HELP = Settings.field_help()


def run(
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready, and leave it running.")] = False,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help=HELP["data_dir"], show_default=False)] = None,
    port: Annotated[int, typer.Option("--port", help=HELP["port"])] = Settings.port,
    router_port: Annotated[int, typer.Option("--router-port", help=HELP["router_port"])] = Settings.router_port,
    agents_port: Annotated[int, typer.Option("--agents-port", help=HELP["agents_port"])] = Settings.agents_port,
    nodes: Annotated[int, typer.Option("--nodes", help=HELP["nodes"])] = Settings.nodes,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", help=HELP["gpus_per_node"])] = Settings.gpus_per_node,
    cpu_per_node: Annotated[str, typer.Option("--cpu-per-node", help=HELP["cpu_per_node"])] = Settings.cpu_per_node,
    memory_per_node: Annotated[str, typer.Option("--memory-per-node", help=HELP["memory_per_node"])] = "",
    simulated_nodes: Annotated[int, typer.Option("--simulated-nodes", help=HELP["simulated_nodes"])] = 0,
    sandbox_grace_s: Annotated[
        int, typer.Option("--sandbox-grace-s", help=HELP["sandbox_grace_s"])
    ] = Settings.sandbox_grace_s,
    without: Annotated[list[str], typer.Option("--without", help=HELP["without"])] = [],  # noqa: B006 - typer copies it
    scheduler_conf: Annotated[
        Path | None, typer.Option("--scheduler-conf", help=HELP["scheduler_conf"], show_default=False)
    ] = None,
    engine_python: Annotated[
        Path | None,
        typer.Option("--engine-python", help=HELP["engine_python"], envvar="HEKLA_ENGINE_PYTHON", show_default=False),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help=HELP["log_level"])] = Settings.log_level,
    ready_fd: Annotated[int, typer.Option("--ready-fd", hidden=True)] = -1,
) -> None:
    """Start the platform."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    try:
        settings = Settings(
            data_dir=(data_dir or default_data_dir()).absolute(),
            port=port,
            router_port=router_port,
            agents_port=agents_port,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            cpu_per_node=cpu_per_node,
            memory_per_node=memory_per_node,
            simulated_nodes=simulated_nodes,
            sandbox_grace_s=sandbox_grace_s,
            log_level=log_level,
            scheduler_conf=checked_configuration(scheduler_conf) if scheduler_conf else None,
            engine_python=checked_python(engine_python) if engine_python else None,
            without=frozenset(part for one in without for part in one.split(",") if part),
        )
    except SettingsError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    if detach:
        start_and_leave(settings)
    else:
        serve(settings, ready_fd)


def checked_configuration(file: Path) -> Path:
    """The file's full path, if a scheduler can start by it."""
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.scheduler.configuration import ConfigurationError, parse_configuration
    from hekla.scheduler.reload import read_file

    try:
        parse_configuration(read_file(file))
    except ConfigurationError as error:
        raise CommandError(f"--scheduler-conf {file}: {error}", EXIT_USAGE) from None
    return file.absolute()


def checked_python(python: Path) -> Path:
    """The program's full path, if it finds vLLM."""
    from hekla.app.engine_environment import EngineError, environment_of
    from hekla.cli.main import EXIT_USAGE, CommandError

    try:
        return environment_of(python).python
    except EngineError as error:
        raise CommandError(f"--engine-python {python}: {error}", EXIT_USAGE) from None


def start_and_leave(settings: Settings) -> None:
    """Start the platform in a session of its own and say where it is."""
    from hekla.app.detached import start_detached
    from hekla.app.serving import PlatformError
    from hekla.cli.platform_errors import in_words

    missing = missing_nodes(settings)
    with in_words(PlatformError):
        url = start_detached(settings)
    typer.echo(started_text(url, settings) + missing)


def serve(settings: Settings, ready_fd: int) -> None:
    """Run until a signal comes; the first one ends in good order, a second at once."""
    from hekla.app.serving import PlatformError, serve_platform
    from hekla.cli.platform_errors import in_words

    missing = missing_nodes(settings)

    def ready(platform: "Platform") -> None:
        if ready_fd < 0:
            typer.echo(started_text(platform.url, settings) + missing + "\nCtrl-C stops it.")

    with in_words(PlatformError):
        serve_platform(settings, ready, ready_fd=ready_fd)


def started_text(url: str, settings: Settings) -> str:
    """What to do next."""
    kubeconfig = settings.data_dir / "kubeconfig"
    lines = [f"hekla is ready at {url}", f"  export KUBECONFIG='{kubeconfig}'    # for kubectl and every other client"]
    return "\n".join(lines)


def missing_nodes(settings: Settings) -> str:
    """A line about the nodes that the last start on this directory had and this one has not, before this one begins.

    Flags are easily left out after a reboot, and jobs that wait for GPUs, or begin anew, are far from the reason.
    """
    from hekla.app.data_directory import DataDirectory

    before, now = DataDirectory(settings.data_dir).last_nodes(), settings.node_counts
    if all(count <= now.get(flag, 0) for flag, count in before.items()):
        return ""
    flags = " ".join(f"{flag} {count}" for flag, count in before.items() if count)
    return (
        f"\n  note: the last start had {flags}, and this one has less: what ran there begins anew elsewhere, or waits;"
        "\n        `hekla down`, and `hekla up` with these flags, if that is not meant"
    )
