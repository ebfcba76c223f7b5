"""Run a command in a container; its exit code is ours.

Examples:

  hekla exec train-worker-0 -- nvidia-smi

  hekla exec -it train-worker-0 -- sh

  echo data | hekla exec -i train-worker-0 -- wc -c
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.remote import Remote


def run(
    pod: Annotated[
        str, typer.Argument(metavar="POD | TYPE/NAME", show_default=False, autocompletion=completion.pods_or_types)
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARG...]", show_default=False)],
    container: Annotated[str, typer.Option("-c", "--container", help="Which container; the first by default.")] = "",
    stdin: Annotated[bool, typer.Option("-i", "--stdin", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("-t", "--tty", help="Give the command a terminal.")] = False,
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Run a command."""
    from hekla.cli.connection import run_connected
    from hekla.cli.main import EXIT_USAGE, CommandError
    from hekla.cli.remote import Remote

    if tty and not sys.stdin.isatty():
        raise CommandError("-t needs a terminal, and standard input is none; leave it out", EXIT_USAGE)

    async def work(connection: "Connection") -> int:
        from hekla.cli.commands.logs import pods_of

        where = namespace or connection.default_namespace
        [name, *_] = await pods_of(connection, pod, where)
        remote = Remote(
            namespace=where, pod=name, container=container, command=tuple(command), has_stdin=stdin, has_tty=tty
        )
        return await _converse(connection, remote)

    raise typer.Exit(run_connected(kubeconfig, work))


async def _converse(connection: "Connection", remote: "Remote") -> int:
    from hekla.cli.remote import converse
    from hekla.wire.channels import V5

    socket = await connection.transport.websocket(remote.target, (V5,))
    return await converse(socket, remote)
