"""The options that many commands share, spelled once."""

from typing import Annotated

import typer

from hekla.cli import completion

Kubeconfig = Annotated[
    str,
    typer.Option("--kubeconfig", help="Path of a kubeconfig; the running platform's by default.", show_default=False),
]
Namespace = Annotated[
    str,
    typer.Option(
        "-n", "--namespace", help="The namespace; the kubeconfig's, else `default`.", show_default=False,
        autocompletion=completion.namespaces,
    ),
]  # fmt: skip
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Look in every namespace.")]
Selector = Annotated[
    str, typer.Option("-l", "--selector", help="Labels to select by: app=web,tier!=back.", show_default=False)
]
Files = Annotated[
    list[str],
    typer.Option("-f", "--filename", help="File, folder, or - for standard input; repeatable.", show_default=False),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Look into subfolders.")]
Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="json, yaml, name, wide, jsonpath={PATH} or custom-columns=NAME:PATH.",
        show_default=False,
    ),
]
SchedulerName = Annotated[
    str, typer.Option("--scheduler-name", help="Of several schedulers, the one that places pods of this schedulerName.")
]
AllObjects = Annotated[bool, typer.Option("--all", help="Every object of the type in the namespace.")]
MetadataWords = Annotated[
    list[str],
    typer.Argument(
        metavar="TYPE[/NAME] [NAME...] KEY=VALUE|KEY-...",
        show_default=False,
        autocompletion=completion.types_and_names,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace values that are there already.")]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Go on, and print every change.")]
