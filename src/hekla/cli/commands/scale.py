"""Say how many replicas there are to be.

Examples:

  hekla scale deployment/web --replicas 3

  hekla scale statefulset db --replicas 0 --current-replicas 1
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Selector

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.targets import Target


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TYPE[/NAME] [NAME...]", show_default=False, autocompletion=completion.types_and_names),
    ],
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="How many there are to be.", show_default=False)],
    current: Annotated[int, typer.Option("--current-replicas", help="Only if there are so many now; -1: always.")] = -1,
    namespace: Namespace = "",
    selector: Selector = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Change numbers of replicas."""
    from hekla.cli.connection import run_connected
    from hekla.cli.targets import targets_of

    async def work(connection: "Connection") -> None:
        for target in await targets_of(connection, words, namespace, selector=selector):
            await _scale(connection, target, replicas, current)

    run_connected(kubeconfig, work)


async def _scale(connection: "Connection", target: "Target", replicas: int, current: int) -> None:
    from hekla.cli.main import CommandError
    from hekla.cli.metadata_edits import MERGE_PATCH

    if "scale" not in target.served.subresources:
        raise CommandError(f"{target.label} cannot be scaled: its kind has no scale subresource; use `hekla patch`")
    patch: dict[str, object] = {"spec": {"replicas": replicas}}
    if current >= 0:
        found = await connection.client.request("GET", f"{target.path}/scale")
        if found["spec"].get("replicas", 0) != current:
            raise CommandError(f"{target.label} has {found['spec'].get('replicas', 0)} replicas, not {current}")
        patch["metadata"] = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await connection.client.request("PATCH", f"{target.path}/scale", patch, content_type=MERGE_PATCH)
    typer.echo(f"{target.label} scaled")
