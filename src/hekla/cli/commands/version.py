"""Print the version of this hekla, and of the Kubernetes API it speaks.

Examples:

  hekla version

  hekla version -o json
"""

from typing import Annotated

import typer

KUBERNETES = "1.36"
"""The Kubernetes whose API is spoken."""


def run(output: Annotated[str, typer.Option("-o", "--output", help="json, yaml, or a line of text.")] = "") -> None:
    """Print the version."""
    from hekla import __version__
    from hekla.cli.output import print_document

    facts = {"hekla": __version__, "kubernetes": KUBERNETES}
    if output:
        print_document(facts, output)
    else:
        typer.echo(f"hekla {__version__} (speaks Kubernetes {KUBERNETES})")
