"""Create objects; one that is there already is an error. `hekla apply` changes it instead.

Examples:

  hekla create -f job.yaml

  hekla create -f run.yaml -o name
"""

from typing import TYPE_CHECKING, Annotated

import typer

from hekla.cli.options import Files, Kubeconfig, Namespace, Output, Recursive

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.manifests import Manifest


def run(
    filename: Files = [],  # noqa: B006 - typer copies it
    namespace: Namespace = "",
    recursive: Recursive = False,
    output: Output = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server check everything and store nothing.")
    ] = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Create objects from manifests."""
    from hekla.cli.connection import run_connected
    from hekla.cli.main import CommandError
    from hekla.cli.manifests import read_manifests

    manifests = read_manifests(filename, recursive=recursive)
    failures = run_connected(kubeconfig, lambda link: _create(link, manifests, namespace, output, dry_run=dry_run))
    if failures:
        raise CommandError(f"{failures} of {len(manifests)} objects were refused; the reasons are above")


async def _create(
    connection: "Connection", manifests: "list[Manifest]", namespace: str, output: str, *, dry_run: bool
) -> int:
    from hekla.cli.output import print_document, resource_name
    from hekla.cli.refused_fields import tell_refusal
    from hekla.cli.resources import discover
    from hekla.kube.errors import ApiError

    catalogue, failures = await discover(connection), 0
    query = "?fieldManager=hekla-create&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    for manifest in manifests:
        kind = catalogue.of_document(manifest.document, manifest.source).kind
        where = manifest.document["metadata"].get("namespace") or namespace or connection.default_namespace
        path = kind.path(where if kind.is_namespaced else "", "")
        try:
            made = await connection.client.request("POST", path + query, manifest.document)
        except ApiError as error:
            await tell_refusal(connection, catalogue, manifest, error)
            failures += 1
            continue
        made.get("metadata", {}).pop("managedFields", None)
        if output:
            print_document(made, output)
        else:
            typer.echo(f"{resource_name(made)} created{' (dry run)' if dry_run else ''}")
    return failures
