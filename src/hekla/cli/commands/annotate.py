"""Set or remove annotations: KEY=VALUE sets one, KEY- removes it.

Examples:

  hekla annotate vcjob/train owner=ann

  hekla annotate pods --all note-
"""

from typing import Annotated

import typer

from hekla.cli import completion
from hekla.cli.options import AllObjects, Kubeconfig, Namespace, Overwrite, Selector


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE[/NAME] [NAME...] KEY=VALUE|KEY-...",
            show_default=False,
            autocompletion=completion.types_and_names,
        ),
    ],
    namespace: Namespace = "",
    selector: Selector = "",
    every: AllObjects = False,
    overwrite: Overwrite = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Set or remove annotations."""
    from hekla.cli.connection import run_connected
    from hekla.cli.metadata_edits import MetadataEdit, split_words

    named, changes = split_words(words, "hekla annotate vcjob/train owner=ann")
    edit = MetadataEdit("annotations", "annotated", changes, overwrite)
    run_connected(kubeconfig, lambda link: edit.all(link, named, namespace, selector=selector, every=every))
