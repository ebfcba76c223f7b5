"""List the resource types that the server has.

Examples:

  hekla api-resources

  hekla api-resources --api-group batch.volcano.sh
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.options import Kubeconfig

if TYPE_CHECKING:
    from hekla.cli.connection import Connection


def run(
    api_group: Annotated[str, typer.Option("--api-group", help="Only this group.", show_default=False)] = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """List resource types."""
    from hekla.cli.connection import run_connected

    run_connected(kubeconfig, lambda connection: _print(connection, api_group))


async def _print(connection: "Connection", group: str) -> None:
    from hekla.cli.output import columns_text
    from hekla.cli.resources import discover

    kinds = [one.kind for one in (await discover(connection)).served if not group or one.kind.group == group]
    rows = [[k.plural, ",".join(k.short_names), k.api_version, str(k.is_namespaced).lower(), k.kind] for k in kinds]
    typer.echo(columns_text(["Name", "Shortnames", "APIVersion", "Namespaced", "Kind"], rows))
