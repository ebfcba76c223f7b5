"""Create queues, open and close them, change their weight, and see who waits in them.

`hekla queue COMMAND --help` tells more about each. `hekla why queue/NAME` says what it holds and who waits in it.

Examples:

  hekla queue create research --weight 3 --capability cpu=64,nvidia.com/gpu=8

  hekla queue list -w

  hekla queue operate research --action close

  hekla queue delete research
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Output, Watch

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.queues)]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False, autocompletion=completion.queues)]


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    weight: Annotated[int, typer.Option("-w", "--weight", help="Its part beside its siblings, 1 to 65535.")] = 1,
    parent: Annotated[
        str,
        typer.Option("--parent", help="The queue above; root by default.", show_default=False,
                     autocompletion=completion.queues),
    ] = "",
    capability: Annotated[
        str, typer.Option("--capability", help="The most it may hold: cpu=64,memory=1Ti.", show_default=False)
    ] = "",
    deserved: Annotated[str, typer.Option("--deserved", help="Its fair share.", show_default=False)] = "",
    guarantee: Annotated[str, typer.Option("--guarantee", help="What is kept for it.", show_default=False)] = "",
    state: Annotated[str, typer.Option("-S", "--state", help="Open or Closed.")] = "Open",
    output: Output = "",
    kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Create a queue.

    Examples:

      hekla queue create research

      hekla queue create vision --parent research --weight 2 --capability nvidia.com/gpu=4
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document, resource_name
    from hekla.cli.volcano.amounts import parse_amounts
    from hekla.cli.volcano.listing import without_managed_fields
    from hekla.cli.volcano.queues import create_queue

    kept = parse_amounts(guarantee, "--guarantee")
    amounts: Document = {
        "capability": parse_amounts(capability, "--capability"),
        "deserved": parse_amounts(deserved, "--deserved"),
        "guarantee": {"resource": kept} if kept else {},
    }
    given = {key: value for key, value in amounts.items() if value}
    made = run_connected(
        kubeconfig, lambda link: create_queue(link, name, weight=weight, state=state, parent=parent, amounts=given)
    )
    if output:
        print_document(without_managed_fields(made), output)
    else:
        typer.echo(f"{resource_name(made)} created")


def list_queues(output: Output = "", watch: Watch = False, kubeconfig: Kubeconfig = "") -> None:
    """List queues with their state, their weight and how many gangs are in them.

    Examples:

      hekla queue list

      hekla queue list -o wide

      hekla queue list -w
    """
    from hekla.api.volcano import Queue
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.listing import Listing
    from hekla.cli.volcano.queues import COLUMNS

    listing = Listing(kind=Queue.kind_info, columns=COLUMNS, output=output, is_watched=watch)
    run_connected(kubeconfig, listing.show)


def get(name: Name, output: Output = "", kubeconfig: Kubeconfig = "") -> None:
    """Show one queue.

    Examples:

      hekla queue get research

      hekla queue get research -o yaml
    """
    from hekla.api.volcano import Queue
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document
    from hekla.cli.volcano.columns import Rows
    from hekla.cli.volcano.listing import without_managed_fields
    from hekla.cli.volcano.lookups import found
    from hekla.cli.volcano.queues import COLUMNS, queues_with_counts

    if output not in ("", "wide"):
        stored = run_connected(kubeconfig, lambda link: found(link, Queue.kind_info, name))
        print_document(without_managed_fields(stored), output)
        return
    counted = run_connected(kubeconfig, lambda link: queues_with_counts(link, name))
    typer.echo(Rows(COLUMNS, wide=output == "wide", namespaces=False).table(counted))


def operate(
    name: Name,
    action: Annotated[str, typer.Option("-a", "--action", help="open, close or update.", show_default=False)] = "",
    weight: Annotated[int, typer.Option("-w", "--weight", help="The new weight, for update.", show_default=False)] = 0,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Open or close a queue, with those below it, or change its weight. A closed queue takes no new jobs.

    Examples:

      hekla queue operate research --action close

      hekla queue operate research --action update --weight 5
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.queues import operate_queue

    done = run_connected(kubeconfig, lambda link: operate_queue(link, name, action, weight))
    typer.echo(f"queue.scheduling.volcano.sh/{name} {done}")


def delete(
    names: Names,
    force: Annotated[bool, typer.Option("--force", help="Even with jobs in it that have not ended.")] = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Delete queues that have no children and no jobs.

    Examples:

      hekla queue delete research
    """
    from hekla.cli.connection import run_connected
    from hekla.cli.volcano.queues import delete_queue

    async def work(connection: "Connection") -> None:
        for name in names:
            await delete_queue(connection, name, is_forced=force)
            typer.echo(f"queue.scheduling.volcano.sh/{name} deleted")

    run_connected(kubeconfig, work)


COMMANDS = {"create": create, "list": list_queues, "get": get, "operate": operate, "delete": delete}
