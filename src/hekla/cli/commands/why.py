"""Say why a pod, a gang or a Volcano job waits: what is missing, on which nodes, and what would let it start.

Of a queue: what it holds, who waits in it, and why.

The running platform's scheduler answers from what it knows at this moment; asking changes nothing.

Examples:

  hekla why vcjob/train

  hekla why pod train-worker-0 -n research

  hekla why podgroup/train -o json

  hekla why queue/research
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hekla.cli import completion
from hekla.cli.options import Kubeconfig, Namespace, Output

if TYPE_CHECKING:
    from hekla.cli.connection import Connection

_WORDS = {
    "pod": "pod", "pods": "pod", "po": "pod", "podgroup": "podgroup", "podgroups": "podgroup", "pg": "podgroup",
    "vcjob": "vcjob", "vcjobs": "vcjob", "vj": "vcjob", "job": "vcjob", "jobs": "vcjob",
    "queue": "queue", "queues": "queue", "q": "queue",
}  # fmt: skip
"""What people call the things that can be explained; a `job` is Volcano's, unless its group is written out."""


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="TYPE/NAME", show_default=False, autocompletion=completion.types_and_names)
    ],
    namespace: Namespace = "",
    output: Output = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Explain."""
    from hekla.cli.connection import run_connected
    from hekla.cli.output import print_document
    from hekla.cli.why_text import queue_text, why_text

    name = explanation_name(words)
    found = run_connected(kubeconfig, lambda connection: _explained(connection, name, namespace))
    if output:
        print_document(found, output)
    else:
        typer.echo(queue_text(found) if name.startswith("queue.") else why_text(found))


def explanation_name(words: list[str]) -> str:
    """`pod.train-0`, from `pod/train-0` or `pod train-0`."""
    from hekla.cli.main import EXIT_USAGE, CommandError

    kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "", words[1])
    if len(words) > 2 or not name or "/" in name:
        raise CommandError(
            f'"{" ".join(words)}" is not TYPE/NAME; say for instance `hekla why vcjob/train`', EXIT_USAGE
        )
    word, _, group = kind.lower().partition(".")
    subject = _WORDS.get(word)
    if subject is None or (word.startswith("job") and group not in {"", "batch.volcano.sh"}):
        raise CommandError(
            f'a "{kind}" cannot be explained; ask about a pod, a podgroup, a vcjob or a queue', EXIT_USAGE
        )
    return f"{subject}.{name}"


async def _explained(connection: "Connection", name: str, namespace: str) -> dict[str, Any]:
    from hekla.api.explanation import EXPLANATION

    path = EXPLANATION.path(namespace or connection.default_namespace, name)
    return await connection.client.request("GET", path)
