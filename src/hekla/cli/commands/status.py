"""Say whether a platform runs, where, and how its nodes and queues are.

Exit code 0 if it runs and is ready, 3 if not.

Examples:

  hekla status

  hekla status --data-dir /tmp/h -o json
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli.options import Output

if TYPE_CHECKING:
    from hekla.cli.connection import Connection


def run(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The platform's data directory.", show_default=False)
    ] = None,
    output: Output = "",
) -> None:
    """Say how the platform is."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir
    from hekla.cli.connection import run_connected
    from hekla.cli.main import EXIT_UNREACHABLE, CommandError
    from hekla.cli.output import print_document
    from hekla.cli.platform_errors import in_words

    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    with in_words():
        running = directory.running()
    if running is None:
        raise CommandError(
            f"no platform runs on {directory.root}; start one with `hekla up --detach`", EXIT_UNREACHABLE
        )
    facts: dict[str, Any] = {
        "url": running.url,
        "pid": running.pid,
        "version": running.version,
        "dataDir": str(directory.root),
    }
    facts |= run_connected(str(directory.kubeconfig), _facts)
    if output:
        print_document(facts, output)
    else:
        typer.echo(_text(facts))


async def _facts(connection: "Connection") -> dict[str, Any]:
    from hekla.api.core import Node, Pod

    nodes = (await connection.client.list(Node)).items
    pods = (await connection.client.list(Pod)).items
    ready = sum(any(c.type == "Ready" and c.status == "True" for c in node.status.conditions) for node in nodes)
    phases: dict[str, int] = {}
    for pod in pods:
        phase = pod.status.phase or "Pending"
        phases[phase] = phases.get(phase, 0) + 1
    return {"nodes": {"ready": ready, "all": len(nodes)}, "pods": phases}


def _text(facts: dict[str, Any]) -> str:
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(facts["pods"].items())) or "none"
    return (
        f"hekla {facts['version']} runs at {facts['url']} (process {facts['pid']}, data in {facts['dataDir']})\n"
        f"nodes: {facts['nodes']['ready']} of {facts['nodes']['all']} ready\npods:  {pods}"
    )
